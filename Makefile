# Works on a fresh machine with Python 3.11+ and make: each target installs what it needs into .venv, when it is missing
# or pyproject.toml has changed.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# The tests start hundreds of Python processes, which are slower without bytecode.
unexport PYTHONDONTWRITEBYTECODE
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable

.PHONY: demo lint test-quick test test-deploy coverage docs clean

# What is installed: .run is the package alone, .dev adds all extras and the development tools, .docs the site's tools.
$(VENV)/.run: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) .
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(INSTALL) '.[all,dev]'
	touch $@

$(VENV)/.docs: $(VENV)/.run
	$(INSTALL) '.[docs]'
	touch $@

# CaBaFL on MNIST digits, one to two minutes.
demo: $(VENV)/.run
	$(BIN)/cabafl run

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# While you work: all but the slow tests, under a minute on two cores.
test-quick: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 -m 'not slow and not deploy' --durations=5 --durations-min=0.5

test: lint
	$(BIN)/python -m pytest -n 2

# Whole runs with real processes, some minutes.
test-deploy: $(VENV)/.dev
	$(BIN)/python -m pytest -m deploy

# Lines and branches that no test of `make test` reaches.
coverage: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term-missing:skip-covered

# The documentation site, into site/; a warning is an error.
docs: $(VENV)/.docs
	$(BIN)/python tools/build_site.py

clean:
	rm -rf $(VENV) build dist site .cache .coverage .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
