"""Private Bayesian deep learning: posteriors that may be published.

>>> import tacit
>>> budget = tacit.Budget(epsilon=1.0, delta=1e-5)
"""

from tacit.data import as_records
from tacit.errors import (
    BudgetExceededError,
    CrossRecordError,
    InvalidArgumentError,
    PrivacyWarning,
    TacitError,
    UnprovenAccountingError,
)
from tacit.inference import (
    SGD,
    SGLD,
    SWAG,
    Fit,
    IterateAverage,
    Plan,
    ProgressBar,
    Ramp,
    Scheduled,
    calibrate,
    calibrate_batch_size,
    calibrate_steps,
    data_free_clip_norm,
    fit,
    load_checkpoint,
    private_clip_norm,
    save_checkpoint,
    synthetic_records,
)
from tacit.models import Model, bayesian, from_equinox, from_flax, from_function, from_nnx
from tacit.posterior import Posterior, load_posterior, predict
from tacit.privacy.accounting import (
    GDP,
    PLD,
    RDP,
    Adjacency,
    CLTApproximation,
    delta,
    epsilon,
)
from tacit.privacy.budget import Budget, InMemoryLedger
from tacit.privacy.clipping import Flat, Normalised, PerLayer, explain_clipping
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FixedBatch, FullBatch, PoissonBatch
from tacit.robust import (
    FGSM,
    L2,
    PGD,
    Linf,
    adversarial,
    attack_posterior,
    certified,
    robust_accuracy,
)
from tacit.typing import Record

__version__ = "0.1.0"

__all__ = [
    "FGSM",
    "GDP",
    "L2",
    "PGD",
    "PLD",
    "RDP",
    "SGD",
    "SGLD",
    "SWAG",
    "Adjacency",
    "Budget",
    "BudgetExceededError",
    "CLTApproximation",
    "CrossRecordError",
    "Fit",
    "FixedBatch",
    "Flat",
    "FullBatch",
    "GaussianSum",
    "InMemoryLedger",
    "InvalidArgumentError",
    "IterateAverage",
    "Linf",
    "Model",
    "Normalised",
    "PerLayer",
    "Plan",
    "PoissonBatch",
    "Posterior",
    "PrivacyWarning",
    "ProgressBar",
    "Ramp",
    "Record",
    "Scheduled",
    "TacitError",
    "UnprovenAccountingError",
    "adversarial",
    "as_records",
    "attack_posterior",
    "bayesian",
    "calibrate",
    "calibrate_batch_size",
    "calibrate_steps",
    "certified",
    "data_free_clip_norm",
    "delta",
    "epsilon",
    "explain_clipping",
    "fit",
    "from_equinox",
    "from_flax",
    "from_function",
    "from_nnx",
    "load_checkpoint",
    "load_posterior",
    "predict",
    "private_clip_norm",
    "robust_accuracy",
    "save_checkpoint",
    "synthetic_records",
]
