# Works on a fresh machine with Python 3.11+ and make: the environment is made when it is missing or out of date.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test test-deploy lint docs clean

$(VENV)/.run: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all]'
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all,dev]'
	touch $@

$(VENV)/.docs: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

demo: $(VENV)/.run
	$(BIN)/cabafl run

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -n 2

test-deploy: $(VENV)/.dev
	$(BIN)/python -m pytest -m deploy

docs: $(VENV)/.docs
	$(BIN)/python tools/build_site.py

clean:
	rm -rf $(VENV) build dist site .cache .mypy_cache .ruff_cache .pytest_cache
