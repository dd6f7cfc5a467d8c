"""NumPyro programs: private inference beside `numpyro.infer.SVI`, and samplers beside JAX's."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from examples.programs import hierarchical_logistic_regression as hierarchical
from examples.programs import vae
from numpyro.infer import SVI, Trace_ELBO

from benchmarks.loops import in_loop, made_in_loop
from benchmarks.markdown import judged, markdown, number
from benchmarks.parts import engine_noise
from benchmarks.rows import threefry
from benchmarks.timing import Effort, Visit, interleave, repeat
from tacit import native
from tacit.errors import PrivacyWarning
from tacit.numpyro import DPSVI
from tacit.privacy.sampling import FixedBatch, FullBatch, PoissonBatch, Sampling
from tacit.rng import seeded_key
from tacit.typing import Array, Key, Tree

__all__ = ["ProgramRow", "measure_programs", "render_programs"]

ProgramRow: TypeAlias = dict[str, Any]
"""``what`` was measured, beside ``plain``; milliseconds, a ``ratio``, and its ``target`` if any."""

D3P_STEP_MS = 393.0
"""d3p 0.2, the same auto-encoder and batch, two CPU cores, JAX 0.4.30, the last it imports on."""

_NUM_IMAGES, _NUM_PIXELS = 60_000, 784
_VAE_BATCH, _VAE_BATCHES = 128, (32, 128, 512)
_NUM_PEOPLE, _NUM_ITERATIONS = 1000, 100_000
_NUM_NOISE_VALUES = 2_400_000
_WAYS: dict[str, Any] = {"Poisson": PoissonBatch, "fixed": FixedBatch}
_SAMPLED_FROM, _SAMPLE = (10_000, 1_000_000, 10_000_000), 128


def measure_programs(effort: Effort, *, num_iterations: int = _NUM_ITERATIONS) -> list[ProgramRow]:
    """Returns a row for each comparison."""
    with warnings.catch_warnings():
        # Losses of private runs are not numbers, as they should be.
        warnings.simplefilter("ignore", PrivacyWarning)
        return [
            *_auto_encoder(effort),
            *_hierarchical(effort, num_iterations),
            *_samplers(effort),
            *_randomness(effort),
        ]


def render_programs(rows: Sequence[ProgramRow]) -> str:
    """Returns the rows as a table in Markdown."""
    return markdown(
        ["what", "ms", "beside", "ms", "ratio"],
        [
            [
                row["what"],
                number(row["ms"]),
                row["plain"],
                number(row["plain_ms"]),
                judged(row["ratio"], row),
            ]
            for row in rows
        ],
    )


def _row(
    what: str, ms: float, plain: str, plain_ms: float, target: float | None = None
) -> ProgramRow:
    ratio = ms / plain_ms
    return {
        "what": what,
        "ms": ms,
        "plain": plain,
        "plain_ms": plain_ms,
        "ratio": ratio,
        "target": target,
        "met": target is None or ratio <= target,
    }


# ---- The auto-encoder of d3p's section 5.1, 784-400-2x50 / 50-400-784 ----


def _auto_encoder(effort: Effort) -> list[ProgramRow]:
    images = jnp.asarray(
        np.random.default_rng(0).integers(2, size=(_NUM_IMAGES, _NUM_PIXELS)), jnp.float32
    )
    visits = {}
    for size in _VAE_BATCHES:
        visits["plain", size] = _plain_steps(images, size)
        for name, way in _WAYS.items():
            sampling = way(num_records=_NUM_IMAGES, batch_size=size)
            visits[name, size] = _private_steps(images, sampling)
    best = {name: time.best for name, time in interleave(visits, effort).items()}
    rows = [
        _row(
            f"auto-encoder, private step, {name} batch of {size}",
            best[name, size],
            "SVI step",
            best["plain", size],
            1.7 if size == _VAE_BATCH else None,
        )
        for size in _VAE_BATCHES
        for name in _WAYS
    ]
    name = "Poisson"
    what = f"auto-encoder, private step, {name} batch of {_VAE_BATCH}"
    published = "d3p's private step (published figure)"
    return [*rows, _row(what, best[name, _VAE_BATCH], published, D3P_STEP_MS, 1 / 20)]


def _plain_steps(images: Array, batch: int) -> Visit:
    """NumPyro's own step, on a batch that is drawn as one does without privacy."""
    svi = SVI(vae.model, vae.guide, numpyro.optim.Adam(1e-3), Trace_ELBO())

    def step(t: Array, key: Key, state: Any, images: Array) -> Any:
        rows = jax.random.randint(jax.random.fold_in(key, t), (batch,), 0, _NUM_IMAGES)
        return svi.update(state, images[rows], num_obs_total=_NUM_IMAGES)[0]

    state = svi.init(jax.random.key(0), images[:batch], num_obs_total=_NUM_IMAGES)
    return in_loop(step, state, jax.random.key(0), images)


def _private_steps(images: Array, sampling: Sampling) -> Visit:
    svi = DPSVI(
        vae.model,
        vae.guide,
        numpyro.optim.Adam(1e-3),
        Trace_ELBO(),
        clip_norm=10.0,
        noise_multiplier=1.5,
        sampling=sampling,
        seed=0,
    )

    def step(t: Array, key: Key, state: Any, images: Array) -> Any:
        del t, key  # the state has its own
        return svi.update(state, images)[0]

    key = jax.random.key(0)
    return in_loop(step, svi.init(key, images), key, images)


# ---- Hierarchical logistic regression, d3p's section 3.3 ----


def _hierarchical(effort: Effort, num_iterations: int) -> list[ProgramRow]:
    train, _ = hierarchical.people(_NUM_PEOPLE)
    plain = SVI(hierarchical.model, hierarchical.guide, numpyro.optim.Adam(1e-3), Trace_ELBO())

    def private(sampling: Sampling) -> DPSVI:
        return DPSVI(
            hierarchical.model,
            hierarchical.guide,
            numpyro.optim.Adam(1e-3),
            Trace_ELBO(),
            clip_norm=1.0,
            noise_multiplier=2.0,
            sampling=sampling,
            public=("gs",),
            seed=0,
        )

    def runs(svi: SVI | DPSVI) -> Visit:
        def run() -> None:
            result = svi.run(
                jax.random.key(0), num_iterations, *train, _NUM_PEOPLE, progress_bar=False
            )
            jax.block_until_ready(result.params)

        return repeat(run)

    samplings = {
        "all records": FullBatch(num_records=_NUM_PEOPLE),
        "Poisson batches of 100": PoissonBatch(num_records=_NUM_PEOPLE, batch_size=100),
    }
    times = interleave(
        {"plain": runs(plain), **{name: runs(private(way)) for name, way in samplings.items()}},
        Effort(
            rounds=min(2, effort.rounds),
            visit_seconds=0.0,
            min_rounds=1,
            max_seconds=effort.max_seconds,
        ),
    )
    return [
        _row(
            f"hierarchical regression, {num_iterations:,} private steps, {name}",
            times[name].best,
            "SVI.run, all records",
            times["plain"].best,
            1.8,
        )
        for name in samplings
    ]


# ---- Samplers, d3p's table 3 ----


def _samplers(effort: Effort) -> list[ProgramRow]:
    few, many, most = _SAMPLED_FROM
    visits = {
        (name, size): _drawn(way(num_records=size, batch_size=_SAMPLE).draw, seeded_key(0))
        for name, way in _WAYS.items()
        for size in _SAMPLED_FROM
    }
    visits["choice", many] = _drawn(
        lambda key: jax.random.choice(key, many, (_SAMPLE,), replace=False), jax.random.key(0)
    )
    best = {name: time.best for name, time in interleave(visits, effort).items()}
    beside: dict[int, Any] = {many: ("jax.random.choice", best["choice", many], None)}
    rows = []
    for name in _WAYS:
        beside[most] = (f"the same from {few:,}", best[name, few], 1.2)
        rows += [
            _row(f"{name} batch of {_SAMPLE} from {size:,}", best[name, size], *beside[size])
            for size in (many, most)
        ]
    return rows


def _drawn(draw: Callable[[Key], Tree], key: Key) -> Visit:
    return made_in_loop(lambda t, key, data: draw(jax.random.fold_in(key, t)), key, None)


def _randomness(effort: Effort) -> list[ProgramRow]:
    """Exact noise and keys, in loops where nothing but the generator takes time."""

    def keys(key: Key) -> Visit:
        def step(t: Array, nothing: Key, key: Key, data: None) -> Key:
            return jax.random.fold_in(key, t)

        return in_loop(step, key, key, None)

    times = interleave(
        {
            "exact": engine_noise(_NUM_NOISE_VALUES),
            "normal": threefry(_NUM_NOISE_VALUES),
            "ChaCha20": keys(seeded_key(0)),
            "threefry": keys(jax.random.key(0)),
        },
        effort,
    )
    best = {name: time.best for name, time in times.items()}
    return [
        _row(
            f"{_NUM_NOISE_VALUES:,} exact values, {native.name()}",
            best["exact"],
            "threefry normals",
            best["normal"],
            0.5,
        ),
        _row(f"a key, {native.name()}", best["ChaCha20"], "a threefry key", best["threefry"]),
    ]
