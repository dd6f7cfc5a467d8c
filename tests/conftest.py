"""What all tests share."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs() -> Iterator[None]:
    """Drops compiled programs after each file: all of them together take tens of gigabytes."""
    yield
    jax.clear_caches()
