import math
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from estimators.tables import ILL, WEEKS, patients
from tacit import Budget, LedgerFile, PrivacyWarning
from tacit.errors import BudgetExceededError, InvalidArgumentError
from tacit.estimators import PrivateBayesClassifier, PrivateBayesRegressor
from tacit.privacy.accounting import RDP
from tacit.privacy.budget import InMemoryLedger
from tacit.privacy.filters import RDPFilter

TRAIN, TEST = patients(300), patients(seed=1)
INPUTS = ["dose", "age", "city"]
NUMBERS = ["dose", "age"]
QUICK = {"num_steps": 3, "clip_norm": 1.0, "random_state": 0, "epsilon": 5.0, "delta": 1e-3}


@pytest.fixture(scope="module")
def classifier():
    return PrivateBayesClassifier(epsilon=5.0, schema=ILL, random_state=0).fit(
        TRAIN[INPUTS], TRAIN.ill
    )


@pytest.fixture(scope="module")
def regressor():
    return PrivateBayesRegressor(epsilon=5.0, schema=WEEKS, random_state=0).fit(
        TRAIN[INPUTS], TRAIN.weeks
    )


def test_a_default_classifier_reads_a_raw_frame_and_learns(classifier):
    assert classifier.score(TEST[INPUTS], TEST.ill) > 0.8
    assert classifier.classes_.tolist() == ["no", "yes"]
    assert classifier.feature_names_in_.tolist() == INPUTS
    assert classifier.n_features_in_ == 3


def test_probabilities_sum_to_one_and_follow_the_classes(classifier):
    probabilities = classifier.predict_proba(TEST)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_array_equal(
        classifier.classes_[probabilities.argmax(axis=1)], classifier.predict(TEST)
    )
    np.testing.assert_allclose(np.exp(classifier.predict_log_proba(TEST)), probabilities)


def test_classes_are_sorted_whatever_their_order_in_the_schema():
    from dataclasses import replace

    from tacit.data import Target

    turned = replace(ILL, target=Target(name="ill", classes=("yes", "no")))
    model = PrivateBayesClassifier(epsilon=5.0, delta=1e-3, schema=turned, random_state=0)
    model.fit(TRAIN[INPUTS], TRAIN.ill)
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.score(TEST[INPUTS], TEST.ill) > 0.8


@pytest.mark.parametrize("which", ["classifier", "regressor"])
def test_aleatoric_and_epistemic_uncertainty_add_up(which, request):
    aleatoric, epistemic, total = request.getfixturevalue(which).predict_uncertainty(TEST)
    assert np.all(epistemic >= 0)
    assert epistemic.max() > 0
    np.testing.assert_allclose(aleatoric + epistemic, total, rtol=1e-4, atol=1e-6)


def test_a_regressor_predicts_in_the_users_units(regressor):
    assert regressor.score(TEST[INPUTS], TEST.weeks) > 0.6


def test_intervals_grow_with_coverage_and_hold_about_as_much_as_they_say(regressor):
    low, high = regressor.predict_interval(TEST, coverage=0.9)
    inner = regressor.predict_interval(TEST, coverage=0.5)
    assert np.all((low < inner.low) & (inner.high < high))
    covered = np.mean((low <= TEST.weeks) & (TEST.weeks <= high))
    # 200 rows: three standard errors are .06; noise learnt privately may be a little too wide.
    assert 0.8 < covered <= 1.0


def test_sets_hold_the_most_probable_classes_and_no_more_than_needed(classifier):
    sets = classifier.predict_set(TEST, coverage=0.9)
    probabilities = classifier.predict_proba(TEST)
    assert np.all(sets[np.arange(len(TEST)), probabilities.argmax(axis=1)])
    assert np.all((probabilities * sets).sum(axis=1) >= 0.9 - 1e-9)
    sure = probabilities.max(axis=1) >= 0.9
    assert sure.any()
    assert np.all(sets[sure].sum(axis=1) == 1)


def test_posterior_draws_have_a_leading_axis(classifier):
    draws = classifier.sample_posterior(4)
    assert draws["network"]["dense_0"]["kernel"].shape[0] == 4


def test_the_statement_says_what_was_run_and_that_a_seed_is_insecure(classifier):
    assert classifier.privacy_.epsilon <= 5.0
    assert "INSECURE" in classifier.privacy_.epsilon_text
    assert classifier.privacy_.num_units == len(TRAIN)


def test_without_a_random_state_noise_is_secret_and_differs():
    first, second = (
        PrivateBayesClassifier(**{**QUICK, "random_state": None, "schema": ILL}) for _ in range(2)
    )
    first.fit(TRAIN[INPUTS], TRAIN.ill)
    assert first.privacy_.is_secure
    with pytest.warns(PrivacyWarning, match="fit number 2"):
        second.fit(TRAIN[INPUTS], TRAIN.ill)
    assert not np.array_equal(first.predict_proba(TEST), second.predict_proba(TEST))


def test_a_copy_in_another_process_predicts_the_same(classifier):
    copied = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(copied.predict_proba(TEST), classifier.predict_proba(TEST))
    assert copied.privacy_ == classifier.privacy_


def test_a_clone_has_the_parameters_and_nothing_fitted(classifier):
    copied = clone(classifier)
    assert copied.get_params() == classifier.get_params()
    with pytest.raises(NotFittedError):
        copied.predict(TEST)
    assert copied.set_params(epsilon=2.0).epsilon == 2.0


def test_a_clone_draws_on_the_same_ledger():
    ledger = InMemoryLedger()
    assert clone(PrivateBayesClassifier(ledger=ledger)).ledger is ledger


def test_it_works_at_the_end_of_a_pipeline():
    model = make_pipeline(
        FunctionTransformer(lambda frame: frame[NUMBERS].to_numpy()),
        PrivateBayesClassifier(**QUICK, bounds=([0, 18], [10, 90]), classes=["no", "yes"]),
    )
    assert model.fit(TRAIN, TRAIN.ill).predict(TEST).shape == (len(TEST),)


def test_labels_that_are_not_declared_are_taken_as_public_with_a_warning():
    model = PrivateBayesClassifier(**QUICK, bounds=(0, 100))
    with pytest.warns(PrivacyWarning, match="labels that occur in y are taken as public"):
        model.fit(TRAIN[NUMBERS], TRAIN.ill)
    assert model.table_.schema.target.classes == ("no", "yes")


def test_without_bounds_they_are_found_privately_and_paid_for():
    model = PrivateBayesRegressor(**QUICK).fit(TRAIN[NUMBERS], TRAIN.weeks)
    assert model.privacy_.releases == 2 + 3
    assert model.privacy_.epsilon <= 5.0
    dose, age = model.table_.schema.columns
    assert 4 <= dose.high <= 32
    assert 32 <= age.high <= 256
    assert model.table_.schema.target.high >= 20


@pytest.fixture(params=["durable", "in memory"])
def nearly_spent(request, tmp_path):
    """A ledger that can pay for private bounds but not for a fit, and what it has spent."""
    if request.param == "in memory":
        ledger = InMemoryLedger(budget=Budget(epsilon=2.0, delta=1e-3, accountant=RDP()))
        return ledger, lambda: len(ledger.costs)
    durable = LedgerFile.create(tmp_path / "l.db").register(
        "patients", RDPFilter.of_budget(epsilon=2.0, delta=1e-3)
    )
    return durable, lambda: durable.spent


def test_bounds_are_not_paid_for_where_the_fit_would_be_refused(nearly_spent):
    ledger, spent = nearly_spent
    model = PrivateBayesRegressor(**QUICK, ledger=ledger)
    with pytest.raises(BudgetExceededError):
        model.fit(TRAIN[NUMBERS], TRAIN.weeks)
    assert spent() == 0


def test_bounds_are_not_paid_for_where_a_row_is_wrong():
    ledger = InMemoryLedger()
    model = PrivateBayesClassifier(**QUICK, classes=["no", "maybe"], ledger=ledger)
    with pytest.raises(InvalidArgumentError, match="not in classes"):
        model.fit(TRAIN[NUMBERS], TRAIN.ill)
    assert not ledger.costs


def test_half_known_bounds_pay_for_the_other_half():
    known = PrivateBayesRegressor(**QUICK, bounds=(0, 100), target_bounds=(0, 40))
    assert known.fit(TRAIN[NUMBERS], TRAIN.weeks).privacy_.releases == 3
    half = PrivateBayesRegressor(**QUICK, bounds=(0, 100))
    with pytest.warns(PrivacyWarning, match="fit number 2"):
        half.fit(TRAIN[NUMBERS], TRAIN.weeks)
    assert half.privacy_.releases == 5


def test_a_person_with_several_rows_is_one_unit():
    groups = np.arange(len(TRAIN)) // 3
    model = PrivateBayesClassifier(**QUICK, max_rows=2, classes=["no", "yes"])
    model.fit(TRAIN[NUMBERS], TRAIN.ill, groups=groups)
    assert model.privacy_.num_units == 100
    assert "person" in model.privacy_.unit
    with pytest.raises(InvalidArgumentError, match="groups and max_rows go together"):
        model.fit(TRAIN[NUMBERS], TRAIN.ill)


def test_rows_that_are_nobodys_are_not_taken_for_one_person():
    ledger = InMemoryLedger()
    model = PrivateBayesClassifier(**QUICK, max_rows=2, classes=["no", "yes"], ledger=ledger)
    ids = ["ann", math.nan, *(f"person {i}" for i in range(len(TRAIN) - 2))]
    with pytest.raises(InvalidArgumentError, match="groups must"):
        model.fit(TRAIN[NUMBERS], TRAIN.ill, groups=ids)
    assert not ledger.costs


def test_missing_values_are_allowed_and_weights_are_bounded():
    frame = TRAIN[NUMBERS].copy()
    frame.iloc[3, 0] = np.nan
    model = PrivateBayesClassifier(**QUICK, bounds=(0, 100), classes=["no", "yes"])
    weights = np.linspace(0, 1, len(TRAIN))
    model.fit(frame, TRAIN.ill, sample_weight=weights)
    assert np.isfinite(model.predict_proba(frame)).all()
    with pytest.raises(InvalidArgumentError, match=r"weight must lie in \[0, max_weight=1\.0\]"):
        model.fit(frame, TRAIN.ill, sample_weight=2 * weights)


def test_an_infinite_epsilon_runs_and_promises_nothing():
    model = PrivateBayesClassifier(**{**QUICK, "epsilon": math.inf}, bounds=(0, 100))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        model.fit(TRAIN[NUMBERS], TRAIN.ill)
    assert math.isinf(model.privacy_.epsilon)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"epsilon": -math.inf}, "epsilon must be"),
        ({"delta": 1.0}, "delta must lie"),
        ({"method": "adam"}, "method must be one of"),
        ({"bounds": 3}, "bounds must be a pair"),
        ({"bounds": (0, [1, 2, 3])}, "bounds must be numbers, or arrays of length 2"),
        ({"bounds": (1, 0)}, "low below high"),
        ({"schema": "s.toml"}, r"schema must be a tacit\.data\.Schema"),
        ({"classes": ["no"]}, "at least two"),
        ({"classes": ["no", "maybe"]}, "not in classes"),
        ({"schema": WEEKS}, "must have classes"),
    ],
)
def test_a_wrong_parameter_is_refused_and_nothing_is_charged(parameters, message):
    ledger = InMemoryLedger()
    public = {} if "schema" in parameters else {"bounds": (0, 100), "classes": ["no", "yes"]}
    model = PrivateBayesClassifier(**{**QUICK, **public, **parameters}, ledger=ledger)
    with pytest.raises(InvalidArgumentError, match=message):
        model.fit(TRAIN[INPUTS] if "schema" in parameters else TRAIN[NUMBERS], TRAIN.ill)
    assert not ledger.costs


def test_numbers_want_a_numeric_target():
    with pytest.raises(InvalidArgumentError, match="numeric target"):
        PrivateBayesRegressor(**QUICK, schema=ILL).fit(TRAIN[INPUTS], TRAIN.weeks)


def test_a_search_is_told_what_all_its_fits_cost():
    model = PrivateBayesClassifier(**QUICK, bounds=(0, 100), classes=["no", "yes"])
    with pytest.warns(PrivacyWarning) as caught:
        cross_val_score(model, TRAIN[NUMBERS], TRAIN.ill, cv=3)
    texts = [str(warning.message) for warning in caught if "fit number" in str(warning.message)]
    assert [text[:21] for text in texts] == ["this is fit number 2 ", "this is fit number 3 "]
    totals = [float(text.split("together epsilon ")[1].split()[0]) for text in texts]
    # Three fits of epsilon 5: more than one, less than the plain sum.
    assert 5 < totals[0] < totals[1] < 15


def test_other_records_are_no_refit():
    model = PrivateBayesClassifier(**QUICK, bounds=(0, 100), classes=["no", "yes"])
    model.fit(TRAIN[NUMBERS], TRAIN.ill)
    other = patients(300, seed=5)
    model.fit(other[NUMBERS], other.ill)  # a warning would be an error here


def test_with_a_ledger_a_search_is_counted_and_ends_when_the_budget_does(tmp_path):
    ledger = LedgerFile.create(tmp_path / "l.db").register(
        "patients", RDPFilter.of_budget(epsilon=12.0, delta=1e-3)
    )
    model = PrivateBayesClassifier(**QUICK, bounds=(0, 100), classes=["no", "yes"], ledger=ledger)
    search = GridSearchCV(model, {"learning_rate": [0.1, 1.0]}, cv=2, error_score="raise")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the records do not look like", PrivacyWarning)
        with pytest.raises(BudgetExceededError, match="ledger"):
            search.fit(TRAIN[NUMBERS], TRAIN.ill)
    assert 5.0 < ledger.spent <= 12.0


def test_a_fit_with_all_that_a_ledger_has_is_not_refused(tmp_path):
    ledger = LedgerFile.create(tmp_path / "l.db").register(
        "patients", RDPFilter.of_budget(epsilon=1.0, delta=1e-3)
    )
    model = PrivateBayesClassifier(
        **{**QUICK, "epsilon": 1.0}, bounds=(0, 100), classes=["no", "yes"], ledger=ledger
    )
    model.fit(TRAIN[NUMBERS], TRAIN.ill)
    assert 0.95 < ledger.spent <= 1.0
    assert model.privacy_.epsilon <= 1.0


def test_arrays_with_a_schema_are_read_in_the_order_of_its_columns(classifier):
    values = TEST[INPUTS].to_numpy(dtype=object)
    np.testing.assert_array_equal(classifier.predict(values), classifier.predict(TEST))
    with pytest.raises(InvalidArgumentError, match="lacks the columns 'age', 'city'"):
        classifier.predict(pd.DataFrame({"dose": [1.0]}))
    with pytest.raises(InvalidArgumentError, match="must have the 3 columns"):
        classifier.predict([[1.0]])


def test_calibration_on_consented_records_works_on_top(classifier):
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    calibrated = CalibratedClassifierCV(FrozenEstimator(classifier), cv=2)
    calibrated.fit(TEST[INPUTS], TEST.ill)
    assert calibrated.score(TEST[INPUTS], TEST.ill) > 0.8
