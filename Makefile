# Two commands are enough: `make train` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= auto

# Without bytecode each of the hundreds of processes that tests start would compile torch anew, for seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Both are made anew whenever what they are made from changes. What training needs is enough to train; the rest, with MuJoCo, Atari
# and the tools of the tests, is installed on top of it. Python compiles modules when it first imports them, not all at once here.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

$(VENV)/trains: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "levada needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

$(VENV)/ready: $(VENV)/trains
	$(PIP) -e '.[dev]'
	@touch $@

.PHONY: install
install: $(VENV)/ready ## make .venv and install levada into it, with all that the tests need

.PHONY: train
train: $(VENV)/trains ## train PPO on CartPole-v1 until it is solved; installs what that needs
	$(BIN)/levada train ppo --env CartPole-v1 --until return=475 --seed 1

.PHONY: lint
lint: $(VENV)/ready ## style, spelling, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell src docs benchmarks README.md CHANGELOG.md CONTRIBUTING.md
	$(BIN)/codespell -D - -D words.txt --builtin en-GB_to_en-US --ignore-words-list writeable --skip "*/foreign.py" src docs README.md CONTRIBUTING.md
	$(BIN)/lint-imports --no-cache

.PHONY: types
types: $(VENV)/ready ## mypy --strict
	$(BIN)/mypy

.PHONY: unit
unit: $(VENV)/ready ## the tests, and the code of the documentation
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist loadfile -q

.PHONY: test
test: lint types unit ## everything that must hold: lint, types, tests

.PHONY: clean
clean: ## remove .venv and caches; runs stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis build dist
