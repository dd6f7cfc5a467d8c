"""JAX Privacy's private step: per-record gradients by vmap, clipped, summed, with threefry noise.

Its users draw batches on the host. Here the batch is a random gather of fixed size inside the
compiled step, which is the least that any sampling costs, and the step is compiled as a whole.
It is timed dispatched, as its users run it, and in a loop, as tacit runs its own.

By default all per-record gradients of a batch are formed at once. Its microbatches, meant to save
memory, also save time on a CPU, so both ways are measured.
"""

import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
from jax_privacy import noise_addition

from benchmarks.loops import dispatched, in_loop
from benchmarks.peers import serve
from benchmarks.tasks import CLIP_NORM, LEARNING_RATE, NOISE_MULTIPLIER
from benchmarks.timing import Visit
from benchmarks.workloads import WORKLOADS, Workload
from tacit import _tree
from tacit.typing import Array, Key, Params, Record, Tree

_NUM_CHECKED = 4

# Of 4, 16 and 64, at or near the quickest in trials with an MLP, the CNN and the transformer.
_MICROBATCH_SIZES = {"whole": None, "microbatched": 4}


def build(
    workload: Workload,
    batch: int,
    *,
    microbatch_size: int | None,
    noise_multiplier: float,
    learning_rate: float,
) -> tuple[Callable[[Params], Tree], Callable[..., tuple[Params, Tree]]]:
    """Returns how the noise starts, and ``update(params, noise, shared, records, key)``."""
    gradient = jax_privacy.clipped_grad(
        workload.loss,
        l2_clip_norm=CLIP_NORM,
        batch_argnums=2,
        prng_argnum=3,
        keep_batch_dim=False,
        normalize_by=batch,
        microbatch_size=microbatch_size,
    )
    privatizer = noise_addition.gaussian_privatizer(
        # The sensitivity of what is returned, the mean.
        stddev=noise_multiplier * gradient.sensitivity(),
        prng_key=jax.random.key(1),
    )

    def update(
        params: Params, noise: Tree, shared: Tree, records: Record, key: Key
    ) -> tuple[Params, Tree]:
        mean = gradient(params, shared, records, key)
        noisy, noise = privatizer.update(mean, noise)
        return jax.tree.map(lambda w, g: w - learning_rate * g, params, noisy), noise

    return privatizer.init, update


def visits_of(workload: Workload, batch: int, microbatch_size: int | None) -> dict[str, Visit]:
    """Returns the visits that train by private steps, by their way."""
    key = jax.random.key(0)
    data = workload.records(np.random.default_rng(0), workload.num_records)
    start_noise, update = build(
        workload,
        batch,
        microbatch_size=microbatch_size,
        noise_multiplier=NOISE_MULTIPLIER,
        learning_rate=LEARNING_RATE,
    )

    def step(t: Array, key: Key, state: Any, data: Record) -> Any:
        index_key, shared_key, record_key = jax.random.split(jax.random.fold_in(key, t), 3)
        indices = jax.random.randint(index_key, (batch,), 0, workload.num_records)
        shared = workload.shared(shared_key)
        return update(*state, shared, _tree.take(data, indices), record_key)

    params = jax.jit(workload.init)(key)
    inputs = step, (params, start_noise(params)), key, data
    return {"dispatched": dispatched(*inputs), "loop": in_loop(*inputs)}


def check(workload: Workload, microbatch_size: int | None) -> None:
    """Raises unless every record is clipped by itself and the noise has its stated size."""
    key = jax.random.key(2)
    records = workload.records(np.random.default_rng(1), _NUM_CHECKED)
    params, shared = jax.jit(workload.init)(key), jax.jit(workload.shared)(key)

    @jax.jit
    def mean_of(noise_multiplier: float) -> Array:
        start_noise, update = build(
            workload,
            _NUM_CHECKED,
            microbatch_size=microbatch_size and _NUM_CHECKED // 2,
            noise_multiplier=noise_multiplier,
            learning_rate=1.0,
        )
        after, _ = update(params, start_noise(params), shared, records, key)
        return _flat(params) - _flat(after)

    @jax.jit
    def clipped(i: Array, key: Key) -> Array:
        record = jax.tree.map(lambda leaf: leaf[i], records)
        own = _flat(jax.grad(workload.loss)(params, shared, record, key))
        return own * jnp.minimum(1.0, CLIP_NORM / jnp.linalg.norm(own))

    keys = jax.random.split(key, _NUM_CHECKED)
    expected = sum(clipped(i, own_key) for i, own_key in enumerate(keys)) / _NUM_CHECKED
    without = mean_of(0.0)
    np.testing.assert_allclose(without, expected, atol=1e-3 * float(jnp.abs(expected).max()))
    spread = jnp.std(mean_of(NOISE_MULTIPLIER) - without)
    np.testing.assert_allclose(spread, NOISE_MULTIPLIER * CLIP_NORM / _NUM_CHECKED, rtol=0.1)


def _flat(tree: Tree) -> Array:
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])


def main() -> None:
    """Checks the peer, then runs its steps on demand."""
    mode, name, batch = sys.argv[1:]
    microbatch_size = _MICROBATCH_SIZES[mode]
    check(WORKLOADS[name], microbatch_size)
    versions = {
        "jax-privacy": metadata.version("jax-privacy"),
        "jax-privacy's jax": metadata.version("jax"),
    }
    serve(visits_of(WORKLOADS[name], int(batch), microbatch_size), versions)


if __name__ == "__main__":
    main()
