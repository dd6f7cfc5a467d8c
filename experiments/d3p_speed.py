"""d3p's figure 3 and the sampler of its table 3: time of a step against the size of a batch.

The paper's times are a GPU's; here both sides run on the same processor in the same process, in
turns, and their ratio is what counts. Images are random bits: no time depends on what they show.
The step that is not private is NumPyro's own, on batches drawn with replacement, which costs
nothing.
"""

import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpyro
from examples.programs.vae import guide, model
from numpyro.infer import SVI, Trace_ELBO

from experiments.cells import Experiment, Measured, Settings, main
from tacit.numpyro import DPSVI
from tacit.privacy.sampling import FixedBatch, PoissonBatch
from tacit.typing import Array, Key

__all__ = ["BATCH_SIZES", "EXPERIMENT"]

BATCH_SIZES = (32, 128, 512)


def measure(settings: Settings, seed: int) -> Measured:
    """Times private and plain steps, and three ways to draw a batch, one after the other."""
    num_records, num_steps = settings["num_records"], settings["num_steps"]
    data_key, key = jax.random.split(jax.random.key(seed))
    images = jax.random.bernoulli(data_key, 0.2, (num_records, 784)).astype(jnp.float32)
    svi = DPSVI(
        model,
        guide,
        numpyro.optim.Adam(1e-3),
        Trace_ELBO(),
        noise_multiplier=1.5,
        delta=1 / num_records,
        clip_norm=10.0,
        batch_size=settings["batch_size"],
        seed=seed,
    )
    results = [svi.run(key, num_steps, images, progress_bar=False)]
    runs: dict[str, Callable[[], object]] = {
        "private step": lambda: svi.run(key, num_steps, images, progress_bar=False).params,
        "plain step": _plain(key, images, settings),
        **_samplers(key, settings),
    }
    seconds = _in_turns(runs, settings["num_turns"])
    scores = {f"{name}, ms": 1000 * value / num_steps for name, value in seconds.items()}
    scores["ratio of steps"] = seconds["private step"] / seconds["plain step"]
    return Measured(scores, svi.statement(results[0].state))


def _plain(key: Key, images: Array, settings: Settings) -> Callable[[], object]:
    svi = SVI(model, guide, numpyro.optim.Adam(1e-3), Trace_ELBO())
    start = svi.init(key, images[: settings["batch_size"]])

    @jax.jit
    def run(images: Array) -> Array:
        def step(state: object, key: Key) -> tuple[object, Array]:
            rows = jax.random.randint(key, (settings["batch_size"],), 0, len(images))
            return svi.update(state, images[rows])

        return jax.lax.scan(step, start, jax.random.split(key, settings["num_steps"]))[1]

    return lambda: run(images)


def _samplers(key: Key, settings: Settings) -> dict[str, Callable[[], object]]:
    num_records, batch_size = settings["num_records"], settings["batch_size"]
    sizes = {"num_records": num_records, "batch_size": batch_size}
    draws: dict[str, Callable[[Key], object]] = {
        "Poisson draw": PoissonBatch(**sizes).draw,
        "fixed draw": FixedBatch(**sizes).draw,
        "jax.random.choice": lambda key: jax.random.choice(
            key, num_records, (batch_size,), replace=False
        ),
    }

    def run(draw: Callable[[Key], object]) -> Callable[[], object]:
        many = jax.jit(lambda keys: jax.lax.map(draw, keys))
        return lambda: many(jax.random.split(key, settings["num_steps"]))

    return {name: run(draw) for name, draw in draws.items()}


def _in_turns(runs: dict[str, Callable[[], object]], num_turns: int) -> dict[str, float]:
    """Returns the median seconds of each; the first turn compiles, and does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(1 + num_turns):
        for name, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


EXPERIMENT = Experiment(
    name="d3p_speed",
    cells=tuple(
        {"batch_size": size, "num_records": 60_000, "num_steps": 100, "num_turns": 5}
        for size in BATCH_SIZES
    ),
    num_seeds=3,
    measure=measure,
    quick={"batch_size": 4, "num_records": 50, "num_steps": 2, "num_turns": 1},
)

if __name__ == "__main__":
    main(EXPERIMENT)
