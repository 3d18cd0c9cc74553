# Two commands: `make demo` shows what deepnmt does, `make test` checks it. Each sets itself up.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test format clean anew

demo: $(VENV)/installed
	$(BIN)/deepnmt demo $(if $(TARGET),--target $(TARGET))

test: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

format: $(VENV)/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# torch is named first and pinned: this release has a build without gigabytes of CUDA. `make TORCH=...` takes another.
$(VENV)/installed: pyproject.toml $(if $(filter file,$(origin TORCH)),,anew)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "deepnmt needs Python 3.11 or newer: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) demo .mypy_cache .ruff_cache .hypothesis
