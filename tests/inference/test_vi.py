"""VI steps as written: draws averaged before one clip, the divergence once and outside it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from tacit.data import as_records
from tacit.errors import InvalidArgumentError
from tacit.inference import VI, LowRank, MeanField, Plan, fit
from tacit.inference.vi import (
    AlignedDraws,
    RecordDraws,
    SharedDraws,
    late_average,
    variational_objective,
)
from tacit.models import MLP, Categorical, GaussianPrior, bayesian
from tacit.posterior import load_posterior, predict
from tacit.privacy.budget import Budget
from tacit.privacy.clipping import explain_clipping
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch, PoissonBatch
from tacit.rng import seeded_key
from tacit.samplers import DiagonalGaussian
from tacit.typing import Record

NUM_RECORDS = 6
CLIP_NORM = 0.8


def classifier(hidden):
    return bayesian(
        MLP(num_inputs=3, hidden=hidden, num_outputs=2),
        prior=GaussianPrior(std=0.5),
        likelihood=Categorical(num_classes=2),
    )


model = classifier(hidden=())


@pytest.fixture(scope="module")
def records():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(NUM_RECORDS, 3)).astype(np.float32)
    y = generator.integers(0, 2, NUM_RECORDS)
    weight = generator.uniform(0.2, 1.0, NUM_RECORDS).astype(np.float32)
    return Record(jnp.asarray(x), jnp.asarray(y), jnp.asarray(weight))


GUIDES = [(MeanField(init_std=0.3), 1), (MeanField(init_std=0.3), 3), (LowRank(rank=2), 1)]
IDS = ["one draw", "three draws", "low rank"]


@pytest.mark.parametrize("draws", [AlignedDraws(), SharedDraws()], ids=lambda d: type(d).__name__)
@pytest.mark.parametrize(("guide", "num_particles"), GUIDES, ids=IDS)
def test_a_step_clips_what_it_asks_for_and_adds_the_divergence_over_n(
    guide, num_particles, draws, records
):
    # The gradient at three draws, of a third of the loss each, is shorter than that at one.
    is_aligned = isinstance(draws, AlignedDraws)
    clip_norm = CLIP_NORM / num_particles**0.5 if is_aligned else CLIP_NORM
    method = VI(
        release=GaussianSum(
            sampling=FullBatch(num_records=NUM_RECORDS), clip_norm=clip_norm, noise_multiplier=0.0
        ),
        optimizer=optax.sgd(1.0),
        guide=guide,
        num_particles=num_particles,
        draws=draws,
    )
    kernel = method.build(model)
    state, key = jax.jit(kernel.init)(seeded_key(0)), seeded_key(1)
    after, _ = jax.jit(kernel.step)(key, state, records)

    # The same by hand, for each record, from the formulas.
    shared_key, _ = jax.random.split(key)
    objective = variational_objective(model, guide, num_particles, draws)
    noises = jax.jit(objective.shared)(shared_key)

    def drawn(params):
        return [guide.draw(params, noise) for noise in noises]

    def loss(drawn, record):
        each = [-record.weight * model.log_likelihood(one, record, key) for one in drawn]
        return sum(each) / num_particles

    def divergence(params):
        mean, std = guide.marginals(params)
        return -guide.entropy(params) - model.log_prior.expected(mean, std)

    @jax.jit
    def by_hand(params):
        if is_aligned:
            asked, transposed = jax.vjp(drawn, params)
            loss_of = loss
        else:
            asked, transposed = params, lambda total: (total,)
            loss_of = lambda params, record: loss(drawn(params), record)  # noqa: E731
        gradients = jax.vmap(jax.grad(loss_of), in_axes=(None, 0))(asked, records)
        norms = jax.vmap(optax.tree.norm)(gradients)
        factors = jnp.minimum(1.0, clip_norm / norms)
        clipped = jax.tree.map(lambda g: jnp.tensordot(factors, g, axes=1), gradients)
        (total,) = transposed(clipped)
        total = jax.tree.map(jnp.add, total, jax.grad(divergence)(params))
        return norms, jax.tree.map(lambda w, g: w - g / NUM_RECORDS, params, total)

    norms, wanted = by_hand(state.params)
    assert 0 < jnp.sum(norms > clip_norm) < NUM_RECORDS  # some are clipped, some are not
    close(after.params, wanted)


def close(found, wanted, *, rtol=1e-4, atol=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), found, wanted)


class Opaque:
    """A prior whose expectation nobody knows."""

    def __call__(self, params):
        return model.log_prior(params)


@pytest.mark.parametrize("prior", [model.log_prior, Opaque()], ids=["known", "by Monte Carlo"])
@pytest.mark.parametrize(("guide", "num_particles"), GUIDES, ids=IDS)
def test_without_clip_and_noise_a_step_is_the_same_whatever_records_are_asked_for(
    guide, num_particles, prior, records
):
    def after(draws):
        method = VI.non_private(
            sampling=FullBatch(num_records=NUM_RECORDS),
            optimizer=optax.sgd(1.0),
            guide=guide,
            num_particles=num_particles,
            draws=draws,
        )
        kernel = method.build(model._replace(log_prior=prior))
        state = jax.jit(kernel.init)(seeded_key(0))
        assert state.evidence is None
        return jax.jit(kernel.step)(seeded_key(1), state, records)[0].params

    close(after(AlignedDraws()), after(SharedDraws()))


def private_method(**settings):
    release = GaussianSum(
        sampling=FullBatch(num_records=NUM_RECORDS), clip_norm=CLIP_NORM, noise_multiplier=2.0
    )
    return VI(**{"release": release, "optimizer": optax.sgd(0.1)} | settings)


@pytest.mark.parametrize(("guide", "num_particles"), GUIDES, ids=IDS)
def test_a_private_step_notes_where_it_asked_and_what_the_engine_answered(
    guide, num_particles, records, monkeypatch
):
    answers = []
    ask = GaussianSum.counted_gradient

    def spy(self, key, loss, params, data, **overrides):
        answers.append((params, ask(self, key, loss, params, data, **overrides)))
        return answers[-1][1]

    monkeypatch.setattr(GaussianSum, "counted_gradient", spy)
    method = private_method(guide=guide, num_particles=num_particles)
    kernel = method.build(model)

    @jax.jit
    def step(state):
        answers.clear()
        state, _ = kernel.step(seeded_key(1), state, records)
        return state, list(answers)

    state, ((asked, (answer, *_)),) = step(jax.jit(kernel.init)(seeded_key(0)))
    evidence = kernel.evidence(state)
    assert len(asked) == num_particles
    flat = [jnp.stack([ravel_pytree(one)[0] for one in part]) for part in (asked, answer)]
    np.testing.assert_allclose(evidence.points[0], flat[0].mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(evidence.gradients[0], flat[1].sum(axis=0), rtol=1e-5, atol=1e-5)
    assert float(evidence.variances[0]) == pytest.approx(
        num_particles * method.release.noise_std**2, rel=1e-5
    )
    assert int(evidence.num_steps) == 1
    assert kernel.engine == method.release


def test_only_aligned_private_runs_of_small_models_note_where_they_asked():
    for method, network in (
        (private_method(draws=SharedDraws()), model),
        (private_method(), classifier(hidden=(64,))),
    ):
        evidence = jax.eval_shape(method.build(network).init, seeded_key(0)).evidence
        assert evidence.points.shape[1] == 0
    method = VI.non_private(sampling=FullBatch(num_records=2), optimizer=optax.sgd(0.1))
    assert jax.eval_shape(method.build(model).init, seeded_key(0)).evidence is None


def test_zhangs_method_asks_records_for_the_gradient_of_mean_and_scale(records, monkeypatch):
    asked, ask = [], GaussianSum.counted_gradient

    def spy(self, key, loss, params, data, **overrides):
        asked.append(jax.tree.map(jnp.shape, params))
        return ask(self, key, loss, params, data, **overrides)

    monkeypatch.setattr(GaussianSum, "counted_gradient", spy)
    own = private_method()
    method = VI.zhang(release=own.release, optimizer=own.optimizer)
    kernel = method.build(model)
    state = jax.jit(kernel.init)(seeded_key(0))
    after, _ = jax.jit(kernel.step)(seeded_key(1), state, records)
    assert asked == [jax.tree.map(jnp.shape, state.params)]
    # The last step, and no average.
    close(kernel.retain(after), MeanField().retained(after.params))


def test_the_posterior_keeps_the_average_in_which_late_steps_weigh_more(records):
    kernel = private_method(averaging=2.0).build(model)
    state, step = jax.jit(kernel.init)(seeded_key(0)), jax.jit(kernel.step)
    iterates = []
    for at in range(4):
        state, _ = step(jax.random.fold_in(seeded_key(1), at), state, records)
        iterates.append(state.params)
    # The weights of a power of two: t (t + 1) for the t-th of 4.
    weights = np.array([2, 6, 12, 20]) / 40
    wanted = jax.tree.map(lambda *w: sum(a * b for a, b in zip(weights, w, strict=True)), *iterates)
    close(kernel.retain(state), MeanField().retained(wanted))


@pytest.mark.parametrize("num_steps", [1000])
def test_the_average_is_as_noisy_as_one_over_the_last_44_per_cent(num_steps):
    def add(average, at):
        step, latest = at
        return late_average(average, latest, step, power=3.0), None

    # Linear, so the weights are what is left of each unit impulse.
    weights, _ = jax.lax.scan(
        add, jnp.zeros(num_steps), (jnp.arange(num_steps), jnp.eye(num_steps))
    )
    assert float(weights.sum()) == pytest.approx(1.0, rel=1e-4)
    assert 1 / float((weights**2).sum()) == pytest.approx(7 / 16 * num_steps, rel=0.01)


def test_without_averaging_the_posterior_keeps_the_last_step(records):
    kernel = private_method(averaging=None).build(model)
    state = jax.jit(kernel.init)(seeded_key(0))
    state, _ = jax.jit(kernel.step)(seeded_key(1), state, records)
    assert state.average is None
    close(kernel.retain(state), MeanField().retained(state.params))


def explained(guide):
    objective = variational_objective(classifier(hidden=(4,)), guide, 1, SharedDraws())
    params = jax.jit(objective.init)(seeded_key(0))
    shared = jax.jit(objective.shared)(seeded_key(1))
    record = Record(jnp.zeros(3), jnp.zeros((), jnp.int32), jnp.ones(()))
    return explain_clipping(lambda p, r, k: objective.record_loss(p, shared, r, k), params, record)


@pytest.mark.parametrize("guide", [MeanField(), LowRank(rank=2)], ids=["MeanField", "LowRank"])
def test_with_one_shared_draw_no_kernel_of_a_record_is_ever_formed(guide):
    report = explained(guide)
    assert not report.fallback
    kernels = [path for path in report.parameters if "kernel" in path.name]
    assert len(kernels) == 2 * len(
        jax.tree.leaves(jax.eval_shape(guide.init, seeded_key(0), jnp.zeros(1)))
    )
    assert all(path.num_formed == 0 and "norms multiply" in path.how for path in kernels)


@pytest.mark.parametrize(("draws", "are_equal"), [(SharedDraws(), True), (RecordDraws(), False)])
def test_equal_records_see_one_draw_or_each_their_own(draws, are_equal):
    objective = variational_objective(model, MeanField(init_std=1.0), 1, draws)
    params = jax.jit(objective.init)(seeded_key(0))
    shared = jax.jit(objective.shared)(seeded_key(1))
    record = Record(jnp.ones(3), jnp.zeros((), jnp.int32), jnp.ones(()))
    keys = jax.random.split(seeded_key(2), 2)
    loss = jax.jit(objective.record_loss)
    one, other = (loss(params, shared, record, key) for key in keys)
    assert (float(one) == float(other)) is are_equal


def test_fresh_draws_are_made_in_every_step():
    objective = variational_objective(model, MeanField(), 2, SharedDraws())
    shared = jax.jit(objective.shared)
    (one, other), (third, _) = shared(seeded_key(0)), shared(seeded_key(1))
    for pair in ((one, other), (one, third)):
        same = jax.tree.map(lambda a, b: bool(jnp.any(a == b)), *pair)
        assert not any(jax.tree.leaves(same))


def test_a_fitted_posterior_is_a_gaussian_that_travels_and_predicts(tmp_path, records):
    method = VI(
        release=GaussianSum(
            sampling=PoissonBatch(num_records=NUM_RECORDS, batch_size=3),
            clip_norm=1.0,
            noise_multiplier=1.0,
        ),
        optimizer=optax.adam(0.01),
    )
    budget = Budget(epsilon=1000.0, delta=1e-3)
    fitted = fit(Plan(method=method, num_steps=3), model, records, budget=budget).posterior
    # As the method made it, whether three secret steps happened to determine a correction or not.
    posterior = fitted if fitted.raw is None else fitted.raw
    assert posterior.sampler == DiagonalGaussian()
    assert jax.tree.leaves(posterior.draws())[0].shape[0] == 100
    posterior.save(tmp_path)
    found, wanted = predict(load_posterior(tmp_path), records.x), predict(posterior, records.x)
    np.testing.assert_array_equal(found.probabilities, wanted.probabilities)
    assert float(jnp.min(wanted.mutual_information)) > 0  # the draws differ


def test_a_run_without_privacy_says_so():
    method = VI.non_private(sampling=FullBatch(num_records=2), optimizer=optax.sgd(0.1))
    assert not method.release.is_private
    assert type(method.cost(1)).__name__ == "NonPrivateDpEvent"


def test_no_particles_are_refused():
    with pytest.raises(InvalidArgumentError, match="num_particles"):
        VI.non_private(sampling=FullBatch(num_records=2), optimizer=optax.sgd(0.1), num_particles=0)


def test_a_negative_power_of_the_average_is_refused():
    with pytest.raises(InvalidArgumentError, match="averaging"):
        private_method(averaging=-1.0)


def test_a_layer_as_wide_as_the_table_is_long_is_no_table_in_the_first_run_nor_in_the_second():
    generator = np.random.default_rng(0)
    records = as_records(generator.normal(size=(64, 3)), generator.integers(0, 2, 64))
    method = VI(
        release=GaussianSum(
            sampling=FullBatch(num_records=64), clip_norm=CLIP_NORM, noise_multiplier=9.0
        ),
        optimizer=optax.sgd(0.1),
        draws=RecordDraws(),
    )
    network, budget = classifier(hidden=(64, 8)), Budget(epsilon=10.0, delta=1e-3)
    for _ in range(2):
        made = fit(Plan(method=method, num_steps=1), network, records, budget=budget, seed=0)
        assert made.statement.releases == 1
