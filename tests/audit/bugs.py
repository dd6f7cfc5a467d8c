"""The seeded bugs that audits must catch, planted in the real source."""

from laws.planting import plant
from tacit.privacy.clipping.bounds import Flat
from tacit.privacy.mechanism import GaussianSum

BUGS = {
    "no noise": (GaussianSum, "_release", "ratio=multiplier / spacing", "ratio=1e-9"),
    "clip removed": (
        Flat,
        "factors",
        "jnp.where(norm > clip_norm, clip_norm / norm, 1.0)",
        "1.0 + 0 * norm",
    ),
    "noise ten times too small": (
        GaussianSum,
        "_multiplier",
        "return self.noise_multiplier",
        "return 0.1 * self.noise_multiplier",
    ),
}


def plant_bug(monkeypatch, name):
    plant(monkeypatch, *BUGS[name])
