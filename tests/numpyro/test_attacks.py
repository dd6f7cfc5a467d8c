"""Attacks on private SVI: what an honest or a dishonest user might do, and what comes of it."""

import pickle

import dp_accounting as dpa
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoDelta

from numpyro_cases import KEY, NUM_RECORDS, guide_of_d3p, of_d3p, private, table
from tacit import PoissonBatch
from tacit.errors import CrossRecordError, InvalidArgumentError
from tacit.numpyro import DPSVI, PrivateLoss
from tacit.privacy.accounting import epsilon
from tacit.privacy.budget import InMemoryLedger
from tacit.privacy.cost import count_releases

quiet = pytest.mark.filterwarnings("ignore:the loss is NaN:tacit.errors.PrivacyWarning")
pytestmark = [quiet, pytest.mark.usefixtures("clip_unverified")]
X, Y = table()
STATED = PoissonBatch(num_records=NUM_RECORDS, batch_size=NUM_RECORDS / 10, max_batch_size=8)


def point(x, y=None, num_obs_total=None):
    numpyro.sample("middle", dist.Delta(numpyro.param("point", 0.0)))


def on_own_batches(model=of_d3p, guide=guide_of_d3p, **settings):
    return private(
        model=model,
        guide=guide,
        num_obs_total=NUM_RECORDS,
        **{"sampling": STATED, "noise_multiplier": 0.8, "epsilon": None} | settings,
    )


def params_of(svi, state):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(svi.get_params(state))])


def test_gradient_and_loss_of_one_batch_are_one_release_with_less_noise():
    svi = on_own_batches(loss_release=PrivateLoss(clip=3.0, noise_ratio=1.0, every=2))
    svi.init(KEY, X[:8], Y[:8])
    found = count_releases(svi._require_prepared().resolved.method.cost(3))
    # Steps 0 and 2 have both, on one batch: as one Gaussian of two equal parts.
    assert found == {STATED.cost(0.8): 1, STATED.cost(0.8 / np.sqrt(2)): 2}
    joint = dpa.SelfComposedDpEvent(STATED.cost(0.8 / np.sqrt(2)), 100)
    apart = dpa.SelfComposedDpEvent(STATED.cost(0.8), 200)
    assert epsilon(joint, 1e-5) > 1.2 * epsilon(apart, 1e-5)


def test_evaluations_on_own_batches_are_not_amplified():
    svi = on_own_batches(loss_release=PrivateLoss(clip=3.0, every=None, num_evaluations=2))
    svi.init(KEY, X[:8], Y[:8])
    found = count_releases(svi._require_prepared().resolved.method.cost(1))
    assert found == {STATED.cost(0.8): 1, dpa.GaussianDpEvent(0.8 * 4.0): 2}


def test_a_state_shows_its_secret_key_neither_printed_nor_pickled():
    svi = private(seed=None)
    state = svi.init(KEY, X, Y)
    words = np.asarray(jax.random.key_data(state.private_key))
    assert not any(str(word) in repr(state) for word in words)
    written = pickle.dumps(state)
    assert words.tobytes()[:8] not in written
    read = pickle.loads(written)
    assert (np.asarray(jax.random.key_data(read.private_key)) != words).all()
    np.testing.assert_array_equal(params_of(svi, read), params_of(svi, state))


def test_inside_jit_every_fingerprint_can_be_compared(monkeypatch):
    largest = 2**32 - 1
    monkeypatch.setattr("tacit.numpyro.program.PreparedProgram.fingerprint", largest)
    svi = private()
    after, _ = jax.jit(svi.update)(svi.init(KEY, X, Y), X, Y)
    assert int(after.step) == 1


def test_inside_jit_the_key_moves_on_so_that_old_noise_cannot_be_made_again():
    svi = private(seed=None)
    state = svi.init(KEY, X, Y)
    after, _ = jax.jit(svi.update)(state, X, Y)
    keys = [np.asarray(jax.random.key_data(each.private_key)) for each in (state, after)]
    assert (keys[0] != keys[1]).all()


def test_two_compiled_steps_from_one_state_share_no_noise():
    def model(x):
        mean = numpyro.sample("mean", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("x", dist.Normal(mean, 1.0).to_event(1), obs=x)

    rate, clip_norm, learning_rate = 32 / 1000, 5.0, 1e-3
    svis = [
        DPSVI(
            model,
            AutoDelta(model),
            numpyro.optim.SGD(learning_rate),
            noise_multiplier=2.0,
            clip_norm=clip_norm,
            num_obs_total=1000,
            sampling=PoissonBatch(num_records=1000, batch_size=32),
        )
        for _ in range(2)
    ]
    batch = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)
    neighbour = batch.copy()
    neighbour[0] = [1, -1, 1]  # not clipped, nor is any other row
    state = svis[0].init(KEY, batch)
    svis[1].init(KEY, batch)

    def moved(svi, *arguments):
        after, _ = jax.jit(svi.update)(*arguments)
        return np.asarray(svi.get_params(after)["mean_auto_loc"]) * rate / learning_rate

    first, second, again = (moved(svis[0], state, rows) for rows in (batch, neighbour, batch))
    other = moved(svis[1], state, batch)
    # The same step is the same release; each other one has noise of its own on all three numbers.
    np.testing.assert_array_equal(first, again)
    # Two noises of standard deviation 10 differ by less than 0.01 with probability 6e-4; all of
    # three do with probability 2e-10.
    assert np.abs(second - first - (neighbour[0] - batch[0])).max() > 0.01
    assert np.abs(other - first).max() > 0.01
    masked, moved_on = (
        jax.jit(svis[0].update)(each, batch, mask=mask)[0]
        for each, mask in (
            (state, np.arange(32) != 3),
            (state._replace(rng_key=jax.random.key(9)), np.ones(32, bool)),
        )
    )
    for after in (masked, moved_on):
        found = np.asarray(svis[0].get_params(after)["mean_auto_loc"]) * rate / learning_rate
        assert np.abs(found - first).max() > 4.0


def test_inside_jit_a_state_of_another_configuration_is_left_as_it_is():
    silent = private(seed=None, noise_multiplier=9.0, epsilon=None)
    loud = private(seed=None, noise_multiplier=0.01, epsilon=None)
    state, _ = silent.init(KEY, X, Y), loud.init(KEY, X, Y)
    after, loss = jax.jit(loud.update)(state, X, Y)
    assert int(after.step) == 0
    assert np.isnan(loss)
    np.testing.assert_array_equal(params_of(silent, after), params_of(silent, state))


def test_a_seeded_state_is_not_taken_for_a_secret_one():
    seeded, secret = private(seed=0), private(seed=None)
    state = seeded.init(KEY, X, Y)
    secret.init(KEY, X, Y)
    with pytest.raises(InvalidArgumentError, match="keys or batches come from elsewhere"):
        secret.statement(state)


def test_evaluations_of_a_state_that_another_object_made_are_charged():
    losses = PrivateLoss(clip=3.0, every=None, num_evaluations=3)
    ledger = InMemoryLedger()
    first, second = (private(seed=0, loss_release=losses, ledger=ledger) for _ in range(2))
    state = first.run(KEY, 2, X, Y, progress_bar=False).state
    second.init(KEY, X, Y)
    num_charges = len(ledger.costs)
    assert np.isfinite(second.evaluate(state, X, Y))
    method = second._require_prepared().resolved.method
    assert ledger.costs[num_charges:] == [method.cost_of_evaluations]
    second.evaluate(state, X, Y)
    assert len(ledger.costs) == num_charges + 1
    other = private(seed=0, noise_multiplier=0.5, epsilon=None, loss_release=losses)
    other.init(KEY, X, Y)
    with pytest.raises(InvalidArgumentError, match="cost is not known here"):
        other.evaluate(state, X, Y)


def test_starts_that_close_over_the_table_are_refused():
    def guide(x, y=None):
        loc = numpyro.param("loc", lambda key: jnp.mean(X, axis=0))
        numpyro.sample("location", dist.Delta(loc.sum()))

    with pytest.raises(CrossRecordError, match="closes over an array"):
        private(guide=guide).init(KEY, X, Y)


def test_with_own_batches_the_whole_table_may_not_be_closed_over():
    def model(x, y=None, num_obs_total=None):
        middle = numpyro.sample("middle", dist.Normal(0.0, 1.0))
        with numpyro.plate("records", num_obs_total, x.shape[0]):
            numpyro.sample("y", dist.Normal(middle + jnp.mean(Y), 1.0), obs=y)

    svi = on_own_batches(model=model, guide=point)
    with pytest.raises(CrossRecordError, match="closes over an array"):
        svi.init(KEY, X[:8], Y[:8])


@pytest.mark.parametrize("num_rows", [0, STATED.capacity + 1])
def test_batches_that_the_stated_sampling_cannot_draw_are_refused(num_rows):
    svi = on_own_batches()
    state = svi.init(KEY, X[:8], Y[:8])
    with pytest.raises(InvalidArgumentError, match=f"got {num_rows}"):
        svi.update(state, X[:num_rows], Y[:num_rows])


def test_a_plate_that_declares_another_number_of_records_is_refused():
    def model(x, y=None):
        middle = numpyro.sample("middle", dist.Normal(0.0, 1.0))
        with numpyro.plate("records", 5000, x.shape[0]):
            numpyro.sample("y", dist.Normal(middle, 1.0), obs=y)

    with pytest.raises(InvalidArgumentError, match="num_obs_total=5000"):
        private(model=model, guide=point).init(KEY, X, Y)
