# Needs Python 3.11 or newer, make and the package registries; everything is installed into $(VENV).
#   make demo                    the demonstration; MODEL=name runs it with a live model
#   make test lint types         the gate of every change; ARGS='-k lease -x' goes to pytest
#   make wheel-test              the built distribution in an empty environment
#   make bench bench-quick       the benchmark: everybody, some minutes a round; or refold against the raw floor
#   make bench-faults            the same agent killed, started twice and changed: refold and its peers, some minutes
#   make fuzz                    the property tests and the crash-fuzz levels, long and random, over all cores;
#                                under an hour on two; tests/out/fuzz.json tells what was found

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

comma := ,
VENV ?= .venv
ARGS ?=
MODEL ?=
SUPPORTED := import sys; sys.exit(sys.version_info < (3, 11))
# The first interpreter that starts and is new enough: `make PYTHON=...` overrides the choice.
PYTHON ?= $(shell for each in python3 python3.13 python3.12 python3.11 python; do \
	if $$each -c '$(SUPPORTED)' >/dev/null 2>&1; then echo $$each; break; fi; done)

BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
QUICK := not slow and not system and not wheel
DEMO_EXTRAS := embedded$(if $(MODEL),-models)

.PHONY: help demo dev test test-quick wheel-test lint format types fuzz bench bench-quick bench-faults clean

help:
	@sed -n 's/^#   //p' Makefile

demo: $(STAMPS)/$(DEMO_EXTRAS)
	$(BIN)/refold demo $(if $(MODEL),--model '$(MODEL)')

dev: $(STAMPS)/dev

test: $(STAMPS)/dev
	$(BIN)/pytest -m 'not wheel' $(ARGS)

test-quick: $(STAMPS)/dev
	$(BIN)/pytest -m '$(QUICK)' $(ARGS)

wheel-test: $(STAMPS)/dev
	$(BIN)/pytest -m wheel $(ARGS)

lint: $(STAMPS)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMPS)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMPS)/dev
	$(BIN)/mypy

fuzz: $(STAMPS)/dev
	rm -f tests/out/fuzz.json
	REFOLD_HYPOTHESIS=search $(BIN)/pytest -m hypothesis $(ARGS)
	$(BIN)/pytest --long -m fuzz -o faulthandler_timeout=1200 $(ARGS)

bench: $(STAMPS)/embedded
	$(BIN)/python bench/run.py $(ARGS)

bench-quick: $(STAMPS)/embedded
	$(BIN)/python bench/run.py --quick $(ARGS)

bench-faults: $(STAMPS)/dev
	$(BIN)/python bench/faults.py

clean:
	rm -rf .venv .venv-* build dist refold.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMPS)/venv:
	@if [ -z '$(PYTHON)' ] || ! $(PYTHON) -c '$(SUPPORTED)'; then \
		echo "refold needs Python 3.11 or newer; '$(or $(PYTHON),python3)' is not. Name one: make PYTHON=python3.12" >&2; \
		exit 1; \
	fi
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS)
	@touch $@

# One stamp for each set of extras, a dash between them; made anew when the requirements change.
$(STAMPS)/%: $(STAMPS)/venv pyproject.toml constraints.txt
	$(PIP_INSTALL) --editable '.[$(subst -,$(comma),$*)]'
	@touch $@
