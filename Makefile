# make demo, make test and make lint set up .venv themselves; the second time they start at once.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint format clean
.DELETE_ON_ERROR:

demo: .venv/.runtime
	$(BIN)/tacit demo

test: .venv/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("tacit needs Python 3.11 or newer; call make with PYTHON=/path/to/python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv

.venv/.runtime: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/.dev: .venv/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
