"""The laws, as checks that raise AssertionError where they are broken."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from tacit.privacy.clipping import gradient
from tacit.privacy.clipping.slack import Counted
from tacit.privacy.cost import count_releases
from tacit.privacy.mechanism import GaussianSum
from tacit.rng import seeded_key


def _multiplier(event):
    return getattr(event, "noise_multiplier", None) or event.event.noise_multiplier


def _without_noise(event):
    """An event with its multiplier blanked out, to compare everything else exactly."""
    return str(event).replace(str(_multiplier(event)), "s")


def _unasked(recipe):
    """Stands for verification where only shapes are wanted: it compiles, which takes seconds."""
    return True


def zeros_of(summation):
    """Returns zeros in the shape of what a release would return."""
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), summation.shapes)
    counters = jnp.zeros(len(summation.heights))
    return Counted(zeros, counters, counters)


def _plain(leaf):
    """A leaf as numbers; keys have none of their own."""
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def run(kernel, records, *, num_steps=2, key=None):
    key = seeded_key(0) if key is None else key
    state, info = kernel.init(key), None
    for step in range(num_steps):
        state, info = kernel.step(jax.random.fold_in(key, step), state, records)
    return state, info


def check_cost_equals_releases(method, model, records, monkeypatch, *, num_steps=2):
    """Cost equals releases: a spy on the engine sees exactly ``method.cost(num_steps)``."""
    seen = []

    def spy(self, key, summation, data, call):
        given = call.noise_multiplier
        used = self.noise_multiplier if given is None else float(given)
        seen.append(self.cost_of(used))
        # What it returns decides nothing about what else is released, and costs minutes.
        return zeros_of(summation)

    with monkeypatch.context() as patch, jax.disable_jit():
        patch.setattr(GaussianSum, "_release", spy)
        patch.setattr(gradient, "is_verified", _unasked)
        # JAX's own generator: without compilation ours takes seconds for each key.
        run(method.build(model), records, num_steps=num_steps, key=jax.random.key(0))
    order = lambda event: (_without_noise(event), _multiplier(event))  # noqa: E731
    # The spy sees the releases of every shard; a record pays for those of its own.
    num_shards = getattr(method, "num_shards", 1)
    own = count_releases(method.cost(num_steps)).elements()
    stated = sorted([*own] * num_shards, key=order)
    used = sorted(seen, key=order)
    assert list(map(_without_noise, used)) == list(map(_without_noise, stated))
    for one, other in zip(used, stated, strict=True):
        # Multipliers of schedules are float32 in the engine: the cost may be that of slightly
        # less noise than was added, never of more.
        assert _multiplier(other) <= _multiplier(one) <= _multiplier(other) * (1 + 1e-4)


def check_non_interference(method, model, records, others, monkeypatch):
    """Non-interference: with the engine silenced, no trace of the records is left anywhere."""

    def silent(self, key, summation, *others):
        return zeros_of(summation)

    with monkeypatch.context() as patch:
        patch.setattr(GaussianSum, "_release", silent)
        patch.setattr(gradient, "is_verified", _unasked)
        kernel = method.build(model)
        # One compilation of one step serves both tables and all steps.
        kernel = kernel._replace(init=jax.jit(kernel.init), step=jax.jit(kernel.step))
        left, right = run(kernel, records), run(kernel, others)
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_array_equal(_plain(a), _plain(b))


def check_sensitivity(release, model, records, *, bad, index=3):
    """Sensitivity: one record, however bad, moves the sum by at most the clip norm.

    The counters of norms beside the sum are part of it. With one key both sums have the same noise,
    so that their difference has none. ``bad`` is a value or several; one compiled program serves
    all of them.
    """
    from tacit.inference.method import objective_of

    record_loss = objective_of(model).record_loss
    params = model.init(seeded_key(1))

    @jax.jit
    def estimate(data):
        found = release.counted_gradient(
            seeded_key(0), lambda w, r, k: record_loss(w, None, r, k), params, data
        )
        # All numbers of a release have the same noise.
        return found.estimate, found.shares * release.noise_std / jnp.sqrt(found.variances)

    def total(data):
        return [
            np.asarray(leaf, np.float64) * release.sampling.inclusion_rate
            for leaf in jax.tree.leaves(estimate(data))
        ]

    def spoiled(value):
        return jax.tree.map(
            lambda x: (
                x.at[index].set(jnp.asarray(value).astype(x.dtype))
                if jnp.issubdtype(x.dtype, jnp.floating)
                else x
            ),
            records.x,
        )

    absent = total(records._replace(weight=records.weight.at[index].set(0.0)))
    for value in np.atleast_1d(bad):
        present = total(records._replace(x=spoiled(value)))
        norm = np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(present, absent, strict=True)))
        assert norm <= release.clip_norm * (1 + 1e-5), f"{value} moved it by {norm}"


def engines(value):
    """The engines in a method, and in methods inside it: most have one, HMC has two."""
    if isinstance(value, GaussianSum):
        return [value]
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    return [found for field in fields for found in engines(getattr(value, field.name))]


def check_public_denominator(release, records):
    """The estimate of a batch does not depend on how many records happened to be in it.

    Over many keys the mean of the noiseless, unclipped estimate is the full-data sum. A realised
    denominator would make every estimate the size of the full sum instead, and the rate of the cost
    a mean that is too small.
    """
    release = dataclasses.replace(release, noise_multiplier=0.0)
    keys = jax.random.split(seeded_key(0), 400)
    counts = np.asarray(
        jax.jit(jax.vmap(lambda key: release(key, lambda r, k: jnp.ones(()), records)))(keys)
    ) / min(1.0, release.clip_norm)
    sizes = counts * release.sampling.inclusion_rate
    np.testing.assert_allclose(sizes, np.round(sizes), atol=1e-3)
    assert sizes.std() > 0.5
    error = 5 * counts.std() / np.sqrt(len(counts))
    assert abs(counts.mean() - release.sampling.num_records) < error


def check_noise_scale(release, records):
    """The noise on the estimate has the stated standard deviation."""
    keys = jax.random.split(seeded_key(0), 3000)
    noise = np.asarray(
        jax.jit(jax.vmap(lambda key: release(key, lambda r, k: jnp.zeros(2), records)))(keys)
    )
    np.testing.assert_allclose(noise.std(), release.noise_std, rtol=5 / np.sqrt(2 * noise.size))
