"""VI steps as written: draws averaged before one clip, the divergence once and outside it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tacit.data import as_records
from tacit.errors import InvalidArgumentError
from tacit.inference import VI, LowRank, MeanField, Plan, fit
from tacit.inference.vi import RecordDraws, SharedDraws, variational_objective
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


@pytest.mark.parametrize(
    ("guide", "num_particles"),
    [(MeanField(init_std=0.3), 1), (MeanField(init_std=0.3), 3), (LowRank(rank=2), 1)],
    ids=["one draw", "three draws", "low rank"],
)
def test_a_step_clips_the_average_over_draws_and_adds_the_divergence_over_n(
    guide, num_particles, records
):
    method = VI(
        release=GaussianSum(
            sampling=FullBatch(num_records=NUM_RECORDS), clip_norm=CLIP_NORM, noise_multiplier=0.0
        ),
        optimizer=optax.sgd(1.0),
        guide=guide,
        num_particles=num_particles,
    )
    kernel = method.build(model)
    state, key = jax.jit(kernel.init)(seeded_key(0)), seeded_key(1)
    after, _ = jax.jit(kernel.step)(key, state, records)

    # The same by hand, for each record, from the formulas.
    shared_key, _ = jax.random.split(key)
    objective = variational_objective(model, guide, num_particles, SharedDraws())
    noises = jax.jit(objective.shared)(shared_key)

    def loss(params, record):
        each = [
            -record.weight * model.log_likelihood(guide.draw(params, noise), record, key)
            for noise in noises
        ]
        return sum(each) / num_particles

    def divergence(params):
        mean, std = guide.marginals(params)
        return -guide.entropy(params) - model.log_prior.expected(mean, std)

    @jax.jit
    def by_hand(params):
        gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0))(params, records)
        norms = jax.vmap(optax.tree.norm)(gradients)
        factors = jnp.minimum(1.0, CLIP_NORM / norms)
        total = jax.tree.map(
            lambda g, k: jnp.tensordot(factors, g, axes=1) + k,
            gradients,
            jax.grad(divergence)(params),
        )
        return norms, jax.tree.map(lambda w, g: w - g / NUM_RECORDS, params, total)

    norms, wanted = by_hand(state.params)
    assert 0 < jnp.sum(norms > CLIP_NORM) < NUM_RECORDS  # some are clipped, some are not
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), after.params, wanted
    )


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
    posterior = fit(Plan(method=method, num_steps=3), model, records, budget=budget).posterior
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
