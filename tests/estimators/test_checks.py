"""What scikit-learn asks of every estimator, with the few things that privacy forbids."""

import functools
import warnings
from unittest import SkipTest

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from tacit import PrivateBayesClassifier, PrivateBayesRegressor

TINY = {"epsilon": 20.0, "bounds": (-10, 10), "num_steps": 10, "clip_norm": 1.0, "max_weight": 10}
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": (
        "a weight acts inside the clip, and rows are counted publicly: a row of weight two is one"
        " unit of privacy, two rows are two"
    ),
}


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
