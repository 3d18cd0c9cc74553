# `make demo` shows what deepnmt does and `make test` tests it; `make check` is quick, for while you edit.
# Each sets itself up. `make demo MINUTES=4 TARGET=fr` takes another time and language.
PYTHON ?= python3
BIN = .venv/bin
TORCH_NEEDS = torch|filelock|fsspec|jinja2|markupsafe|mpmath|networkx|setuptools|sympy|typing_extensions
PIP = $(BIN)/python -m pip --disable-pip-version-check --quiet

# A file of tests stays on one worker, which shares its models; tests/conftest.py puts the long files first.
PYTEST = $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
LAWS = tests/test_architecture.py tests/test_settings.py tests/test_recipes.py tests/test_files.py \
	tests/model/test_laws.py tests/model/test_connections.py tests/model/test_layers.py tests/model/test_parity.py \
	tests/training/test_loss.py tests/training/test_schedule.py tests/data/test_batching.py tests/test_text.py \
	tests/decoding/test_search.py tests/evaluation/test_scores.py
# What depends on the instructions that the CPU has.
NUMERICS = tests/model tests/decoding tests/training/test_loss.py tests/training/test_trainer.py \
	tests/training/test_resume.py tests/training/test_muon.py tests/serving/test_batch_queue.py

.PHONY: demo test check numerics soak lint format clean installed install constraints

demo: installed
	$(BIN)/python -m deepnmt demo $${TARGET:+--target "$$TARGET"} $${MINUTES:+--minutes "$$MINUTES"}

test: lint
	$(PYTEST)

check: lint
	$(PYTEST) $(LAWS)

numerics: installed
	$(PYTEST) $(NUMERICS)

lint: installed
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy

# Kills and resumes runs at 200 random instants, and compares: about ten minutes.
soak: installed
	$(BIN)/python tests/training/soak.py $${KILLS:+--kills "$$KILLS"}

format: installed
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

# Installs the first time, when the requirements have changed, and when `make TORCH=...` names a build of torch.
installed:
	@test -z "$(TORCH)" && cat pyproject.toml constraints.txt 2>/dev/null | cmp -s - .venv/installed || $(MAKE) install

# torch is named first and pinned: this release has a build without gigabytes of CUDA.
install:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'deepnmt needs Python 3.11 or newer; where python3 is older: make PYTHON=python3.11' >&2; exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(PIP) install $${TORCH:-torch==2.13.0}
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	@cat pyproject.toml constraints.txt > .venv/installed

# Replaces the versions in constraints.txt by the newest; run the tests before you commit them.
constraints:
	rm -rf .venv
	: > constraints.txt
	$(MAKE) install
	$(PIP) freeze --exclude-editable | grep -viE '^($(TORCH_NEEDS))==' > constraints.txt

clean:
	rm -rf .venv demo .mypy_cache .ruff_cache .hypothesis
