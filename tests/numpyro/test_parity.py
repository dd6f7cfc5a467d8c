"""Without noise and clip DPSVI is NumPyro's SVI: same seed, same trajectory."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import pytest
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal

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
from tacit.errors import InvalidArgumentError

pytestmark = pytest.mark.usefixtures("clip_unverified")
NUM_STEPS = 4
CASES = {
    "hand-written guide": lambda: (
        regression,
        hand_written,
        numpyro.optim.ClippedAdam(0.05, clip_norm=0.5),
        Trace_ELBO(),
    ),
    "autoguide, optax": lambda: (
        regression,
        AutoMultivariateNormal(regression),
        optax.adam(0.05),
        Trace_ELBO(),
    ),
}


def close(one, other, **tolerances):
    """Rounding only: sums over records run in another order."""
    settings = {"rtol": 2e-4, "atol": 2e-5} | tolerances
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **settings), one, other)


@pytest.mark.parametrize("case", CASES)
def test_steps_follow_those_of_svi(case):
    x, y = table()
    theirs, ours = SVI(*CASES[case]()), non_private(*CASES[case]())
    state, other = ours.init(KEY, x, y), theirs.init(KEY, x, y)
    close(ours.get_params(state), theirs.get_params(other), atol=0, rtol=1e-6)
    update = jax.jit(theirs.update)
    for _ in range(NUM_STEPS):
        state, loss = ours.update(state, x, y)
        other, expected = update(other, x, y)
        close(loss, expected)
    close(ours.get_params(state), theirs.get_params(other))
    close(ours.evaluate(state, x, y), theirs.evaluate(other, x, y))


def test_a_run_in_two_parts_returns_what_svi_returns():
    x, y = table()
    svi = SVI(regression, hand_written, numpyro.optim.Adam(0.05), Trace_ELBO())
    theirs = svi.run(KEY, NUM_STEPS, x, y, progress_bar=False)
    ours = non_private()
    half = ours.run(KEY, NUM_STEPS // 2, x, y, progress_bar=False)
    rest = ours.run(
        jax.random.key(7), NUM_STEPS // 2, x, y, progress_bar=False, init_state=half.state
    )
    close(rest.params, theirs.params)
    close(jnp.concatenate([half.losses, rest.losses]), theirs.losses)
    assert rest._fields == theirs._fields
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


def test_keys_of_the_old_style_and_values_to_start_with_are_taken_as_svi_takes_them():
    x, y = table()
    start = {"mean": jnp.array([0.7, 0.8]), "std": jnp.array([0.3, 0.4])}
    ours, theirs = (
        non_private(),
        SVI(regression, hand_written, numpyro.optim.Adam(0.05), Trace_ELBO()),
    )
    key = jax.random.PRNGKey(3)
    params, expected = (
        svi.get_params(svi.init(key, x, y, init_params=start)) for svi in (ours, theirs)
    )
    close(params, expected)
    close({name: params[name] for name in start}, start)
    with pytest.raises(InvalidArgumentError, match="got \\['men'\\]"):
        ours.init(key, x, y, init_params={"men": 0.0})
