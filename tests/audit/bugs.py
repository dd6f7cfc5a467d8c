"""The seeded bugs that audits must catch, planted in the real source."""

from laws.planting import plant
from tacit.privacy import mechanism
from tacit.privacy.clipping.bounds import Flat
from tacit.privacy.mechanism import GaussianSum

BUGS = {
    "no noise": (mechanism, "with_noise", "jax.tree.map(jnp.add, total, noise)", "total"),
    "clip removed": (
        Flat,
        "factors",
        "jnp.where(norm > clip_norm, clip_norm / norm, 1.0)",
        "1.0 + 0 * norm",
    ),
    "noise ten times too small": (
        GaussianSum,
        "_std",
        "return self.noise_multiplier * self.clip_norm",
        "return 0.1 * self.noise_multiplier * self.clip_norm",
    ),
}


def plant_bug(monkeypatch, name):
    plant(monkeypatch, *BUGS[name])
