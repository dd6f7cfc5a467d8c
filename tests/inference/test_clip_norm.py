"""Choosing the clip norm costs nothing without records, and is charged with them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.handlers import seed, trace

from tacit.errors import BudgetExceededError, InvalidArgumentError
from tacit.inference import data_free_clip_norm, private_clip_norm, synthetic_records
from tacit.models import MLP, Categorical, FixedGaussian, FlatPrior, Model, bayesian
from tacit.models.programs.gradients import gradient_norms
from tacit.privacy.budget import Budget
from tacit.privacy.sampling import FullBatch
from tacit.typing import Record

BUDGET = Budget(epsilon=5.0, delta=1e-5)


def linear(num_inputs=3):
    """The gradient of the loss w @ x is x itself, so that norms are known."""
    return Model(
        lambda key: jnp.zeros(num_inputs),
        lambda w: jnp.zeros(()),
        lambda w, record, key: w @ record.x,
        lambda w, x, key: jnp.stack([w @ x, 1 - w @ x]),
    )


def known(norms):
    x = np.zeros((len(norms), 3), np.float32)
    x[:, 0] = norms
    return Record(jnp.asarray(x), jnp.zeros(len(norms), jnp.int32), jnp.ones(len(norms)))


@pytest.mark.parametrize("quantile", [0.25, 0.5, 0.9])
def test_the_private_quantile_is_close_to_the_true_one(quantile):
    norms = np.random.default_rng(0).lognormal(0.0, 1.0, size=3000)
    clip_norm, _ = private_clip_norm(
        linear(), known(norms), budget=BUDGET, noise_multiplier=5.0, quantile=quantile, seed=0
    )
    assert clip_norm == pytest.approx(np.quantile(norms, quantile), rel=0.3)


def test_the_private_quantile_is_charged_as_one_full_batch_release():
    _, cost = private_clip_norm(
        linear(), known(np.ones(50)), budget=BUDGET, noise_multiplier=3.0, seed=0
    )
    assert cost.event == FullBatch(num_records=50).cost(3.0)


@pytest.mark.parametrize("num_records", [60, 6])
def test_as_many_records_as_bins_or_units_are_no_reason_to_refuse(num_records):
    model = bayesian(
        MLP(num_inputs=3, hidden=(6,), num_outputs=2),
        prior=FlatPrior(),
        likelihood=Categorical(num_classes=2),
    )
    _, cost = private_clip_norm(
        model, known(np.ones(num_records)), budget=BUDGET, noise_multiplier=3.0
    )
    assert cost.is_secure


def test_a_seeded_choice_says_that_it_is_insecure():
    _, cost = private_clip_norm(
        linear(), known(np.ones(5)), budget=BUDGET, noise_multiplier=3.0, seed=0
    )
    assert not cost.is_secure


def test_the_private_quantile_is_refused_above_the_budget():
    with pytest.raises(BudgetExceededError):
        private_clip_norm(
            linear(),
            known(np.ones(50)),
            budget=Budget(epsilon=0.1, delta=1e-5),
            noise_multiplier=3.0,
        )


def test_bad_records_do_not_spoil_the_private_quantile():
    norms = np.full(500, 2.0)
    norms[:5] = np.nan
    clip_norm, _ = private_clip_norm(
        linear(), known(norms), budget=BUDGET, noise_multiplier=3.0, seed=0
    )
    assert clip_norm == pytest.approx(2.0, rel=0.3)


def test_the_data_free_choice_is_a_quantile_of_the_norms_of_synthetic_records():
    norms = np.linspace(1.0, 9.0, 101)
    assert data_free_clip_norm(linear(), known(norms)) == pytest.approx(8.92)
    assert data_free_clip_norm(linear(), known(norms), quantile=0.5) == pytest.approx(5.0)


def groups(group, x, y):
    spread = numpyro.sample("spread", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("groups", 3):
        level = numpyro.sample("level", dist.Normal(0.0, spread))
    with numpyro.plate("people", len(x)):
        noise = numpyro.sample("noise", dist.Normal(0.0, 0.1))  # a latent of each record
        numpyro.sample("y", dist.Bernoulli(logits=level[group] + noise + 0 * x), obs=y)


def test_gradient_norms_of_a_program_are_those_of_its_records():
    rng = np.random.default_rng(0)
    group, x = jnp.asarray(rng.integers(3, size=50)), jnp.asarray(rng.uniform(size=50))
    key = jax.random.key(3)
    sites = trace(seed(groups, key)).get_trace(group, x, None)
    logits = sites["level"]["value"][group] + sites["noise"]["value"]
    # Only the level of its own group has a gradient: the residual.
    residual = jax.nn.sigmoid(logits) - sites["y"]["value"]
    found = gradient_norms(groups, (group, x, None), key)
    np.testing.assert_allclose(found, np.abs(residual), rtol=1e-5)
    given = gradient_norms(groups, (group, x, jnp.ones(50)), key)
    np.testing.assert_allclose(given, 1 - jax.nn.sigmoid(logits), rtol=1e-5)


def test_the_clip_norm_of_a_program_leaves_its_own_records_as_they_are():
    x = jnp.asarray(np.random.default_rng(0).uniform(size=200))
    group = jnp.arange(200) % 3
    norm = data_free_clip_norm(groups, (group, x, None))
    assert 0.6 < norm < 1
    assert data_free_clip_norm(groups, (group, x, None), quantile=0.5) < norm


@pytest.mark.parametrize(
    ("model", "synthetic", "told"),
    [
        (linear(), (jnp.ones(3),), "synthetic must be a Record"),
        (groups, known(np.ones(5)), "synthetic must be a tuple"),
        (groups, (jnp.arange(3), jnp.ones(3), None), "plate must name"),
    ],
)
def test_what_is_no_call_is_refused(model, synthetic, told):
    with pytest.raises(InvalidArgumentError, match=told):
        data_free_clip_norm(model, synthetic)


@pytest.mark.parametrize("likelihood", [Categorical(num_classes=3), FixedGaussian(std=0.7)])
def test_synthetic_records_follow_the_models_own_predictions(likelihood):
    model = bayesian(
        MLP(num_inputs=4, hidden=(6,), num_outputs=likelihood.num_outputs),
        prior=FlatPrior(),
        likelihood=likelihood,
    )
    inputs = jax.random.uniform(jax.random.key(0), (64, 4), minval=-1.0)
    synthetic = synthetic_records(model, inputs)
    assert synthetic.y.shape == (64,)
    assert len(np.unique(synthetic.y)) >= 3
    assert 0.05 < data_free_clip_norm(model, synthetic) < 50


def test_useless_synthetic_records_are_refused():
    with pytest.raises(InvalidArgumentError, match="non-zero gradients"):
        data_free_clip_norm(linear(), known(np.zeros(5)))


def test_the_private_quantile_is_charged_to_the_ledger_before_a_record_is_read():
    class Full:
        charged = ()

        def begin(self, request):
            return self

        def charge(self, cost):
            self.charged = (*self.charged, cost)
            raise BudgetExceededError("the owner's budget is spent")

    ledger = Full()
    shapes = jax.eval_shape(lambda: known(np.ones(50)))  # touching a record would fail otherwise
    with pytest.raises(BudgetExceededError, match="owner"):
        private_clip_norm(linear(), shapes, budget=BUDGET, noise_multiplier=3.0, ledger=ledger)
    assert ledger.charged == (FullBatch(num_records=50).cost(3.0),)
