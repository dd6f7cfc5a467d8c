"""What all tests share."""

import os
from collections.abc import Iterator
from pathlib import Path

# Many tests compile the same programs. Kept here, they are compiled once for all processes and all
# later runs. (In the environment, before JAX is imported, so that commands under test have it too.)
_COMPILED = Path(__file__).parent.parent / ".pytest_cache" / "compiled"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_COMPILED))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")

import jax  # noqa: E402
import pytest  # noqa: E402

from tacit.estimators import forget_fits  # noqa: E402
from tacit.inference.compilation import forget_kernels  # noqa: E402

# Files that take minutes: they fit models to convergence, start processes, or run whole documents.
_SLOW = (
    "tests/statistics/",
    "tests/scale/",
    "tests/cli/test_fit_by_processes.py",
    "tests/estimators/test_checks.py",
    "tests/estimators/test_tutorial.py",
    "tests/numpyro/test_synthetic.py",
    "tests/tables/test_shards.py",
    "tests/test_benchmarks.py",
    "tests/test_example_programs.py",
    "tests/test_examples.py",
    "tests/test_processes.py",
    "tests/test_robust_experiments.py",
    "tests/test_thesis_chains.py",
    "tests/test_tutorials.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what ``make test`` leaves to ``make test-slow``."""
    for item in items:
        if any(part in item.path.as_posix() for part in _SLOW):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _forget_other_tests() -> Iterator[None]:
    """No test runs what another made of a changed engine, or hears of another's fits."""
    yield
    forget_kernels()
    forget_fits()


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs() -> Iterator[None]:
    """Drops compiled programs after each file: all of them together take tens of gigabytes."""
    yield
    jax.clear_caches()
