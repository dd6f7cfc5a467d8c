"""A process that starts a NumPyro program: ``python -m benchmarks.startup_worker vae 0``.

It prints as JSON what importing, `init` and the first two updates take. When it was started, on the
monotonic clock, is its second argument.
"""

import json
import resource
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpyro
from examples.programs import bayesian_neural_network as network
from examples.programs import hierarchical_logistic_regression as hierarchical
from examples.programs import vae
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

from tacit.compiling import keep_compiled
from tacit.numpyro import DPSVI

_NUM_PEOPLE, _NUM_STEPS = 1000, 1000


def _program(name: str) -> tuple[DPSVI, tuple[Any, ...]]:
    """Returns a DPSVI that was not called yet, and its arguments."""
    model, guide, clip_norm, public, arguments = {
        "hierarchical": _hierarchical,
        "vae": _vae,
        "autoguide": _autoguide,
    }[name]()
    svi = DPSVI(
        model,
        guide,
        numpyro.optim.Adam(1e-3),
        Trace_ELBO(),
        epsilon=4.0,
        clip_norm=clip_norm,
        batch_size=len(arguments[0]) / 10,
        num_steps=_NUM_STEPS,
        public=public,
    )
    return svi, arguments


_Parts = tuple[Callable[..., Any], Any, float, tuple[str, ...], tuple[Any, ...]]


def _hierarchical() -> _Parts:
    train, _ = hierarchical.people(_NUM_PEOPLE)
    return hierarchical.model, hierarchical.guide, 1.0, ("gs",), (*train, _NUM_PEOPLE)


def _vae() -> _Parts:
    return vae.model, vae.guide, 10.0, (), (vae.digits()[0],)


def _autoguide() -> _Parts:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(_NUM_PEOPLE, 10)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.float32)
    return network.model, AutoNormal(network.model), 2.0, (), (x, y)


def main() -> None:
    """Runs one program."""
    warnings.simplefilter("ignore")  # losses are NaN, as they should be
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu, wall = used.ru_utime + used.ru_stime, time.monotonic()
    steps = {"import": {"cpu": cpu, "wall": wall - float(sys.argv[2])}}

    def timed(step: str, function: Callable[[], Any]) -> Any:
        cpu, wall = time.process_time(), time.monotonic()
        result = jax.block_until_ready(function())
        steps[step] = {"cpu": time.process_time() - cpu, "wall": time.monotonic() - wall}
        return result

    keep_compiled()
    svi, arguments = _program(sys.argv[1])
    key = jax.random.key(0)
    state = timed("init", lambda: svi.init(key, *arguments))
    state, _ = timed("first update", lambda: svi.update(state, *arguments))
    timed("second update", lambda: svi.update(state, *arguments))
    print(json.dumps(steps))


if __name__ == "__main__":
    main()
