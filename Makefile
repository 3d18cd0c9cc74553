# make demo     trains and scores a model on a small real corpus; MINUTES=4 TARGET=fr sets the time and the language
# make test     format, lint, types, all tests
# make check    format, lint, types and the fast tests, for while you edit
# make format   formats the code and fixes what lint can
# make numerics the tests that depend on the instructions of the CPU
# make soak     kills and resumes runs at random instants
# make clean    removes the environment, the demo and the caches
# Each installs what it needs into .venv; TORCH=... names another build of torch, PYTHON=... another Python.
PYTHON ?= python3
BIN = .venv/bin
TORCH_NEEDS = torch|filelock|fsspec|jinja2|markupsafe|mpmath|networkx|setuptools|sympy|typing_extensions
PIP = $(BIN)/python -m pip --disable-pip-version-check --quiet

# The tests of a file share models, so they run on one worker; tests/conftest.py starts the long files first.
PYTEST = $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
LAWS = tests/test_architecture.py tests/test_settings.py tests/test_recipes.py tests/test_files.py \
	tests/model/test_laws.py tests/model/test_connections.py tests/model/test_layers.py tests/model/test_parity.py \
	tests/training/test_loss.py tests/training/test_schedule.py tests/data/test_batching.py tests/test_text.py \
	tests/decoding/test_search.py tests/evaluation/test_scores.py
# Tests that depend on the instructions of the CPU.
NUMERICS = tests/model tests/decoding tests/training/test_loss.py tests/training/test_trainer.py \
	tests/training/test_resume.py tests/training/test_muon.py tests/serving/test_batch_queue.py

.PHONY: demo test check numerics kernels soak lint format clean installed install constraints

demo: installed
	$(BIN)/python -m deepnmt demo $${TARGET:+--target "$$TARGET"} $${MINUTES:+--minutes "$$MINUTES"}

test: lint
	$(PYTEST)

check: lint
	$(PYTEST) $(LAWS)

numerics: installed
	$(PYTEST) $(NUMERICS)

# Compares the Triton kernels, and models and updates that use them, with their plain twins without a GPU, in Triton's
# interpreter: a quarter of an hour.
kernels: installed
	test -d .venv/triton || $(PIP) install --no-deps --target .venv/triton triton==3.7.1
	PYTHONPATH=.venv/triton TRITON_INTERPRET=1 $(PYTEST) tests/model/kernels tests/model/test_gpu.py \
		tests/decoding/test_continuous.py tests/training/test_recorded_updates.py

lint: installed
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy

# Kills and resumes runs at 200 random instants and compares the results; about ten minutes.
soak: installed
	$(BIN)/python tests/training/soak.py $${KILLS:+--kills "$$KILLS"}

format: installed
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

# Installs the first time, when the requirements have changed, and when `make TORCH=...` names a build of torch.
installed:
	@test -z "$(TORCH)" && cat pyproject.toml constraints.txt 2>/dev/null | cmp -s - .venv/installed || $(MAKE) install

# torch comes first and is pinned: this release has a build without gigabytes of CUDA.
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
