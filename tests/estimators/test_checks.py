"""What scikit-learn asks of every estimator, with the few things that privacy forbids."""

import functools
import warnings
from unittest import SkipTest

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache
from sklearn.utils.estimator_checks import estimator_checks_generator

from tacit import PrivateBayesClassifier, PrivateBayesRegressor

TINY = {"epsilon": 20.0, "bounds": (-10, 10), "num_steps": 10, "clip_norm": 1.0, "max_weight": 10}
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": (
        "a weight acts inside the clip, and rows are counted publicly: a row of weight two is one"
        " unit of privacy, two rows are two"
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _programs_are_compiled_quickly_and_once(tmp_path_factory):
    # The checks fit tiny tables of the same few shapes again and again.
    settings = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("programs")),
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


@pytest.mark.parametrize(
    "estimator",
    [
        PrivateBayesClassifier(**TINY),
        PrivateBayesRegressor(**TINY, target_bounds=(-100, 100)),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_scikit_learn_finds_nothing_but_what_is_expected(estimator):
    failed, seen = {}, set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for own, check in estimator_checks_generator(estimator):
            name = _name(check)
            if name in seen:  # the same with arrays on disk, or in another precision
                continue
            seen.add(name)
            try:
                check(own)
            except SkipTest:
                continue
            except Exception as error:
                failed[name] = error
    assert len(seen) > 40
    assert failed.keys() == EXPECTED.keys(), failed


def _name(check):
    while isinstance(check, functools.partial):
        check = check.func
    return check.__name__
