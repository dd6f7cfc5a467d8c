"""A loss that could mix records or leak one is refused before any record is read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.errors import CrossRecordError
from tacit.privacy.clipping.isolation import require_isolated, require_no_table
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch
from tacit.rng import seeded_key

TABLE = jnp.arange(21.0).reshape(7, 3)
LABELS = jnp.arange(7.0)
PARAMS = jnp.ones(3)


def refuse(loss, table=TABLE):
    require_isolated(loss, PARAMS, table[0], seeded_key(0), records=table)


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


@jax.custom_vjp
def tapped(value):
    return value


def tapped_forward(value):
    jax.debug.callback(lambda seen: None, value)
    return value, None


tapped.defvjp(tapped_forward, lambda _, g: (g,))


@jax.custom_vjp
def steered(w):
    return jnp.sum(w)


steered.defvjp(lambda w: (jnp.sum(w), None), lambda _, g: (g * jnp.sum(TABLE, axis=0),))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda w, r, k: tapped(w @ r), "side effect"),
        (lambda w, r, k: w @ r + steered(w), "closes over an array of shape"),
    ],
)
def test_what_only_the_gradient_does_is_found_out(loss, message):
    with pytest.raises(CrossRecordError, match=message):
        refuse(loss)


@pytest.mark.parametrize(
    "constant",
    [
        TABLE.T.copy(),
        np.asarray(TABLE).T.copy(),
        TABLE[:-1],
        TABLE[1:, :1],
        jnp.delete(TABLE, 3, axis=0),
        jnp.concatenate([TABLE, jnp.ones((1, 3))]),
        TABLE[:, 0],
        1 - 2 * TABLE,
        np.asarray(TABLE)[::-1][::-1, 1:],
    ],
    ids=[
        "transposed",
        "numpy",
        "but the last",
        "column but the first",
        "but one",
        "with one more",
        "column",
        "scaled",
        "view",
    ],
)
def test_the_table_in_another_form_is_found_out(constant):
    with pytest.raises(CrossRecordError, match="closes over an array of shape"):
        refuse(lambda w, r, k: w @ r + jnp.sum(constant))


@pytest.mark.parametrize("left_out", [0, 100, 199])
def test_labels_of_all_but_one_record_are_found_out(left_out):
    labels = np.random.default_rng(0).integers(0, 2, 200)
    known = jnp.asarray(np.delete(labels, left_out))
    with pytest.raises(CrossRecordError, match="closes over an array of shape"):
        refuse(lambda w, r, k: w[0] * r + jnp.sum(known), jnp.asarray(labels))


def constants_of_length(length):
    generator = np.random.default_rng(1)
    return {
        "ones": np.ones((length, 3)),
        "one-hot": np.eye(length),
        "weights": generator.normal(size=(8, length)),
        "draws": generator.normal(size=length),
        "signs": generator.choice([-1.0, 1.0], size=(length, 50)),
        "positions": np.arange(length),
    }


@pytest.mark.parametrize("length", [63, 64, 65])
@pytest.mark.parametrize("name", constants_of_length(1))
def test_arrays_that_only_happen_to_be_as_long_as_the_table_pass(name, length):
    generator = np.random.default_rng(0)
    rare = np.eye(64)[5]  # a category that one record has
    table = jnp.asarray(np.column_stack([generator.normal(size=64), rare, np.ones(64)]))
    constant = constants_of_length(length)[name]
    refuse(lambda w, r, k: w @ r + jnp.sum(jnp.asarray(constant)), table)
    require_no_table(lambda w: w + jnp.sum(jnp.asarray(constant)), PARAMS, records=table)


def test_a_traced_table_may_not_be_closed_over():
    def step(table):
        refuse(lambda w, r, k: w @ r + jnp.sum(table), table)
        return table

    with pytest.raises(CrossRecordError, match="closes over an array of shape"):
        jax.jit(step)(TABLE)


def test_the_table_of_which_a_batch_is_given_may_not_be_closed_over():
    generator = np.random.default_rng(0)
    table, other = generator.normal(size=(2, 50, 3)).astype(np.float32)
    batch = jnp.asarray(table[[4, 8, 15, 16, 23, 42]])
    require_no_table(lambda w: w + jnp.sum(other), PARAMS, records=batch, num_records=50)
    with pytest.raises(CrossRecordError, match="closes over an array"):
        require_no_table(lambda w: w + jnp.sum(table), PARAMS, records=batch, num_records=50)


@pytest.mark.parametrize(
    "function",
    [
        lambda w: w @ TABLE[0],
        lambda w: jnp.sum(TABLE[:, 0]) + w,
        jax.grad(lambda w: jnp.sum(TABLE @ w)),
        lambda w: jax.lax.fori_loop(0, 2, lambda i, c: c + jnp.sum(TABLE.T), w),
        lambda w: w + jnp.sum(jnp.asarray(LABELS)),
        lambda w: w + jnp.sum(np.asarray(LABELS)),
        lambda w: w + jnp.sum(LABELS.copy()),
    ],
)
def test_a_step_that_closes_over_the_table_is_refused(function):
    with pytest.raises(CrossRecordError, match="closes over an array"):
        require_no_table(function, PARAMS, records=(TABLE, LABELS))


@pytest.mark.parametrize("constant", [jnp.ones(7), jnp.ones((5, 3)), jnp.ones((6, 4)), np.ones(8)])
def test_a_step_may_close_over_tables_of_its_own(constant):
    require_no_table(lambda w: w[0] + jnp.sum(constant), PARAMS, records=(TABLE, LABELS))


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
