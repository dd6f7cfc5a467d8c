"""A loss that could mix records or leak one is refused before any record is read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.errors import CrossRecordError
from tacit.privacy.clipping import require_isolated
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch
from tacit.rng import seeded_key

TABLE = jnp.arange(21.0).reshape(7, 3)
PARAMS = jnp.ones(3)


def refuse(loss):
    require_isolated(loss, PARAMS, TABLE[0], seeded_key(0), num_records=7)


def printing(w, row, key):
    jax.debug.print("{}", row)
    return w @ row


def calling_back(w, row, key):
    return jax.pure_callback(lambda value: value, jax.ShapeDtypeStruct((), jnp.float32), w @ row)


def batch_norm(w, row, key):
    return w @ (row - jax.lax.pmean(row, "batch"))


def looped(w, row, key):
    return jax.lax.scan(lambda c, _: (c + jnp.sum(TABLE @ w), None), 0.0, None, length=2)[0]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (batch_norm, "GroupNorm"),
        (printing, "side effect"),
        (jax.jit(printing), "side effect"),
        (calling_back, "side effect"),
        (jax.checkpoint(calling_back), "side effect"),
        (lambda w, r, k: jax.lax.cond(r[0] > 0, lambda: printing(w, r, k), lambda: 0.0), "effect"),
        (lambda w, r, k: jnp.sum(TABLE @ w) * r[0], "closes over an array of shape"),
        (jax.jit(lambda w, r, k: jnp.sum(TABLE @ w) * r[0]), "closes over an array of shape"),
        (looped, "closes over an array of shape"),
    ],
)
def test_a_loss_that_mixes_or_leaks_records_is_refused(loss, message):
    with pytest.raises(CrossRecordError, match=message):
        refuse(loss)


@pytest.mark.parametrize(
    "loss",
    [
        lambda w, r, k: w @ r,
        lambda w, r, k: w @ (r + jax.random.normal(k, r.shape)),
        lambda w, r, k: jnp.sum(
            jax.vmap(lambda a: a - jax.lax.pmean(a, "own"), axis_name="own")(r)
        ),
        lambda w, r, k: jax.lax.scan(lambda c, x: (c * x, None), w[0], r)[0],
    ],
)
def test_an_isolated_loss_passes(loss):
    refuse(loss)
    assert np.shape(loss(PARAMS, TABLE[0], seeded_key(0))) == ()


def test_the_engine_refuses_before_reading_a_record():
    release = GaussianSum(sampling=FullBatch(num_records=7), clip_norm=1.0, noise_multiplier=1.0)
    seen = []

    def spy(w, row, key):
        seen.append(row)
        return batch_norm(w, row, key)

    with pytest.raises(CrossRecordError):
        release.gradient(seeded_key(0), spy, PARAMS, TABLE)
    assert all(isinstance(row, jax.core.Tracer) for row in seen)


def test_perturbing_one_record_leaves_the_contributions_of_all_others_unchanged():
    def gradient(row, key):
        return jax.grad(lambda w: jnp.tanh(w @ row))(PARAMS)

    keys = jax.random.split(seeded_key(0), 7)
    before = jax.vmap(gradient)(TABLE, keys)
    after = jax.vmap(gradient)(TABLE.at[3].set(1e6), keys)
    others = np.arange(7) != 3
    np.testing.assert_array_equal(before[others], after[others])
