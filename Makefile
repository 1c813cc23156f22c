# Two commands are enough: `make train` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Processes of the tests: two more than there are cores, because some tests wait.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(2 + (os.cpu_count() or 1))')

# Without bytecode each of the hundreds of processes that tests start would compile torch anew, for seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The environment has what training needs (file `trains`), or also EXTRAS, with MuJoCo, Atari and the tools of the tests (file `ready`).
# It is updated when its pins change. Python compiles modules when it first imports them, not all at once here.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
EXTRAS ?= dev

$(BIN)/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "levada needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/trains: pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP) -e .
	@touch $@

$(VENV)/ready: pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP) -e '.[$(EXTRAS)]'
	@touch $(VENV)/trains $@

.PHONY: install
install: $(VENV)/ready ## make .venv and install levada into it, with all that the tests need

.PHONY: train
train: $(VENV)/trains ## train PPO on CartPole-v1 until it is solved; installs what that needs
	$(BIN)/levada train ppo --env CartPole-v1 --until return=475 --seed 1

.PHONY: style
style: $(VENV)/ready ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: spelling
spelling: $(VENV)/ready ## codespell, American English, and words.txt
	$(BIN)/codespell src docs examples benchmarks web/src README.md CHANGELOG.md CONTRIBUTING.md
	$(BIN)/codespell -D - -D words.txt --builtin en-GB_to_en-US --ignore-words-list writeable --skip "*/foreign.py,page.js,page.css" src docs examples README.md CONTRIBUTING.md

.PHONY: layers
layers: $(VENV)/ready ## what may import what
	$(BIN)/lint-imports --no-cache

.PHONY: lint
lint: style spelling layers ## style, spelling, layers

.PHONY: types
types: mypy pyright ## mypy --strict; the types of all public names are known to users' type checkers

.PHONY: mypy
mypy: $(VENV)/ready
	$(BIN)/mypy

.PHONY: pyright
# pyright looks for the package beside the python that comes first in PATH; its report is shown if a public name lacks a type.
pyright: $(VENV)/ready
	@report=$$(PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pyright --verifytypes levada --ignoreexternal) || { echo "$$report"; exit 1; }

.PHONY: docs
docs: $(VENV)/ready ## the documentation as a site, in build/site; a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.PHONY: unit
unit: $(VENV)/ready ## the tests, and the code of the documentation
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 RAY_worker_niceness=0 $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -q

.PHONY: static
# Each of these keeps one core busy. Installing comes first, once.
static: $(VENV)/ready
	@$(MAKE) --no-print-directory --jobs=2 types docs lint

.PHONY: test
test: static unit ## everything that must hold: lint, types, docs, tests

.PHONY: page
page: ## the page of `levada watch`: check its TypeScript, and build it into the package; needs Node.js and `npm ci --prefix web`
	npm --prefix web run --silent check
	npm --prefix web run --silent build
	@git diff --exit-code --stat -- src/levada/watch/page || { echo "the page in src/levada/watch/page was built anew: commit it"; exit 1; }

.PHONY: clean
clean: ## remove .venv and caches; runs stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis build dist
