# make demo, make check and make test set up .venv themselves; the second time they start at once.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo check test test-all bench wheel experiments experiments-quick lint format clean
.DELETE_ON_ERROR:

demo: .venv/.runtime
	$(BIN)/tacit demo

# The tests are three layers, which tests/conftest.py assigns. Each names its slowest tests, so that it stays quick.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal --durations=10 --durations-min=5

# For every save, about two minutes: lint, types, architecture and the quick unit tests.
check: lint
	$(PYTEST) -m quick

# Less than ten minutes: these tests again and the other units, laws, planted bugs, neighbouring tables, the command
# line, the ledger, and a statistical test of each family of methods.
test: .venv/.dev
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || echo "no chromium here: the test that looks at the report is skipped"
	$(PYTEST) -m "not slow"

# What `make test` leaves out: statistics, documents and doctests, long fuzzing, processes, eight devices, and one tiny
# cell of each experiment.
test-all: .venv/.dev
	$(PYTEST) -m slow
	$(MAKE) experiments-quick

# Wants a quiet machine for half an hour. For a trial: ARGS="--quick --only rnn".
bench: .venv/.dev .venv-bench/.peers
	$(BIN)/python -m benchmarks --peers .venv-bench/bin/python $(ARGS)

# A wheel for this platform, with the native kernel, tested in an environment of its own: the published vectors of
# ChaCha20 and of the noise, on every instruction level and without the kernel.
VECTORS := tests/test_rng.py tests/privacy/test_noise.py tests/native -k "rfc_7539 or published_vectors"
wheel: .venv/bin/python
	rm -rf dist build .venv-wheel
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w dist .
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/tacit-*.whl pytest mpmath
	.venv-wheel/bin/python -c 'import tacit.native; print("this wheel computes noise by", tacit.native.name())'
	.venv-wheel/bin/python -m pytest $(VECTORS)
	TACIT_NATIVE=off .venv-wheel/bin/python -m pytest $(VECTORS)
	rm -rf .venv-wheel build
	ls -l dist

# Everything on the results page: a day on two cores. Goes on where it was stopped. The image sets are looked for in
# $TACIT_DATA, else in data/.
experiments: .venv/.dev
	$(BIN)/python -m experiments
	$(BIN)/python -m experiments.render

# One tiny cell of each, on data that comes with the package or scikit-learn; nothing is kept.
experiments-quick: .venv/.dev
	$(BIN)/python -m experiments --quick

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

.venv/.runtime: pyproject.toml setup.py constraints.txt $(wildcard src/tacit/native/*.h src/tacit/native/*.cc) | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/.dev: .venv/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# The peers never share an environment with tacit's own tools. torch comes first, so that Opacus finds
# one; it wants an older mpmath than ours.
.venv-bench/.peers: benchmarks/requirements.txt pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	grep -v '^mpmath' constraints.txt > .venv-bench/constraints.txt
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-bench/constraints.txt -r benchmarks/requirements.txt
	@touch $@

clean:
	rm -rf .venv .venv-bench .venv-wheel build dist src/tacit/native/kernel.native.so src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
