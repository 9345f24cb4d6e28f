# Every target does its own set-up; nothing here runs that cannot be run by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.setup-dev
DEMO := $(VENV)/.setup-demo
LITELLM := .cache/litellm
VLLM := .cache/vllm
VLLM_MODELS := .cache/vllm-models

.PHONY: demo test test-litellm vllm test-vllm lint types wheel check matrix bench bench-fleet drills soak clean
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

# 3 GB; the tests run in the ordinary environment and start workers with this one's interpreter.
vllm: $(VLLM)/.done $(VLLM_MODELS)/.done

test-vllm: $(SETUP) vllm
	scripts/services
	TEST_VLLM=1 $(BIN)/pytest tests/vllm $(ARGS)

$(VLLM)/.done: scripts/vllm-venv
	scripts/vllm-venv $(PYTHON) $(VLLM)
	touch $@

$(VLLM_MODELS)/.done: $(VLLM)/.done tests/vllm/models.py tests/vllm/template.jinja
	$(VLLM)/bin/python -m tests.vllm.models $(VLLM_MODELS)
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

bench-fleet: $(SETUP) vllm
	scripts/services
	$(BIN)/python -m bench.fleet $(ARGS)

soak: $(SETUP)
	scripts/services
	$(BIN)/python -m bench.soak --minutes $(or $(MINUTES),10) $(ARGS)

drills: $(SETUP)
	scripts/services
	$(BIN)/python -m drills $(ARGS)

check: lint types test wheel

$(SETUP): pyproject.toml scripts/venv
	scripts/venv $(PYTHON) $(VENV) --group dev
	touch $@ $(DEMO)

$(DEMO): pyproject.toml scripts/venv
	scripts/venv $(PYTHON) $(VENV)
	touch $@

clean:
	rm -rf $(VENV) .cache dist build
