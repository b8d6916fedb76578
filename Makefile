# Every target sets up what it needs: a virtual environment in .venv with the versions of
# constraints.txt. The stamp makes that a matter of once, until one of its files changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOWEST := .venv-lowest

# The tests run in two processes; a second thread in each would only get in the way. With worksteal
# a process runs neighbouring tests, so that the fixtures of a file are made once. Slow tests wait
# for processes of their own much of the time, so there are three, and each file stays in one.
export OMP_NUM_THREADS ?= 1
# Keep compiled files whatever the environment says: without them each process compiles tests and
# sources again, which takes a worker of the tests 8 seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test slow fuzz check check-lowest lint types bench docs values reproduce format clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMP)  ## run the main job from end to end on embedded data
	@$(BIN)/python -m dissensus demo

test: $(STAMP)  ## run the tests, with doctests and README blocks
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow"

slow: $(STAMP)  ## run the slow tests: ranks, Ray, kills, a browser, the docs site
	$(BIN)/python -m pytest -q -n 3 --dist loadfile -m slow

fuzz: $(STAMP)  ## count failures under attack, about an hour: writes results/reliability.json; ARGS="--cases 5" for less
	$(BIN)/python -m tools.fuzz $(ARGS)

check-lowest: $(LOWEST)/.installed  ## run the fast tests on the oldest versions that are allowed
	$(LOWEST)/bin/python -m pytest -q -n 2 --dist worksteal -p no:cacheprovider \
		-m "not slow"

check: lint types test slow  ## all that CI runs: lint, types, test, slow

lint: $(STAMP)  ## check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## check types
	$(BIN)/mypy

bench: $(STAMP)  ## time against the baselines; ARGS="--only scores --quick" for less
	$(BIN)/python -m benchmarks $(ARGS)

reproduce: $(STAMP)  ## rerun the papers' experiments; ARGS="--list" names them
	$(BIN)/python -m reproductions $(ARGS)

docs: $(STAMP)  ## build the documentation into site/; warnings are errors
	$(BIN)/python -m sphinx -q -W --keep-going -c docs -d build/doctrees . site
	@echo "Open site/index.html"

values: $(STAMP)  ## compare the numbers on the pages with the records in results/
	$(BIN)/python docs/quotes.py

format: $(STAMP)  ## put the code into its format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment and all caches
	rm -rf $(VENV) $(LOWEST) build dist site docs/reference .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests reproductions benchmarks docs examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Dissensus needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e ".[dev,docs,all]"
	@touch $@

$(LOWEST)/.installed: pyproject.toml constraints-lowest.txt
	@test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check \
		-c constraints-lowest.txt -e ".[dev,all]"
	@touch $@
