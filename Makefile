# `make train` and `make test` are all one needs; both create .venv first.
PYTHON ?= python3
SECOND ?= python3.13
ENV ?= InvertedPendulum-v5
METHOD ?= pdml
SEED ?= 0
BIN := .venv/bin
RUN := runs/$(ENV)/$(METHOD)/seed$(SEED)__$(shell date -u +%Y%m%dT%H%M%S)

KILLS ?= 100
KILL_SEED := $(or $(KILL_SEED),$(shell date +%s))

.PHONY: train test check static tests fast-tests test-second test-ray torture format docs dist results

train: .venv  ## train a policy: make train ENV=Hopper-v5 STEPS=30000
	@$(BIN)/pdml train --env $(ENV) --method $(METHOD) --seed $(SEED) $(if $(STEPS),--steps $(STEPS)) --run-dir $(RUN); \
	code=$$?; if [ -f $(RUN)/config.json ]; then $(BIN)/pdml report $(RUN) --frames --out $(RUN)/report.html; fi; exit $$code

test: .venv  ## everything: format, lint, types, all tests
	@$(MAKE) --no-print-directory -j 2 static tests

check: .venv  ## what a contributor runs before a commit: the same without slow tests
	@$(MAKE) --no-print-directory -j 2 static fast-tests

static: .venv  ## format, lint, types; they take one core for some seconds, so tests run beside them
	$(BIN)/ruff format --check src tests tools examples
	$(BIN)/ruff check src tests tools examples
	$(BIN)/basedpyright --pythonpath $(BIN)/python

tests: .venv
	$(BIN)/pytest -n 2 --dist worksteal -q $(if $(DURATIONS),--durations=$(DURATIONS))

fast-tests: .venv
	$(BIN)/pytest -n 2 --dist worksteal -q -m "not slow"

test-second:  ## the fast tests on another interpreter: make test-second SECOND=python3.13
	$(SECOND) -m venv --clear .venv-second
	.venv-second/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	.venv-second/bin/pytest -n 2 --dist worksteal -q -m "not slow"

test-ray: .venv  ## sweeps on a real cluster of two nodes on this machine; installs Ray
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,ray]"
	$(BIN)/pytest -q -m ray tests/ray

torture: .venv  ## a hundred kills of tiny runs, at other points every time: make torture KILL_SEED=7
	@echo "KILLS=$(KILLS) KILL_SEED=$(KILL_SEED)"
	PDML_KILLS=$(KILLS) PDML_KILL_SEED=$(KILL_SEED) $(BIN)/pytest -n 2 --dist worksteal -v tests/promises/test_kills.py -k killed

format: .venv  ## write the code as the formatter wants it
	$(BIN)/ruff format src tests tools examples
	$(BIN)/ruff check --fix src tests tools examples

docs: .venv  ## the documentation site, docs/_build/index.html
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build

dist: .venv  ## the package for an index, in dist/: built, checked, installed into a clean environment and tried there
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,dist]"
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tools/check_dist.py dist

results: .venv  ## every table and figure of results/ and the docs, from the files in results/
	$(BIN)/pdml results rebuild results docs README.md

.venv: .venv/installed  ## only install

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@
