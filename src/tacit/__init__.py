"""Private Bayesian deep learning: posteriors that may be published.

>>> import tacit
>>> budget = tacit.Budget(epsilon=1.0, delta=1e-5)
"""

import importlib
from typing import Any

from tacit._memory import keep_freed_memory

__version__ = "0.1.0"

keep_freed_memory()

# Loaded when it is used: JAX, pandas and scikit-learn together take a second and more, which a
# command that prints its help should not. `__init__.pyi` says the same to type checkers.
_HOMES = {
    "tacit.certify": ("certified",),
    "tacit.data": ("as_records",),
    "tacit.errors": (
        "BudgetExceededError",
        "InvalidArgumentError",
        "PrivacyWarning",
        "TacitError",
    ),
    "tacit.estimators": (
        "PrivateBayesClassifier",
        "PrivateBayesRegressor",
    ),
    "tacit.inference": (
        "Ensemble",
        "Fit",
        "HMC",
        "IVON",
        "Laplace",
        "MeanField",
        "Plan",
        "SGD",
        "SGHMC",
        "SGLD",
        "SWAG",
        "VI",
        "calibrate",
        "calibrate_steps",
        "data_free_clip_norm",
        "fit",
        "private_clip_norm",
    ),
    "tacit.models": (
        "Model",
        "bayesian",
        "explain_program",
        "from_equinox",
        "from_flax",
        "from_function",
        "from_program",
    ),
    "tacit.posterior": (
        "Posterior",
        "load_posterior",
        "predict",
    ),
    "tacit.privacy.accounting": (
        "Adjacency",
        "GDP",
        "PLD",
        "RDP",
        "epsilon",
    ),
    "tacit.privacy.budget": ("Budget",),
    "tacit.privacy.calibration": ("noise_multiplier",),
    "tacit.privacy.clipping": ("explain_clipping",),
    "tacit.privacy.cost": ("Cost",),
    "tacit.privacy.ledger": ("LedgerFile",),
    "tacit.privacy.mechanism": ("GaussianSum",),
    "tacit.privacy.sampling": (
        "FixedBatch",
        "FullBatch",
        "PoissonBatch",
    ),
    "tacit.rehearsal": ("rehearse",),
    "tacit.robust": (
        "L2",
        "Linf",
        "PGD",
        "adversarial",
        "robust_accuracy",
    ),
    "tacit.tables": (
        "OnHost",
        "distribute",
    ),
    "tacit.typing": ("Record",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_PACKAGES = (
    "audit",
    "certify",
    "compiling",
    "data",
    "errors",
    "estimators",
    "inference",
    "intervals",
    "metrics",
    "models",
    "native",
    "numpyro",
    "posterior",
    "privacy",
    "processes",
    "recalibration",
    "rehearsal",
    "report",
    "rng",
    "robust",
    "samplers",
    "studies",
    "synthetic",
    "tables",
    "typing",
)

__all__ = sorted(_HOME_OF)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
    elif name in _PACKAGES:
        value = importlib.import_module(f"tacit.{name}")
    else:
        raise AttributeError(f"module 'tacit' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, *_PACKAGES, "__version__"]
