# make demo    train on the digits and compare three methods (minutes, CPU alone)
# make test    every test, ruff and mypy among them
# make lint    ruff and mypy alone          make format   rewrite with ruff
# make docs    the documentation as a site in site/
# make clean   remove everything made here

PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint format docs clean
.DEFAULT_GOAL := test

$(VENV)/.made: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("prelax needs Python 3.11 or later: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing prelax and its tools into $(VENV) (the first time downloads PyTorch)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.made
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

demo: $(VENV)/.made
	@$(BIN)/prelax demo

# One thread a worker: two workers with two threads each on two cores stand in one another's way.
test: $(VENV)/.made
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

lint: $(VENV)/.made
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

format: $(VENV)/.made
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
