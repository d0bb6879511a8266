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

bench: $(READY)  ## measure what the documents quote (hours, with a GPU for the pictures; FORSAKEN_DATA names the datasets' folder)
	$(BIN)/python benchmarks/cost.py
	$(BIN)/python benchmarks/digits.py
	$(BIN)/python benchmarks/reuters.py
	$(BIN)/python benchmarks/recipes.py
	$(BIN)/python benchmarks/duplicates.py
	$(BIN)/python benchmarks/baselines.py --task digits --tune 100-101
	$(BIN)/python benchmarks/baselines.py --task digits-pictures --tune 100-101
	$(BIN)/python benchmarks/baselines.py --task reuters-35-11 --tune 100-101 --device cuda
	for task in c10-t news-15-5 i-c reuters-35-11; do $(BIN)/python benchmarks/oracles.py --scenario $$task --device cuda; done
	for task in reuters-35-11 reuters-id; do $(BIN)/python benchmarks/audit.py --task $$task --models 64 --device cuda; done
	$(BIN)/python benchmarks/audit.py --task reuters-35-11 --models 16
	$(BIN)/python benchmarks/audit.py --task digits --models 16
	for split in iid dirichlet; do $(BIN)/python benchmarks/federated.py --split $$split; done
	$(BIN)/python benchmarks/federated_detector.py
	$(BIN)/python benchmarks/poison.py --scenario poison-digits --seeds 3-5
	$(BIN)/python benchmarks/poison.py --scenario poison-10 --network small
	for percent in 2 4 10; do $(BIN)/python benchmarks/poison.py --scenario poison-$$percent --device cuda; done
	$(BIN)/forsaken bench run exposure
	$(BIN)/python benchmarks/pruning.py --seeds 100
	$(BIN)/python benchmarks/defaults.py --task digits --seeds 100-109
	$(BIN)/python benchmarks/defaults.py --task reuters-35-11 --seeds 100-101

clean:  ## remove the virtual environment and all runs
	rm -rf $(VENV) runs
