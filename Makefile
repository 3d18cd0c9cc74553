# `make demo` shows what deepnmt does and `make test` tests it; `make check` is quick, for while you edit.
# Each sets itself up. `make demo MINUTES=4 TARGET=fr` takes another time and language.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# A file of tests stays on one worker, which shares its models; tests/conftest.py puts the long files first.
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
LAWS := tests/test_architecture.py tests/test_settings.py tests/test_recipes.py tests/test_files.py \
	tests/model/test_laws.py tests/model/test_connections.py tests/model/test_layers.py tests/model/test_parity.py \
	tests/training/test_loss.py tests/training/test_schedule.py tests/data/test_batching.py tests/test_text.py \
	tests/decoding/test_search.py tests/evaluation/test_scores.py
# What depends on the instructions that the CPU has.
NUMERICS := tests/model tests/decoding tests/training/test_loss.py tests/training/test_trainer.py \
	tests/training/test_resume.py tests/training/test_muon.py tests/serving/test_batch_queue.py

.PHONY: demo test check numerics soak lint format clean anew

demo: $(VENV)/installed
	$(BIN)/deepnmt demo $(if $(TARGET),--target $(TARGET)) $(if $(MINUTES),--minutes $(MINUTES))

test: lint
	$(PYTEST)

check: lint
	$(PYTEST) $(LAWS)

numerics: $(VENV)/installed
	$(PYTEST) $(NUMERICS)

lint: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Kills and resumes runs at 200 random instants, and compares: about ten minutes.
soak: $(VENV)/installed
	$(BIN)/python tests/training/soak.py $(if $(KILLS),--kills $(KILLS))

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
