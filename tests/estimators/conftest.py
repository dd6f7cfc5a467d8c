import warnings

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from tacit import PrivacyWarning
from tacit.estimators.inputs import forget_fits


@pytest.fixture(scope="module", autouse=True)
def _programs_are_compiled_quickly_and_once():
    # These tests fit tiny tables, of the same few shapes again and again; all tests share the
    # folder of compiled programs.
    settings = {
        "jax_disable_most_optimizations": True,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: jax.config.values[name] for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture(autouse=True)
def _tests_share_no_memory_of_fits():
    forget_fits()
    with warnings.catch_warnings():
        # Small tables have a large delta; tests of warnings ask for them by name.
        warnings.filterwarnings("ignore", "delta=", PrivacyWarning)
        yield
    forget_fits()
