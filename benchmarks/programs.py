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
from jax import lax
from numpyro.infer import SVI, Trace_ELBO

from benchmarks.rows import steps_of, threefry, visit_of
from benchmarks.timing import Effort, Visit, interleave, repeat
from tacit import _tree, native
from tacit.errors import PrivacyWarning
from tacit.models.programs.arguments import split_arguments
from tacit.models.programs.split import split_program
from tacit.numpyro import DPSVI
from tacit.privacy.clipping import Flat
from tacit.privacy.clipping.adding import Adding
from tacit.privacy.clipping.gradient import clipped_gradient_sum
from tacit.privacy.noise import noisy
from tacit.privacy.sampling import FixedBatch, FullBatch, PoissonBatch, Sampling
from tacit.rng import seeded_key
from tacit.typing import Array, Key, Params, Scalar

__all__ = ["ProgramRow", "measure_programs", "render_programs"]

ProgramRow: TypeAlias = dict[str, Any]
"""``what`` was measured, beside ``plain``; milliseconds, a ``ratio``, and its ``target`` if any."""

D3P_STEP_MS = 393.0
"""d3p 0.2, the same auto-encoder and batch, two CPU cores, JAX 0.4.30, the last it imports on."""

_NUM_IMAGES, _NUM_PIXELS = 60_000, 784
_VAE_BATCH, _VAE_BATCHES = 128, (32, 128, 512)
_NUM_PEOPLE, _NUM_ITERATIONS = 1000, 100_000
_NUM_NOISE_VALUES, _NUM_NOISE_STEPS, _NUM_KEYS = 2_400_000, 8, 10_000
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
    lines = [
        "| what | ms | beside | ms | ratio |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        missed = "" if row["met"] else f" (missed: ≤ {row['target']:g})"
        lines.append(
            f"| {row['what']} | {_number(row['ms'])} | {row['plain']} | {_number(row['plain_ms'])}"
            f" | {row['ratio']:.3g}{missed} |"
        )
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


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
    plain_gradient, clipped_gradient, num_params = _gradients(images[:_VAE_BATCH])
    times = interleave(
        {
            "plain gradient": plain_gradient,
            "clipped gradient": clipped_gradient,
            "threefry": threefry(num_params),
            **{f"plain {size}": _plain_steps(images, size) for size in _VAE_BATCHES},
            **{
                f"{name} {size}": _private_steps(images, sampling)
                for size in _VAE_BATCHES
                for name, sampling in (
                    ("Poisson", PoissonBatch(num_records=_NUM_IMAGES, batch_size=size)),
                    ("fixed", FixedBatch(num_records=_NUM_IMAGES, batch_size=size)),
                )
            },
        },
        effort,
    )
    best = {name: time.best for name, time in times.items()}
    rows = [
        _row(
            f"auto-encoder, clipped gradient, {_VAE_BATCH} records",
            best["clipped gradient"],
            "plain gradient",
            best["plain gradient"],
            1.2,
        )
    ]
    for size in _VAE_BATCHES:
        bound = best[f"plain {size}"] + best["threefry"]
        for name in ("Poisson", "fixed"):
            rows.append(
                _row(
                    f"auto-encoder, private step, {name} batch of {size}",
                    best[f"{name} {size}"],
                    "SVI step + threefry normals",
                    bound,
                    1.3 if size == _VAE_BATCH else None,
                )
            )
    rows.append(
        _row(
            f"auto-encoder, private step, Poisson batch of {_VAE_BATCH}",
            best[f"Poisson {_VAE_BATCH}"],
            "d3p's private step (published figure)",
            D3P_STEP_MS,
            1 / 20,
        )
    )
    return rows


def _gradients(images: Array) -> tuple[Visit, Visit, int]:
    """The gradient of a batch's ELBO, as SVI has it, and the sum of clipped ones."""
    split = split_program(vae.model, vae.guide, split_arguments((images,), {}))
    params = split.init(jax.random.key(0))
    keys = jax.random.split(jax.random.key(2), len(images))
    shared = jax.random.key(1)

    def plain(params: Params, images: Array) -> Params:
        def loss(params: Params) -> Scalar:
            return Trace_ELBO().loss(shared, split.constrain(params), vae.model, vae.guide, images)

        return jax.grad(loss)(params)

    def clipped(params: Params, images: Array) -> Params:
        def loss(params: Params, record: list[Array], key: Key) -> Scalar:
            return -split.record_term(params, shared, record, key)

        mask = jnp.ones(len(images), bool)
        adding = Adding(units=2.0**18, num_limbs=1)
        return clipped_gradient_sum(
            loss, params, [images], keys, mask, clipping=Flat(), clip_norm=1.0, adding=adding
        )

    visits = [visit_of(jax.jit(function), params, images) for function in (plain, clipped)]
    return visits[0], visits[1], _tree.size(params)


def _plain_steps(images: Array, batch: int) -> Visit:
    """NumPyro's own step, on a batch that is drawn as one does without privacy."""
    svi = SVI(vae.model, vae.guide, numpyro.optim.Adam(1e-3), Trace_ELBO())

    def step(t: Array, key: Key, state: Any, images: Array) -> Any:
        rows = jax.random.randint(jax.random.fold_in(key, t), (batch,), 0, _NUM_IMAGES)
        return svi.update(state, images[rows], num_obs_total=_NUM_IMAGES)[0]

    state = svi.init(jax.random.key(0), images[:batch], num_obs_total=_NUM_IMAGES)
    return steps_of(step, state, jax.random.key(0), images)


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
    return steps_of(step, svi.init(key, images), key, images)


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
            2.0,
        )
        for name in samplings
    ]


# ---- Samplers, d3p's table 3 ----


def _samplers(effort: Effort) -> list[ProgramRow]:
    few, many, most = _SAMPLED_FROM
    ways = {"Poisson": PoissonBatch, "fixed": FixedBatch}
    drawn = {
        (name, size): visit_of(
            jax.jit(way(num_records=size, batch_size=_SAMPLE).draw), seeded_key(0)
        )
        for name, way in ways.items()
        for size in _SAMPLED_FROM
    }
    chosen = visit_of(jax.jit(_choice(many)), jax.random.key(0))
    times = interleave({**drawn, "choice": chosen}, effort)
    beside = {many: ("jax.random.choice", times["choice"].best, None)}
    rows = []
    for name in ways:
        beside[most] = (f"the same from {few:,}", times[name, few].best, 1.2)
        rows += [
            _row(f"{name} batch of {_SAMPLE} from {size:,}", times[name, size].best, *beside[size])
            for size in (many, most)
        ]
    return rows


def _choice(num_records: int) -> Callable[[Key], Array]:
    return lambda key: jax.random.choice(key, num_records, (_SAMPLE,), replace=False)


def _randomness(effort: Effort) -> list[ProgramRow]:
    """Exact noise and keys in a loop of steps, where nothing but the generator takes time."""
    zeros = jnp.zeros((2, _NUM_NOISE_VALUES // 2), jnp.float32)

    def exact(key: Key, total: Array) -> Array:
        integers = total.astype(jnp.int32)[None]
        return noisy(key, integers, ratio=2.0**18, scale=1.0, num_columns=zeros.shape[1])

    def normal(key: Key, total: Array) -> Array:
        return total + jax.random.normal(key, total.shape)

    def steps(make: Callable[[Key, Array], Array]) -> Callable[[Key, Array], Array]:
        def step(total: Array, key: Key) -> tuple[Array, None]:
            return make(key, total), None

        return lambda key, x: lax.scan(step, x, jax.random.split(key, _NUM_NOISE_STEPS))[0]

    def keys(key: Key) -> Key:
        numbers = jnp.arange(_NUM_KEYS)
        return lax.scan(lambda key, i: (jax.random.fold_in(key, i), None), key, numbers)[0]

    ours, theirs = seeded_key(0), jax.random.key(0)
    times = interleave(
        {
            "exact": visit_of(jax.jit(steps(exact)), ours, zeros),
            "normal": visit_of(jax.jit(steps(normal)), theirs, zeros),
            "ChaCha20": visit_of(jax.jit(keys), ours),
            "threefry": visit_of(jax.jit(keys), theirs),
        },
        effort,
    )
    noise, derived = f"{_NUM_NOISE_STEPS} steps with {_NUM_NOISE_VALUES:,}", f"{_NUM_KEYS:,} keys"
    return [
        _row(
            f"{noise} exact values, {native.name()}",
            times["exact"].best,
            "threefry normals",
            times["normal"].best,
            0.5,
        ),
        _row(
            f"{derived}, one after the other, {native.name()}",
            times["ChaCha20"].best,
            "threefry keys",
            times["threefry"].best,
        ),
    ]
