# Every target does its own set-up; nothing here runs that cannot be run by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.setup-dev
DEMO := $(VENV)/.setup-demo
LITELLM := .cache/litellm

.PHONY: demo test test-litellm lint types wheel check matrix bench clean
.DEFAULT_GOAL := check

demo: $(DEMO)
	$(BIN)/prefix-middleware demo

test: $(SETUP)
	scripts/services
	$(BIN)/pytest $(ARGS)

test-litellm: $(LITELLM)/.done
	scripts/services
	PREFIX_TEST_LITELLM=1 $(LITELLM)/bin/pytest tests/litellm $(ARGS)

$(LITELLM)/.done: pyproject.toml scripts/litellm-venv
	scripts/litellm-venv $(PYTHON) $(LITELLM)
	touch $@

lint: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(SETUP)
	$(BIN)/mypy

wheel: $(SETUP)
	scripts/check-wheel $(BIN)/python

matrix:
	scripts/matrix

bench: $(SETUP)
	$(BIN)/python -m bench.figures $(ARGS)

check: lint types test wheel

$(SETUP): pyproject.toml scripts/venv
	scripts/venv $(PYTHON) $(VENV) --group dev
	touch $@ $(DEMO)

$(DEMO): pyproject.toml scripts/venv
	scripts/venv $(PYTHON) $(VENV)
	touch $@

clean:
	rm -rf $(VENV) .cache dist build
