"""Without noise and clip DPSVI is NumPyro's SVI: same seed, same trajectory."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import (
    AutoDelta,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)

import numpyro
from numpyro_cases import (
    KEY,
    NUM_RECORDS,
    guide_of_d3p,
    hand_written,
    non_private,
    of_d3p,
    regression,
    table,
)

NUM_STEPS = 4
CASES = {
    "hand-written guide": lambda: (regression, hand_written, numpyro.optim.Adam(0.05)),
    "delta": lambda: (regression, AutoDelta(regression), numpyro.optim.Momentum(1e-3, 0.9)),
    "normal with optax": lambda: (regression, AutoNormal(regression), optax.adam(0.05)),
    "multivariate normal": lambda: (
        regression,
        AutoMultivariateNormal(regression),
        numpyro.optim.ClippedAdam(0.05, clip_norm=0.5),
    ),
    "low rank": lambda: (
        regression,
        AutoLowRankMultivariateNormal(regression, rank=1),
        numpyro.optim.Adam(0.05),
    ),
}


def close(one, other, **tolerances):
    """Rounding only: sums over records run in another order."""
    settings = {"rtol": 2e-4, "atol": 2e-5} | tolerances
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **settings), one, other)


@pytest.mark.parametrize("case", CASES)
def test_steps_follow_those_of_svi(case):
    x, y = table()
    theirs = SVI(*CASES[case](), Trace_ELBO())
    model, guide, optim = CASES[case]()
    ours = non_private(model, guide, optim)
    state, other = ours.init(KEY, x, y), theirs.init(KEY, x, y)
    close(ours.get_params(state), theirs.get_params(other), atol=0, rtol=1e-6)
    update = jax.jit(theirs.update)
    for _ in range(NUM_STEPS):
        state, loss = ours.update(state, x, y)
        other, expected = update(other, x, y)
        close(loss, expected)
    close(ours.get_params(state), theirs.get_params(other))
    close(ours.evaluate(state, x, y), theirs.evaluate(other, x, y))


def test_a_run_returns_what_svi_returns():
    x, y = table()
    loss = Trace_ELBO(num_particles=2)
    svi = SVI(regression, hand_written, numpyro.optim.Adam(0.05), loss)
    theirs = svi.run(KEY, NUM_STEPS, x, y, progress_bar=False)
    ours = non_private(loss=loss).run(KEY, NUM_STEPS, x, y, progress_bar=False)
    close(ours.params, theirs.params)
    close(ours.losses, theirs.losses)
    assert ours._fields == theirs._fields
    assert ours.losses.shape == (NUM_STEPS,)


def test_a_run_can_go_on_from_a_state():
    x, y = table()
    svi = non_private()
    whole = svi.run(KEY, NUM_STEPS, x, y, progress_bar=False)
    half = svi.run(KEY, NUM_STEPS // 2, x, y, progress_bar=False)
    rest = svi.run(KEY, NUM_STEPS // 2, x, y, progress_bar=False, init_state=half.state)
    close(rest.params, whole.params, rtol=1e-6)
    close(jnp.concatenate([half.losses, rest.losses]), whole.losses, rtol=1e-6)
    assert int(rest.state.step) == NUM_STEPS


def test_batches_of_the_users_own_follow_svi_on_the_same_batches():
    x, y = table()
    theirs = SVI(of_d3p, guide_of_d3p, numpyro.optim.Adam(0.05), Trace_ELBO(), num_obs_total=24)
    ours = non_private(of_d3p, guide_of_d3p, num_obs_total=NUM_RECORDS)
    state, other = ours.init(KEY, x[:8], y[:8]), theirs.init(KEY, x[:8], y[:8])
    update = jax.jit(theirs.update)
    for start in (0, 8, 16):
        batch = x[start : start + 8], y[start : start + 8]
        state, loss = ours.update(state, *batch)
        other, expected = update(other, *batch)
        close(loss, expected)
    close(ours.get_params(state), theirs.get_params(other))


def test_values_to_start_with_are_used():
    x, y = table()
    start = {"mean": jnp.array([0.7, 0.8]), "std": jnp.array([0.3, 0.4])}
    svi = non_private()
    params = svi.get_params(svi.init(KEY, x, y, init_params=start))
    close({name: params[name] for name in start}, start)
    theirs = SVI(regression, hand_written, numpyro.optim.Adam(0.05), Trace_ELBO())
    close(params, theirs.get_params(theirs.init(KEY, x, y, init_params=start)))


def test_old_style_keys_start_the_same_trajectory():
    x, y = table()
    states = [non_private().init(key, x, y) for key in (jax.random.PRNGKey(3), KEY)]
    close(states[0].optim_state, states[1].optim_state, rtol=0, atol=0)
