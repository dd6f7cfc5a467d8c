"""One private step of every method in a loop, beside a Langevin step of the same network."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.loops import in_loop, private_step
from benchmarks.markdown import judged, markdown, number
from benchmarks.timing import Effort, interleave
from tacit.certify import certified
from tacit.inference import HMC, IVON, SGD, SGHMC, SGLD, SWAG, VI, Ensemble
from tacit.inference.method import Method
from tacit.models import MLP, Categorical, GaussianPrior, Model, bayesian
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch, PoissonBatch
from tacit.rng import seeded_key
from tacit.robust import FGSM, Linf, adversarial
from tacit.typing import Record

__all__ = ["MethodRow", "measure_methods", "render_methods"]

MethodRow: TypeAlias = dict[str, Any]

_NUM_RECORDS, _BATCH, _NUM_LEAPFROG = 4096, 256, 5
_BALL = Linf(radius=0.1, low=0.0, high=1.0)

# At most so many times the Langevin step of the same network.
_TARGETS = {"VI": 2.0, "SGLD on a certified model": 2.3}


def measure_methods(effort: Effort) -> list[MethodRow]:
    """Returns a row for each method: milliseconds of a step, and as a multiple of SGLD's."""
    return [
        *_measure("784-1200-1200-10", _methods(), effort),
        *_measure("784-512-10", _on_robust_models(), effort),
    ]


def render_methods(rows: Sequence[MethodRow]) -> str:
    """Returns the rows as a table in Markdown."""
    return markdown(
        ["network", "method", "step ms", "of SGLD"],
        [
            [row["network"], row["method"], number(row["step_ms"]), judged(row["ratio"], row)]
            for row in rows
        ],
    )


def _network(*hidden: int, dropout: float = 0.0) -> MLP:
    return MLP(num_inputs=784, hidden=hidden, num_outputs=10, dropout=dropout)


def _model(network: MLP) -> Model:
    return bayesian(network, prior=GaussianPrior(std=0.1), likelihood=Categorical(num_classes=10))


def _release(num_records: int = _NUM_RECORDS) -> GaussianSum:
    return GaussianSum(
        sampling=PoissonBatch(num_records=num_records, batch_size=_BATCH),
        clip_norm=1.0,
        noise_multiplier=1.0,
    )


def _methods() -> dict[str, tuple[Method, Model, int]]:
    """Methods by name, each with its model and how many gradients are in a step."""
    release, model = _release(), _model(_network(1200, 1200))
    descent = SGD(release=release, optimizer=optax.sgd(1e-3))
    full = FullBatch(num_records=_NUM_RECORDS)
    ratio = GaussianSum(sampling=full, clip_norm=1.0, noise_multiplier=1.0, chunk_size=512)
    found: dict[str, tuple[Method, Model, int]] = {
        "SGLD": (SGLD.fixed_noise(release=release, step_size=1e-6), model, 1),
        "SGD": (descent, model, 1),
        "SGD with dropout": (descent, _model(_network(1200, 1200, dropout=0.5)), 1),
        "SGHMC": (SGHMC.fixed_noise(release=release, step_size=1e-6, friction=0.1), model, 1),
        "SWAG, rank 5": (SWAG(base=descent, start=0, rank=5), model, 1),
        "VI": (VI(release=release, optimizer=optax.sgd(1e-3)), model, 1),
        "VI, two draws": (
            VI(release=release, optimizer=optax.sgd(1e-3), num_particles=2),
            model,
            1,
        ),
        "IVON": (IVON(release=release, learning_rate=1e-3), model, 1),
        "HMC, for each of 5 leapfrog moves": (
            HMC(gradient=release, ratio=ratio, step_size=1e-4, num_leapfrog=_NUM_LEAPFROG),
            model,
            _NUM_LEAPFROG,
        ),
        "Ensemble, for each of 4 members": (
            Ensemble(
                member=SGD(release=_release(_NUM_RECORDS // 4), optimizer=optax.sgd(1e-3)),
                num_shards=4,
            ),
            model,
            4,
        ),
    }
    return found


def _on_robust_models() -> dict[str, tuple[Method, Model, int]]:
    network = _network(512)
    method = SGLD.fixed_noise(release=_release(), step_size=1e-6)
    plain = _model(network)
    return {
        "SGLD": (method, plain, 1),
        "SGLD on an adversarial model (FGSM)": (
            method,
            adversarial(plain, FGSM(ball=_BALL), weight=0.5),
            1,
        ),
        "SGLD on a certified model": (method, certified(plain, network, _BALL, weight=0.5), 1),
        "SGLD on a certified model, clean weight 0": (
            method,
            certified(plain, network, _BALL, weight=0.0),
            1,
        ),
    }


def _measure(
    name: str, methods: Mapping[str, tuple[Method, Model, int]], effort: Effort
) -> list[MethodRow]:
    records, key, visits = _records(), seeded_key(0), {}
    for method, (config, model, _) in methods.items():
        kernel = config.build(model)
        visits[method] = in_loop(private_step(kernel), jax.jit(kernel.init)(key), key, records)
    times = interleave(visits, effort)
    best = {method: time.best / methods[method][2] for method, time in times.items()}
    return [
        {
            "network": name,
            "method": method,
            "step_ms": milliseconds,
            "ratio": (ratio := milliseconds / best["SGLD"]),
            "target": _TARGETS.get(method),
            "met": method not in _TARGETS or ratio <= _TARGETS[method],
        }
        for method, milliseconds in best.items()
    ]


def _records() -> Record:
    generator = np.random.default_rng(0)
    return Record(
        jnp.asarray(generator.uniform(size=(_NUM_RECORDS, 784)), jnp.float32),
        jnp.asarray(generator.integers(0, 10, _NUM_RECORDS), jnp.int32),
        jnp.ones(_NUM_RECORDS),
    )
