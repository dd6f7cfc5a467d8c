"""The names of `__init__.py`, for type checkers."""

from tacit.certify import certified
from tacit.data import as_records
from tacit.errors import BudgetExceededError, InvalidArgumentError, PrivacyWarning, TacitError
from tacit.estimators import PrivateBayesClassifier, PrivateBayesRegressor
from tacit.inference import (
    HMC,
    IVON,
    SGD,
    SGHMC,
    SGLD,
    SWAG,
    VI,
    Ensemble,
    Fit,
    Laplace,
    MeanField,
    Plan,
    calibrate,
    calibrate_steps,
    data_free_clip_norm,
    fit,
    private_clip_norm,
)
from tacit.models import (
    Model,
    bayesian,
    explain_program,
    from_equinox,
    from_flax,
    from_function,
    from_program,
)
from tacit.posterior import Posterior, load_posterior, predict
from tacit.privacy.accounting import GDP, PLD, RDP, Adjacency, epsilon
from tacit.privacy.budget import Budget
from tacit.privacy.calibration import noise_multiplier
from tacit.privacy.clipping import explain_clipping
from tacit.privacy.cost import Cost
from tacit.privacy.ledger import LedgerFile
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FixedBatch, FullBatch, PoissonBatch
from tacit.rehearsal import rehearse
from tacit.robust import L2, PGD, Linf, adversarial, robust_accuracy
from tacit.tables import OnHost, distribute
from tacit.typing import Record

__version__: str
__all__ = [
    "GDP",
    "HMC",
    "IVON",
    "L2",
    "PGD",
    "PLD",
    "RDP",
    "SGD",
    "SGHMC",
    "SGLD",
    "SWAG",
    "VI",
    "Adjacency",
    "Budget",
    "BudgetExceededError",
    "Cost",
    "Ensemble",
    "Fit",
    "FixedBatch",
    "FullBatch",
    "GaussianSum",
    "InvalidArgumentError",
    "Laplace",
    "LedgerFile",
    "Linf",
    "MeanField",
    "Model",
    "OnHost",
    "Plan",
    "PoissonBatch",
    "Posterior",
    "PrivacyWarning",
    "PrivateBayesClassifier",
    "PrivateBayesRegressor",
    "Record",
    "TacitError",
    "adversarial",
    "as_records",
    "bayesian",
    "calibrate",
    "calibrate_steps",
    "certified",
    "data_free_clip_norm",
    "distribute",
    "epsilon",
    "explain_clipping",
    "explain_program",
    "fit",
    "from_equinox",
    "from_flax",
    "from_function",
    "from_program",
    "load_posterior",
    "noise_multiplier",
    "predict",
    "private_clip_norm",
    "rehearse",
    "robust_accuracy",
]
