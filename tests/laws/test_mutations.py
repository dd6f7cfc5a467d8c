"""Seeded bugs: each is planted in the real source, and a law must catch it.

A mutation whose target text has gone fails too, so that none of them silently stops mutating.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laws import laws
from laws.cases import METHODS, MODELS, engine, full, table
from laws.planting import plant
from tacit.inference import HMC, SGD, SGLD
from tacit.inference.langevin import ScheduledNoise
from tacit.privacy.clipping.bounds import Flat, PerLayer
from tacit.privacy.clipping.rules import Dense, Layout
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import PoissonBatch
from tacit.rng import seeded_key


def sensitivity_of(clipping):
    def check(monkeypatch):
        release = engine(full, clipping=clipping)
        # Of two records with opposite labels one at least is wrong, and has a large gradient.
        for index in range(4):
            laws.check_sensitivity(
                release, MODELS["dense"], table("dense"), bad=[-30.0, 30.0], index=index
            )

    return check


def sensitivity_with_counters(monkeypatch):
    # Gradients of all sizes below the clip norm, beside counters; of two labels one is wrong.
    for index in range(2):
        laws.check_sensitivity(
            engine(full, clip_norm=60.0),
            MODELS["dense"],
            table("dense"),
            bad=[-40.0, -20.0, -10.0, 10.0, 20.0, 40.0],
            index=index,
        )


def sensitivity_to_nan(monkeypatch):
    laws.check_sensitivity(engine(full), MODELS["dense"], table("dense"), bad=float("nan"))


def query_of_nan(monkeypatch):
    release = engine(full, noise_multiplier=0.0)
    rows = jnp.ones((12, 2)).at[3].set(jnp.nan)
    assert jnp.isfinite(release(seeded_key(0), lambda row, key: row, rows)).all()


def denominator(monkeypatch):
    laws.check_public_denominator(METHODS["SGD"].release, table("dense"))


def noise_scale(monkeypatch):
    laws.check_noise_scale(engine(full), table("dense"))


def on_a_lattice(monkeypatch):
    # Powers of two all the way: clip 1, rate 1, and so little noise that floats hold the integers.
    release = engine(full, clip_norm=1.0, noise_multiplier=0.01)
    noisy = release(seeded_key(0), lambda row, key: jnp.full(50, 0.01), jnp.ones((12, 2)))
    assert (noisy * 2**18 == jnp.round(noisy * 2**18)).all()


def slots_are_random(monkeypatch):
    sampling = PoissonBatch(num_records=100, batch_size=10)
    keys = jax.random.split(seeded_key(0), 300)
    used = np.asarray(jax.vmap(lambda key: sampling.draw(key).mask)(keys)).mean(0)
    # Each slot is used as often as any other, within five standard errors.
    assert np.abs(used - used.mean()).max() < 5 * np.sqrt(0.25 / len(keys))


def person_who_cancels(monkeypatch):
    # What the Gram form loses to rounding must be in its bound.
    rows = np.full(12288, 1.0), np.full(12288, 0.99261767)
    part = Dense(
        inputs=jnp.asarray(np.stack(rows)[None, None], jnp.float32),
        cotangents=jnp.asarray([[[[-0.5], [0.5]]]], jnp.float32),
        layout=Layout((), (0,), (1,)),
        is_stacked=False,
    )
    exact = 12288 * (0.5 * (np.float64(np.float32(rows[1][0])) - 1)) ** 2
    assert float(part.squared_norm(None)[0]) >= exact


def cost(name):
    def check(monkeypatch):
        laws.check_cost_equals_releases(
            METHODS[name], MODELS["dense"], table("dense"), monkeypatch, num_steps=2
        )

    return check


def silence(name):
    def check(monkeypatch):
        laws.check_non_interference(
            METHODS[name], MODELS["dense"], table("dense"), table("dense", seed=1), monkeypatch
        )

    return check


BUGS = {
    "the clip removed": (
        Flat,
        "factors",
        "jnp.where(norm > clip_norm, clip_norm / norm, 1.0)",
        "1.0 + 0 * norm",
        sensitivity_of(Flat()),
    ),
    "non-finite records let through by the reference": (
        sys.modules["tacit.privacy.clipping.bounds"],
        "clipped_sum",
        "jnp.where(keep & (c > 0), c * v, 0.0)",
        "keep * c * v",
        query_of_nan,
    ),
    "non-finite records let through by the fast way": (
        sys.modules["tacit.privacy.clipping.rules"],
        "_kept",
        "jnp.where(keep.reshape(-1, *(1 for _ in x.shape[1:])), x, 0.0)",
        "x",
        sensitivity_to_nan,
    ),
    "a norm that forgets its cotangents": (
        Dense,
        "squared_norm",
        "jnp.sum(a2 * d2, axis=-1)",
        "1e-3 * jnp.sum(a2, axis=-1)",
        sensitivity_of(Flat()),
    ),
    "counters as high as the clip norm": (
        sys.modules["tacit.privacy.clipping.slack"],
        "heights_on",
        "math.sqrt(1 - edge**2) * whole",
        "whole",
        sensitivity_with_counters,
    ),
    "counters of records that are clipped": (
        sys.modules["tacit.privacy.clipping.slack"],
        "counted",
        "(norm[..., None] <= ends[1:])",
        "(norm[..., None] <= 1e3 * ends[1:])",
        sensitivity_of(Flat()),
    ),
    "each layer clipped to the whole norm": (
        PerLayer,
        "factors",
        "clip_norm * share / whole",
        "clip_norm",
        sensitivity_of(PerLayer()),
    ),
    "division by the realised batch": (
        GaussianSum,
        "_release",
        "jnp.where(is_known, 1 / self.sampling.inclusion_rate, jnp.nan)",
        "self.sampling.num_records / jnp.maximum(batch.mask.sum(), 1)",
        denominator,
    ),
    "division by the rate of the cost": (
        GaussianSum,
        "_release",
        "1 / self.sampling.inclusion_rate",
        "1 / self.sampling.rate",
        denominator,
    ),
    "a batch cut at its capacity": (
        PoissonBatch,
        "draw",
        "size_table(self.public_records, self.rate, self.capacity)",
        "size_table(self.public_records, self.rate, self.public_records)",
        denominator,
    ),
    "padding counted as records": (
        GaussianSum,
        "_release",
        "own.mask,",
        "own.mask | True,",
        denominator,
    ),
    "noise forgotten": (
        GaussianSum,
        "_release",
        "ratio=multiplier / spacing",
        "ratio=1e-9",
        noise_scale,
    ),
    "noise not scaled by the clip": (
        GaussianSum,
        "_release",
        "scale=scale * bound * spacing",
        "scale=scale * spacing",
        noise_scale,
    ),
    "a sum that is not rounded to the lattice": (
        GaussianSum,
        "_release",
        "jnp.where(is_known, 1 / self.sampling.inclusion_rate, jnp.nan)",
        "1 / self.sampling.inclusion_rate + 1e-3 * total.own[0, 0, 0]",
        on_a_lattice,
    ),
    "rounding of the Gram form forgotten": (
        Dense,
        "_gram",
        "gamma(operations) * size",
        "0.0 * size",
        person_who_cancels,
    ),
    "drawn records fill the first slots": (
        PoissonBatch,
        "draw",
        "shuffled(words[:, 1:])",
        "jnp.arange(self.capacity)",
        slots_are_random,
    ),
    "one release too few counted": (
        SGD,
        "cost",
        "repeated(self.release.cost, num_steps)",
        "repeated(self.release.cost, num_steps - 1)",
        cost("SGD"),
    ),
    "a schedule's cost taken from its first step": (
        ScheduledNoise,
        "cost",
        "self.is_constant",
        "True",
        cost("SGLD decaying"),
    ),
    "a second look at the records that is not counted": (
        sys.modules["tacit.inference.sgd"],
        "descent",
        "mean = jax.tree.map(",
        "release(key, lambda record, key: record.y, records)\n        mean = jax.tree.map(",
        cost("SGD"),
    ),
    "a loss leaked into Info": (
        sys.modules["tacit.inference.sgd"],
        "descent",
        "SGDInfo()\n",
        "(records.y.sum(),)\n",
        silence("SGD"),
    ),
    "a record leaked into State": (
        SGLD,
        "build",
        "SGLDState(params, state.step + 1, evidence)",
        "SGLDState(params, state.step + records.y[0], evidence)",
        silence("SGLD fixed noise"),
    ),
    "a ratio that is not counted": (
        HMC,
        "cost",
        "repeated(self.ratio.cost, num_steps)",
        "repeated(self.ratio.cost, 0)",
        cost("HMC"),
    ),
    "the gradient at the start forgotten": (
        HMC,
        "cost",
        "max(num_steps - 1, 0)",
        "num_steps",
        cost("HMC reusing gradients"),
    ),
    "an acceptance decided on the exact ratio": (
        HMC,
        "_log_ratio",
        "distance * found.estimate",
        "distance * jax.vmap(rise_per_distance, in_axes=(0, None))(records, key).sum()",
        silence("HMC"),
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_breaks_a_law(bug, monkeypatch):
    owner, name, old, new, law = BUGS[bug]
    law(monkeypatch)
    plant(monkeypatch, owner, name, old, new)
    with pytest.raises(AssertionError):
        law(monkeypatch)
