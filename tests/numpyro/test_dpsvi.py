"""DPSVI: budgets, keys, losses, batches of the user's own, and what is refused."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import pytest
from jax import lax
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoDAIS, AutoLaplaceApproximation

from numpyro_cases import (
    KEY,
    NUM_RECORDS,
    guide_of_d3p,
    hand_written,
    of_d3p,
    private,
    regression,
    table,
)
from tacit import PoissonBatch
from tacit.errors import BudgetExceededError, InvalidArgumentError, PrivacyWarning
from tacit.numpyro import DPSVI, PrivateLoss
from tacit.privacy.accounting import PLD
from tacit.privacy.budget import InMemoryLedger
from tacit.privacy.cost import count_releases
from tacit.privacy.statement.text import FIXED
from tacit.privacy.stopping import AnytimeRDP

quiet = pytest.mark.filterwarnings("ignore:the loss is NaN:tacit.errors.PrivacyWarning")
pytestmark = [quiet, pytest.mark.usefixtures("clip_unverified")]
X, Y = table()


def params_of(svi, state):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(svi.get_params(state))])


@pytest.fixture(scope="module")
def seeded(clip_unverified):
    """A run of three steps with a known seed, shared because compiling takes the time."""
    svi = private(num_steps=3)
    state = svi.init(KEY, X, Y)
    return svi, state


def test_single_steps_compiled_steps_and_a_run_are_the_same(seeded):
    svi, state = seeded
    single = state
    for _ in range(3):
        single, _ = svi.update(single, X, Y)
    scanned, losses = jax.jit(
        lambda s: lax.scan(lambda s, _: svi.update(s, X, Y), s, None, length=3)
    )(state)
    run = svi.run(KEY, 3, X, Y, progress_bar=False)
    np.testing.assert_allclose(params_of(svi, single), params_of(svi, scanned), rtol=1e-5)
    np.testing.assert_allclose(params_of(svi, single), params_of(svi, run.state), rtol=1e-5)
    assert int(single.step) == int(scanned.step) == int(run.state.step) == 3
    assert np.isnan(losses).all()
    assert run.losses.shape == (3,)


def test_steps_beyond_the_budget_are_refused_and_inside_jit_change_nothing(seeded):
    svi, state = seeded
    end = state._replace(step=jnp.asarray(3, jnp.int32))
    with pytest.raises(BudgetExceededError, match="3 were made, and 1 more"):
        svi.update(end, X, Y)
    with pytest.raises(BudgetExceededError, match="for 3 steps"):
        svi.run(KEY, 4, X, Y, progress_bar=False)
    after, loss = jax.jit(svi.update)(end, X, Y)
    np.testing.assert_array_equal(params_of(svi, after), params_of(svi, end))
    assert int(after.step) == 3
    assert np.isnan(loss)
    assert svi.statement(after).releases == 3


def test_the_statement_counts_declared_steps_and_says_what_a_seed_is(seeded):
    svi, state = seeded
    one, three = (svi.statement(state._replace(step=jnp.asarray(n))) for n in (1, 3))
    assert (one.num_steps, one.releases) == (1, 3)
    assert (three.num_steps, three.releases) == (3, 3)
    assert one.epsilon == three.epsilon == svi.epsilon(state)
    assert "stated for the 3 steps that were declared; 1 were made" in str(one)
    assert three.length == FIXED
    assert "INSECURE" in three.epsilon_text
    assert one.delta == pytest.approx(1e-5)
    assert "ASSUMED" not in str(three)


def stopped_by_looking(svi):
    """A loop of at most eight steps that ends when the released parameters please."""
    state = svi.init(KEY, X, Y)
    start = params_of(svi, state)
    for _ in range(8):
        state, _ = svi.update(state, X, Y)
        if np.abs(params_of(svi, state) - start).max() > 0.15:
            break
    assert int(state.step) < 8
    return state


def test_a_loop_that_is_stopped_by_looking_states_what_holds_for_every_stopping_rule():
    declared, undeclared = private(num_steps=8), private()
    state = stopped_by_looking(declared)
    method = declared._prepared.resolved.method
    budget = declared._prepared.resolved.budget
    statement = declared.statement(state)
    assert statement.epsilon >= budget.spent(method.cost(8))
    assert statement.releases == 8
    state = stopped_by_looking(undeclared)
    statement, cost = undeclared.statement(state), method.cost(int(state.step))
    assert statement.epsilon >= AnytimeRDP().epsilon(cost, delta=budget.delta)
    assert statement.epsilon > 1.1 * PLD().epsilon(cost, delta=budget.delta)
    assert statement.releases == int(state.step)
    assert "where none were declared" in statement.length


def test_a_run_declares_its_length_and_going_on_beyond_it_is_stated_at_any_time():
    svi = private()
    first = svi.run(KEY, 2, X, Y, progress_bar=False)
    whole = svi.statement(first.state)
    assert whole.length == FIXED
    more = svi.run(KEY, 1, X, Y, init_state=first.state, progress_bar=False)
    statement = svi.statement(more.state)
    assert "3 steps were made where 2 were declared" in statement.length
    assert "at any time" in statement.accountant
    assert statement.epsilon > whole.epsilon
    other = private(num_steps=3)
    other.init(KEY, X, Y)
    # What another object would have declared does not help a state that was begun here.
    assert other.statement(more.state).epsilon == statement.epsilon


def test_a_state_of_another_configuration_is_refused(seeded):
    _, state = seeded
    other = private(noise_multiplier=2.0)
    other.init(KEY, X, Y)
    for use in (
        lambda: other.update(state, X, Y),
        lambda: other.statement(state),
        lambda: other.run(KEY, 1, X, Y, init_state=state, progress_bar=False),
    ):
        with pytest.raises(InvalidArgumentError, match="cost something else"):
            use()


def test_one_state_used_twice_has_two_noises_and_rng_key_decides_none():
    svi = private(seed=None, optim=numpyro.optim.SGD(0.1))
    state = svi.init(KEY, X, Y)
    once = params_of(svi, svi.update(state, X, Y)[0])
    with pytest.warns(PrivacyWarning, match="begin again after 0"):
        twice = params_of(svi, svi.update(state, X, Y)[0])
    assert np.abs(once - twice).max() > 1e-3
    again = svi.init(KEY, X, Y)
    compiled = jax.jit(svi.update)
    one, other = (params_of(svi, compiled(start, X, Y)[0]) for start in (state, again))
    assert np.abs(one - other).max() > 1e-3
    np.testing.assert_array_equal(params_of(svi, state), params_of(svi, again))


def test_the_loss_is_nan_with_one_warning_and_each_step_is_charged():
    ledger = InMemoryLedger()
    svi = private(ledger=ledger)
    state = svi.init(KEY, X, Y)
    assert ledger.costs == []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state, loss = svi.update(state, X, Y)
        state, _ = svi.update(state, X, Y)
        evaluated = svi.evaluate(state, X, Y)
    assert [(warning.category, warning.filename) for warning in caught] == [
        (PrivacyWarning, __file__)
    ]
    assert "PrivateLoss" in str(caught[0].message)
    assert np.isnan(loss)
    assert np.isnan(evaluated)
    assert len(ledger.costs) == 2
    with pytest.raises(InvalidArgumentError, match="outside jit where there is a ledger"):
        jax.jit(svi.update)(state, X, Y)


@pytest.mark.filterwarnings("error::tacit.errors.PrivacyWarning")
def test_private_losses_are_near_the_true_ones_and_paid_for():
    release = PrivateLoss(clip=10.0, noise_ratio=2.0, every=2, num_evaluations=1)
    settings = {"noise_multiplier": 0.5, "optim": numpyro.optim.SGD(1e-9), "clip_norm": 1.0}
    ledger = InMemoryLedger()
    svi = private(loss_release=release, ledger=ledger, **settings)
    result = svi.run(KEY, 4, X, Y, progress_bar=False)
    assert np.isfinite(result.losses).tolist() == [True, False, True, False]
    assert svi.statement(result.state).releases == 4 + 2 + 1
    assert sum(sum(count_releases(cost).values()) for cost in ledger.costs) == 7
    true = Trace_ELBO(num_particles=100).loss(KEY, result.params, regression, hand_written, X, Y)
    found = svi.evaluate(result.state, X, Y)
    # Noise on the sum: 0.5 * 2 * 10 = 10, beside that of single draws of the latents.
    assert abs(float(found) - float(true)) < 5 * 12
    assert np.abs(np.asarray(result.losses)[::2] - float(true)).max() < 5 * 12
    with pytest.raises(BudgetExceededError, match="all 1 evaluations"):
        svi.evaluate(result.state, X, Y)


def test_losses_are_in_the_noise_that_is_found():
    without, beside = (
        private(noise_multiplier=None, epsilon=1.0, num_steps=3, loss_release=release)
        for release in (None, PrivateLoss(clip=1.0, noise_ratio=1.0))
    )
    multipliers = []
    for svi in (without, beside):
        state = svi.init(KEY, X, Y)
        multipliers.append(svi._prepared.resolved.method.release.noise_multiplier)
        end = state._replace(step=jnp.asarray(3))
        assert 0.98 <= svi.epsilon(end) <= 1.0
    # Twice as many releases of equal noise: the square root of two, to the search's tolerance.
    assert multipliers[1] / multipliers[0] == pytest.approx(2**0.5, rel=0.01)


def test_a_run_finds_the_noise_for_its_own_length_once(monkeypatch):
    def made(prepared, state, num_steps, records, **settings):
        return state._replace(step=state.step + num_steps), jnp.full(num_steps, jnp.nan), None

    monkeypatch.setattr("tacit.numpyro.svi.run_steps", made)
    svi = private(noise_multiplier=None, epsilon=1.0)
    with pytest.raises(InvalidArgumentError, match="num_steps must be given"):
        svi.init(KEY, X, Y)
    result = svi.run(KEY, 5, X, Y, progress_bar=False)
    assert 0.98 <= svi.epsilon(result.state) <= 1.0
    with pytest.raises(BudgetExceededError, match="for 5 steps"):
        svi.run(KEY, 6, X, Y, progress_bar=False)


def test_a_budget_with_given_noise_limits_the_steps():
    svi = private(noise_multiplier=10.0, epsilon=1.0)
    state = svi.init(KEY, X, Y)
    most = svi._prepared.resolved.max_steps
    assert svi.epsilon(state._replace(step=jnp.asarray(most))) <= 1.0
    with pytest.raises(BudgetExceededError):
        svi.update(state._replace(step=jnp.asarray(most)), X, Y)
    with pytest.raises(BudgetExceededError):
        private(noise_multiplier=10.0, epsilon=1.0, num_steps=most + 5).init(KEY, X, Y)
    with pytest.raises(BudgetExceededError):
        private(noise_multiplier=0.0, epsilon=1.0, num_steps=1).init(KEY, X, Y)


def test_own_batches_cost_what_is_stated_of_them_and_the_statement_says_so():
    stated = PoissonBatch(num_records=NUM_RECORDS, batch_size=4)
    epsilons = {}
    for name, sampling in {"nothing": None, "Poisson": stated}.items():
        svi = private(
            of_d3p,
            guide_of_d3p,
            noise_multiplier=None,
            clip_norm=None,
            clipping_threshold=1.0,
            dp_scale=2.0,
            num_obs_total=NUM_RECORDS,
            sampling=sampling,
        )
        state = svi.init(KEY, X[:4], Y[:4])
        statement = svi.statement(state._replace(step=jnp.asarray(10)))
        epsilons[name] = statement.epsilon
        assert "ASSUMED, not checked" in str(statement)
        assert ("PoissonBatch" in str(statement)) == (sampling is not None)
        assert statement.num_units == NUM_RECORDS
        with pytest.raises(InvalidArgumentError, match="same batch at every step"):
            svi.run(KEY, 2, X[:4], Y[:4], progress_bar=False)
    assert epsilons["Poisson"] < epsilons["nothing"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clip_norm": None}, "clip_norm must be given"),
        ({"noise_multiplier": None}, "epsilon or noise_multiplier"),
        ({"clipping_threshold": 2.0}, "two names of one thing"),
        ({"batch_size": 3, "sampling": PoissonBatch(num_records=9, batch_size=3)}, "both say"),
        ({"optim": numpyro.optim.Minimize()}, "again and again"),
        ({"optim": "adam"}, "got str"),
        ({"guide": AutoLaplaceApproximation(regression)}, "reads every record"),
        ({"guide": AutoDAIS(regression)}, "reads every record"),
    ],
)
def test_settings_that_cannot_be_private_are_refused_at_once(change, message):
    with pytest.raises(InvalidArgumentError, match=message):
        private(**change)


def test_other_objectives_are_refused():
    with pytest.raises(InvalidArgumentError, match="TraceMeanField_ELBO"):
        DPSVI(
            regression,
            hand_written,
            optax.adam(0.1),
            TraceMeanField_ELBO(),
            clip_norm=1.0,
            noise_multiplier=1.0,
        )


def test_calls_that_do_not_fit_are_refused(seeded):
    svi, state = seeded
    with pytest.raises(InvalidArgumentError, match="outside jit"):
        jax.jit(svi.init)(KEY, X, Y)
    with pytest.raises(InvalidArgumentError, match="prepared for 24 records; got 12"):
        svi.update(state, X[:12], Y[:12])
    with pytest.raises(InvalidArgumentError, match="prepared for records"):
        svi.update(state, X[:, :1], Y)
    with pytest.raises(InvalidArgumentError, match="forward_mode"):
        svi.update(state, X, Y, forward_mode_differentiation=True)
    with pytest.raises(InvalidArgumentError, match="batches of your own"):
        svi.update(state, X, Y, mask=jnp.ones(24, bool))
    with pytest.raises(InvalidArgumentError, match="init or run"):
        private().update(state, X, Y)
    with pytest.raises(InvalidArgumentError, match="num_obs_total=50"):
        private(sampling=PoissonBatch(num_records=50, batch_size=5)).init(KEY, X, Y)


def test_an_optimiser_that_follows_the_loss_needs_one_to_follow():
    plateau = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau())
    with pytest.raises(InvalidArgumentError, match="uses the value of the loss"):
        private(optim=plateau).init(KEY, X, Y)
    private(optim=plateau, loss_release=PrivateLoss(clip=1.0)).init(KEY, X, Y)


def test_a_step_that_would_not_be_finite_is_left_out_but_counted(seeded):
    svi, state = seeded
    # A parameter that is not finite makes every gradient so.
    params = svi.optim.get_params(state.optim_state) | {"location": jnp.asarray(jnp.nan)}
    broken = state._replace(optim_state=svi.optim.init(params))
    after, _ = svi.stable_update(broken, X, Y)
    np.testing.assert_array_equal(params_of(svi, after), params_of(svi, broken))
    assert int(after.step) == 1
    moved, _ = svi.stable_update(state, X, Y)
    assert np.abs(params_of(svi, moved) - params_of(svi, state)).max() > 0


def test_a_model_that_closes_over_the_table_is_refused():
    def closed(x, y=None):
        regression(x, Y)

    with pytest.raises(InvalidArgumentError, match="close over none"):
        private(closed).init(KEY, X, Y)
