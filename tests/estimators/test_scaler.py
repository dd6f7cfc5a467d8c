import numpy as np
import pandas as pd
import pytest

from tacit.errors import InvalidArgumentError
from tacit.estimators import PrivateScaler
from tacit.privacy.budget import InMemoryLedger


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame({"age": rng.uniform(20, 60, 2000), "pay": rng.exponential(3e4, 2000)})


@pytest.fixture(scope="module")
def scaler(frame):
    ledger = InMemoryLedger()
    fitted = PrivateScaler(epsilon=1.0, ledger=ledger, random_state=0).fit(frame)
    assert len(ledger.costs) == 1
    return fitted


def test_values_are_clipped_to_one_and_fill_the_range(scaler, frame):
    scaled = scaler.transform(frame)
    assert np.abs(scaled).max() == 1.0
    assert np.all(scaled.std(axis=0) > 0.3)


def test_missing_values_stay_missing_and_frames_come_out_as_frames(scaler):
    out = scaler.set_output(transform="pandas").transform(
        pd.DataFrame({"age": [np.nan, 1e9], "pay": [0.0, -1e9]})
    )
    assert list(out.columns) == ["age", "pay"]
    assert np.isnan(out.age[0])
    assert (out.age[1], out.pay[1]) == (1.0, -1.0)
    scaler.set_output(transform="default")


def test_its_statement_says_what_it_cost(scaler):
    assert 0.9 < scaler.privacy_.epsilon <= 1.0
    assert scaler.privacy_.releases == 2
    assert "INSECURE" in scaler.privacy_.epsilon_text


def test_a_wrong_budget_is_refused(frame):
    with pytest.raises(InvalidArgumentError, match="epsilon must be"):
        PrivateScaler(epsilon=0.0).fit(frame)
