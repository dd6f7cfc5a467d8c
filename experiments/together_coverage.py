"""How often credible intervals hold the truth, for the method of the posterior that is certified.

On images no truth is known. So the task is simulated: 16 numbers in [0, 1], three classes whose
probabilities are those of a linear network that was drawn from the prior. What is covered is the
true probability of a class at a test input, by the interval between quantiles of the draws'
probabilities. From row to row one thing is taken away that the certified posterior has: interval
training, a small clip, and noise that follows from the budget instead of the temperature.
"""

import jax
import jax.numpy as jnp
import numpy as np

import tacit
from experiments.cells import Experiment, Measured, Settings, main
from tacit.metrics import interval_coverage, quantile_interval
from tacit.models import MLP, Categorical, GaussianPrior
from tacit.robust import Linf
from tacit.typing import Array, Record, Scalar

__all__ = ["EPSILONS", "EXPERIMENT", "LEVEL", "WAYS"]

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
WAYS: dict[str, Settings] = {
    "as the certified posterior": {"radius": 0.05, "clip_norm": 0.5, "temperature": "free"},
    "without intervals": {"radius": 0.0, "clip_norm": 0.5, "temperature": "free"},
    "and with a clip that hardly bites": {"radius": 0.0, "clip_norm": 3.0, "temperature": "free"},
    "and at temperature one": {"radius": 0.0, "clip_norm": 3.0, "temperature": "one"},
}
LEVEL = 0.9

_NETWORK = MLP(num_inputs=16, num_outputs=3)
_MODEL = tacit.bayesian(
    _NETWORK, prior=GaussianPrior(std=1.0), likelihood=Categorical(num_classes=3)
)


def measure(settings: Settings, seed: int) -> Measured:
    """Draws a truth and its records, fits, and asks whether the intervals hold the truth."""
    truth, train, x = _simulated(settings["num_records"], seed)
    budget = tacit.Budget(epsilon=settings["epsilon"], delta=1e-5)
    plan = tacit.calibrate(_plan(settings), budget)
    fit = tacit.fit(plan, _MODEL, train, budget=budget, seed=seed)
    found = _probabilities(fit.posterior.draws(), x)
    low, high = quantile_interval(found, level=LEVEL)
    scores = {
        "coverage": interval_coverage(low, high, truth),
        "width": float(np.mean(high - low)),
        "error": float(np.abs(found.mean(axis=0) - truth).mean()),
    }
    return Measured(scores, fit.statement)


def _plan(settings: Settings) -> tacit.Plan:
    num_records, num_steps = settings["num_records"], settings["num_steps"]
    sampling = tacit.PoissonBatch(num_records=num_records, batch_size=settings["batch_size"])
    step_size = settings["learning_rate"] / num_records
    clip_norm, friction = settings["clip_norm"], settings["friction"]
    method: tacit.SGHMC | tacit.inference.Scheduled
    if settings["temperature"] == "one":
        method = tacit.SGHMC.fixed_temperature(
            sampling=sampling, clip_norm=clip_norm, step_size=step_size, friction=friction
        )
    else:
        release = tacit.GaussianSum(sampling=sampling, clip_norm=clip_norm, noise_multiplier=1.0)
        method = tacit.SGHMC.fixed_noise(release=release, step_size=step_size, friction=friction)
    if settings["radius"]:
        ball = Linf(radius=settings["radius"], low=0.0, high=1.0)
        ramp = tacit.inference.Ramp(first=0.0, last=settings["radius"], stop=num_steps // 3)

        def robust(model: tacit.Model, step: Scalar) -> tacit.Model:
            return tacit.certified(model, _NETWORK, ball.at(ramp(step)), weight=0.5)

        method = tacit.inference.Scheduled(base=method, transform=robust)
    return tacit.Plan(method=method, num_steps=num_steps, burn_in=num_steps // 2, thinning=2)


def _simulated(num_records: int, seed: int) -> tuple[np.ndarray, Record, Array]:
    """Returns true probabilities at test inputs, records, and those inputs."""
    truth_key, x_key, y_key, test_key = jax.random.split(jax.random.key(seed), 4)
    weights = jax.random.normal(truth_key, (17, 3))
    params = {"network": {"dense_0": {"kernel": weights[:16], "bias": weights[16]}}}
    stacked = jax.tree.map(lambda leaf: leaf[None], params)
    x, test_x = (
        jax.random.uniform(key, (n, 16)) for key, n in ((x_key, num_records), (test_key, 200))
    )
    chances = _probabilities(stacked, x)[0]
    y = jax.random.categorical(y_key, jnp.log(jnp.asarray(chances)))
    return (
        _probabilities(stacked, test_x)[0],
        tacit.as_records(np.asarray(x), np.asarray(y)),
        test_x,
    )


def _probabilities(draws: tacit.typing.Params, x: Array) -> np.ndarray:
    key = jax.random.key(0)  # nothing is dropped
    each = jax.vmap(jax.vmap(_MODEL.predict, in_axes=(None, 0, None)), in_axes=(0, None, None))
    return np.asarray(each(draws, x, key), np.float64)


def _cell(way: str, epsilon: float) -> Settings:
    return {
        "way": way,
        "epsilon": epsilon,
        "num_records": 10_000,
        "batch_size": 1000,
        "num_steps": 400,
        "learning_rate": 0.5,
        "friction": 0.1,
    } | WAYS[way]


EXPERIMENT = Experiment(
    name="together_coverage",
    cells=tuple(_cell(way, epsilon) for way in WAYS for epsilon in EPSILONS),
    num_seeds=5,
    measure=measure,
    quick={"num_steps": 6, "num_records": 500, "batch_size": 100},
)

if __name__ == "__main__":
    main(EXPERIMENT)
