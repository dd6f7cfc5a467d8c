"""How far a clip moves the optimum of a logistic regression, without any noise.

python -m examples.clip_bias
"""

import jax
import jax.numpy as jnp
import numpy as np

from tacit.inference.corrected import typical_shift

__all__ = ["bias", "main"]

NUM_RECORDS, NUM_FEATURES, PRIOR_STD = 5000, 10, 1.0
CLIP_NORMS = (0.5, 1.0, 1.5, 2.0, 3.0)
_NUM_TRUTHS = 20


def bias(clip_norm: float, seed: int) -> tuple[float, float]:
    """Returns how far the optimum moves, in posterior standard deviations, and who is clipped.

    The first is the root mean square over coefficients of one data set, the second the share of
    records at the optimum without a clip.
    """
    rng = np.random.default_rng(seed)
    x = jnp.asarray(rng.uniform(-1, 1, (NUM_RECORDS, NUM_FEATURES)), jnp.float32)
    x = jnp.concatenate([x, jnp.ones((NUM_RECORDS, 1))], axis=1)
    truth = PRIOR_STD * rng.normal(size=NUM_FEATURES + 1)
    y = jnp.asarray(rng.random(NUM_RECORDS) < 1 / (1 + np.exp(-x @ truth)), jnp.float32)
    exact, clipped = (_optimum(x, y, norm) for norm in (np.inf, clip_norm))
    probability = jax.nn.sigmoid(x @ exact)
    weights = probability * (1 - probability)
    precision = (x * weights[:, None]).T @ x + jnp.eye(len(exact)) / PRIOR_STD**2
    std = jnp.sqrt(jnp.diag(jnp.linalg.inv(precision)))
    norms = jnp.linalg.norm(x, axis=1) * jnp.abs(probability - y)
    moved = jnp.sqrt(jnp.mean(((clipped - exact) / std) ** 2))
    return float(moved), float(jnp.mean(norms > clip_norm))


@jax.jit
def _optimum(x: jax.Array, y: jax.Array, clip_norm: float) -> jax.Array:
    """Returns where the sum of clipped gradients and the prior's is zero."""
    lengths = jnp.linalg.norm(x, axis=1)
    bound = x.T @ x / 4 + jnp.eye(x.shape[1]) / PRIOR_STD**2

    def step(w: jax.Array, _: None) -> tuple[jax.Array, None]:
        residual = jax.nn.sigmoid(x @ w) - y
        kept = jnp.minimum(1.0, clip_norm / (lengths * jnp.abs(residual) + 1e-12))
        gradient = x.T @ (kept * residual) + w / PRIOR_STD**2
        return w - jnp.linalg.solve(bound, gradient), None

    return jax.lax.scan(step, jnp.zeros(x.shape[1]), length=2000)[0]


def main() -> None:
    """Prints the rows of the table in docs/uncertainty.md."""
    found = np.array([[bias(norm, seed) for seed in range(_NUM_TRUTHS)] for norm in CLIP_NORMS])
    moved, share = np.median(found, axis=1).T
    cells = " | ".join(f"{value:.2g}" for value in moved)
    print(f"| optimum moves by, in posterior standard deviations | {cells} |")
    cells = " | ".join(f"{100 * value:.2g} %" for value in share)
    print(f"| records that are clipped | {cells} |")
    cells = " | ".join(f"{typical_shift(value, NUM_RECORDS):.2g}" for value in share)
    print(f"| rule of thumb for the first row | {cells} |")


if __name__ == "__main__":
    main()
