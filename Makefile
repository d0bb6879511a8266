# Every target sets up what it needs in .venv; a machine with Python >= 3.11 and make is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The tests' tensors are too small for several threads: files run side by side instead.
# Spinning OpenMP threads slow tree training a hundredfold on shared cores.
export OMP_WAIT_POLICY := PASSIVE
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test test-slow check docs format bench clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 18

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python >= 3.11 is needed; say which with: make PYTHON=/path/to/python3"; exit 1; }
	@echo "setting up $(VENV) (once, about a minute)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)  ## forget 40 samples of a digits classifier, by default and by references, and show the verdict
	$(BIN)/forsaken demo

test: $(READY)  ## unit, contract and law tests, and the doctests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m 'not slow' -n auto --dist loadfile

test-slow: $(READY)  ## the tests that take minutes or need real processes
	$(BIN)/python -m pytest -q -m slow tests

check: $(READY)  ## lint, format, types, dead code, the documentation's links, and known holes of what is installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/vulture
	$(MAKE) --no-print-directory docs
	$(BIN)/python .ci/audit_dependencies.py

docs: $(READY)  ## the documentation site, into runs/site; a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # with --quiet it would forget to be strict

format: $(READY)  ## put the code into the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## measure the paper's tables and figures (hours; DEVICE=cuda for pictures; FORSAKEN_DATA names the datasets' folder)
	$(BIN)/forsaken bench run all --device $(or $(DEVICE),cpu)
	$(BIN)/forsaken bench pages

clean:  ## remove the virtual environment and all runs
	rm -rf $(VENV) runs
