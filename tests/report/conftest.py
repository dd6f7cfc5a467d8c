"""A run's directory from a tiny real fit, and documents as the other verbs write them."""

import json
import shutil

import numpy as np
import pytest

import tacit
from tacit.models import MLP, Bernoulli, GaussianPrior

PUBLIC = {"name": "held-out part", "num_records": 500, "public": True, "statement": None}

EVALUATION = {
    "kind": "classification",
    "data": PUBLIC,
    "metrics": {
        "accuracy": {"value": 0.84, "low": 0.81, "high": 0.87},
        "ece": {"value": 0.02, "low": 0.0, "high": 0.05},
        "nll": {"value": 0.35, "low": 0.31, "high": 0.39},
        "of_my_own": {"value": 12.0, "low": None, "high": None},
    },
    "reliability": [
        {"confidence": 0.55, "accuracy": 0.5, "low": 0.4, "high": 0.6, "count": 100},
        {"confidence": 0.75, "accuracy": 0.78, "low": 0.7, "high": 0.85, "count": 150},
        {"confidence": 0.95, "accuracy": 0.94, "low": 0.91, "high": 0.97, "count": 250},
    ],
    "uncertainty": {
        "aleatoric": {"edges": [0.0, 0.2, 0.4, 0.7], "counts": [300, 120, 80]},
        "epistemic": {"edges": [0.0, 0.01, 0.02, 0.1], "counts": [400, 80, 20]},
    },
    "selective": [{"coverage": 0.5, "accuracy": 0.97}, {"coverage": 1.0, "accuracy": 0.84}],
    "subgroups": [
        {
            "column": "sex",
            "value": "<b>female</b>",
            "num_records": 40,
            "metrics": {"accuracy": {"value": 0.9, "low": 0.8, "high": 0.95}},
        },
        {
            "column": "sex",
            "value": "male",
            "num_records": 460,
            "metrics": {"accuracy": {"value": 0.83, "low": 0.8, "high": 0.86}},
        },
    ],
}
CERTIFICATE = {
    "data": PUBLIC,
    "norm": "l-infinity",
    "method": "Linear bounds (CROWN).",
    "points": [
        {"radius": 0.0, "accuracy": 0.84, "certified": 0.84, "low": 0.8, "high": 0.87},
        {"radius": 0.1, "accuracy": 0.84, "certified": 0.5, "low": 0.45, "high": 0.55},
    ],
}
AUDIT = {
    "attack": "one-run audit with canaries",
    "data": PUBLIC,
    "claimed": {"epsilon": 2.0, "delta": 1e-3},
    "lower_bound": 0.31,
    "confidence": 0.95,
    "verdict": "no violation found",
    "details": {"num_canaries": 100},
}


@pytest.fixture(scope="session")
def fitted():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    records = tacit.data.as_records(x, (x[:, 0] > 0).astype(np.int32))
    model = tacit.bayesian(
        MLP(num_inputs=3, hidden=(), num_outputs=1),
        prior=GaussianPrior(std=1.0),
        likelihood=Bernoulli(),
    )
    release = tacit.GaussianSum(
        sampling=tacit.PoissonBatch(num_records=400, batch_size=40, max_batch_size=400),
        clip_norm=1.0,
        noise_multiplier=2.0,
    )
    plan = tacit.Plan(
        method=tacit.SGLD.fixed_noise(release=release, step_size=0.01), num_steps=20, thinning=5
    )
    told = []
    fit = tacit.fit(
        plan,
        model,
        records,
        budget=tacit.Budget(epsilon=5.0, delta=1e-3),
        progress=lambda step, num_steps, epsilon: told.append({"step": step, "epsilon": epsilon}),
    )
    return fit, told


@pytest.fixture
def bare_run(tmp_path, fitted):
    """What ``tacit fit`` leaves at the least."""
    fit, _ = fitted
    directory = tmp_path / "a run"
    fit.posterior.save(directory)
    fit.statement.save(directory)
    return directory


@pytest.fixture
def full_run(bare_run, fitted):
    """A directory in which every verb was run."""
    documents = {"evaluation": EVALUATION, "certificate": CERTIFICATE, "audit": AUDIT}
    for name, document in (documents | {"progress": fitted[1]}).items():
        (bare_run / f"{name}.json").write_text(json.dumps(document))
    (bare_run / "study.toml").write_text('method = "sgld" # <script>alert(1)</script>\n')
    (bare_run / "schema.toml").write_text("[columns.age]\nlow = 0\nhigh = 100\n")
    return bare_run


@pytest.fixture
def chromium():
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if found is None:
        pytest.skip("no Chromium here: the report is not looked at (apt-get install chromium)")
    return found
