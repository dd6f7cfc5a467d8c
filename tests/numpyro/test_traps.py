"""What d3p gets wrong, each as a test."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

from numpyro_cases import (
    KEY,
    amortised,
    factor_model,
    hand_written,
    non_private,
    private,
    regression,
    subsampled,
    table,
)
from tacit.errors import InvalidArgumentError
from tacit.rng import seeded_key

pytestmark = pytest.mark.filterwarnings("ignore:the loss is NaN:tacit.errors.PrivacyWarning")

CLIP_NORM = 0.7
X, Y = table()


def one_step(svi, *args, **kwargs):
    """The whole gradient: parameters before a step of descent less those after it."""
    state = svi.init(KEY, *args, **kwargs)
    before = svi.optim.get_params(state.optim_state)
    after = svi.optim.get_params(svi.update(state, *args, **kwargs)[0].optim_state)
    return jax.tree.map(jnp.subtract, before, after)


def norm(tree):
    return float(jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree))))


def descent(model=regression, guide=hand_written, **settings):
    """Clipped descent without noise, one unit step of which shows the gradient."""
    settings = {"clip_norm": CLIP_NORM, "seed": 0} | settings
    return non_private(model, guide, numpyro.optim.SGD(1.0), **settings)


@pytest.fixture(scope="module")
def clipped():
    """Clipped descent on the regression, and its first gradient."""
    svi = descent()
    return svi, one_step(svi, X, Y)


def test_a_label_passed_by_keyword_moves_the_sum_by_at_most_the_clip_norm(clipped):
    svi, usual = clipped
    for bad in (1e6, math.nan):
        moved = jax.tree.map(jnp.subtract, one_step(svi, X, y=Y.at[3].set(bad)), usual)
        # Twice: the record is there before and after; each way it adds at most the clip norm.
        assert 0 < norm(moved) <= 2 * CLIP_NORM * (1 + 1e-5)


def test_prior_and_entropy_are_exact_and_outside_the_clip():
    x, y = table()
    tiny = one_step(descent(clip_norm=1e-6), x, y)

    def without_records(x, y=None):
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("scale", dist.HalfNormal(1.0))
        return weights

    theirs = SVI(without_records, hand_written, numpyro.optim.SGD(1.0), Trace_ELBO())
    state = theirs.init(KEY, x, y)
    before = theirs.optim.get_params(state.optim_state)
    after = theirs.optim.get_params(theirs.update(state, x, y)[0].optim_state)
    expected = jax.tree.map(jnp.subtract, before, after)
    # The 24 clipped records together add at most 24e-6.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), tiny, expected)


def test_subsampling_inside_a_model_is_taken_over_by_the_engine(clipped):
    # Neither the plate's scale nor its own batch is left: all records count, once each.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        one_step(descent(subsampled), X, Y),
        clipped[1],
    )


def test_local_latents_under_an_autoguide_are_refused_by_name():
    x, _ = table()
    svi = private(factor_model, AutoNormal(factor_model))
    with pytest.raises(InvalidArgumentError, match=r"(?s)z\b.*guide"):
        svi.init(KEY, x)


def test_local_latents_are_inside_the_clip():
    x, _ = table()
    svi = descent(factor_model, amortised)
    moved = jax.tree.map(jnp.subtract, one_step(svi, x.at[3].set(1e5)), one_step(svi, x))
    assert 0 < norm(moved) <= 2 * CLIP_NORM * (1 + 1e-5)


def test_a_model_without_a_plate_is_refused():
    def loose(x, y=None):
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(x @ weights, scale).to_event(1), obs=y)

    with pytest.raises(InvalidArgumentError, match="plate"):
        private(loose).init(KEY, *table())


def test_trees_numbers_and_none_are_arguments_like_others(clipped):
    def model(data, prior_std, y=None, names=None):
        x = data["inputs"]["x"]
        weights = numpyro.sample("weights", dist.Normal(0.0, prior_std).expand([2]).to_event(1))
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ weights, scale), obs=y)

    def guide(data, prior_std, y=None, names=None):
        hand_written(data, y)

    svi = descent(model, guide)
    inside = one_step(svi, {"inputs": {"x": X}}, 1.0, y=Y, names=None)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), inside, clipped[1]
    )
    with pytest.raises(InvalidArgumentError, match="public arguments must be those"):
        svi.init(KEY, {"inputs": {"x": X}}, 2.0, y=Y, names=None)


def test_an_empty_batch_is_an_ordinary_release():
    # The chance that any of the records is drawn is below 1e-3.
    svi = private(batch_size=1e-4, optim=numpyro.optim.SGD(1e-8))
    state = svi.init(KEY, X, Y)
    for _ in range(10):
        state, _ = svi.update(state, X, Y)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(svi.get_params(state)))
    assert svi.statement(state).releases == 10


@pytest.mark.parametrize(
    ("epsilon", "num_steps", "batch_size"), [(0.5, 30_000, 20.0), (1.0, 5, None), (8.0, 1000, 200)]
)
def test_noise_is_found_for_ordinary_settings_and_meets_its_target(epsilon, num_steps, batch_size):
    from tacit.numpyro.settings import PrivacySettings, as_numpyro_optimiser

    settings = PrivacySettings(
        clip_norm=1.0, epsilon=epsilon, delta=1e-5, num_steps=num_steps, batch_size=batch_size
    )
    found = settings.resolve(
        num_rows=1000,
        optim=as_numpyro_optimiser(numpyro.optim.Adam(0.1)),
        loss=None,
        num_steps=None,
    )
    spent = found.budget.spent(found.method.cost(num_steps))
    assert 0.99 * epsilon <= spent <= epsilon
    assert found.max_steps == num_steps


def programs_in(closed):
    yield closed
    for equation in closed.jaxpr.eqns:
        for value in jax.tree.leaves(
            equation.params, is_leaf=lambda v: hasattr(v, "jaxpr") or hasattr(v, "eqns")
        ):
            if hasattr(value, "jaxpr"):
                yield from programs_in(value)
            elif hasattr(value, "eqns"):
                yield from programs_in(jax.extend.core.ClosedJaxpr(value, ()))


def test_a_step_neither_holds_the_table_nor_makes_anything_as_long():
    num_records = 40_000  # more than the constants of the noise are
    x, y = table(num_records)
    svi = private(batch_size=10)
    state = svi.init(KEY, x, y)
    # (An update in the user's own compiled code also reads the table, for the key of its noise.)
    prepared = svi._prepared
    records = prepared.records_of(svi._arguments((x, y), {}))
    program = jax.make_jaxpr(
        lambda *arguments: prepared.compiled_step(*arguments, None, skip_non_finite=False)
    )(seeded_key(0), state, records)
    assert all(
        np.size(constant) < num_records for part in programs_in(program) for constant in part.consts
    )
    made = [
        variable.aval.size
        for part in programs_in(program)
        for equation in part.jaxpr.eqns
        for variable in equation.outvars
        if getattr(variable.aval, "size", 0) >= num_records
    ]
    assert made == []


@pytest.fixture(scope="module")
def own_batches():
    """The gradient of a batch of eight rows for any mask and any padding."""
    svi = descent(num_obs_total=24, batch_size=4)
    state = svi.init(KEY, X[:8], Y[:8])
    before = svi.optim.get_params(state.optim_state)

    def gradient(mask, junk=0.0):
        mask = jnp.array(mask + [False] * (8 - len(mask)))
        rows = jnp.where(mask[:, None], X[:8], junk), jnp.where(mask, Y[:8], junk)
        after = svi.update(state, *rows, mask=mask)[0]
        return jax.tree.map(jnp.subtract, before, svi.optim.get_params(after.optim_state))

    return gradient


def test_padding_rows_change_nothing_whatever_they_hold(own_batches):
    usual = own_batches([True] * 6)
    for junk in (math.nan, 1e30):
        jax.tree.map(np.testing.assert_array_equal, own_batches([True] * 6, junk), usual)


def test_the_estimate_divides_by_the_public_rate_and_not_by_the_rows_at_hand(own_batches):
    none, first, second, both = map(
        own_batches, ([False, False], [True, False], [False, True], [True, True])
    )
    # Contributions add up; divided by the rows at hand they would be averaged.
    added = jax.tree.map(lambda a, b, c: a + b - c, first, second, none)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), both, added)
    assert norm(jax.tree.map(jnp.subtract, both, first)) > 0.1
