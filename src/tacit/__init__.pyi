"""For type checkers: `__init__.py` has the same names, loaded when they are used."""

from tacit.certify import certified as certified
from tacit.data import (
    as_records as as_records,
)
from tacit.errors import (
    BudgetExceededError as BudgetExceededError,
)
from tacit.errors import (
    CrossRecordError as CrossRecordError,
)
from tacit.errors import (
    InvalidArgumentError as InvalidArgumentError,
)
from tacit.errors import (
    LedgerDamagedError as LedgerDamagedError,
)
from tacit.errors import (
    LedgerError as LedgerError,
)
from tacit.errors import (
    PrivacyWarning as PrivacyWarning,
)
from tacit.errors import (
    TacitError as TacitError,
)
from tacit.errors import (
    UnprovenAccountingError as UnprovenAccountingError,
)
from tacit.estimators import (
    PrivateBayesClassifier as PrivateBayesClassifier,
)
from tacit.estimators import (
    PrivateBayesRegressor as PrivateBayesRegressor,
)
from tacit.inference import (
    HMC as HMC,
)
from tacit.inference import (
    IVON as IVON,
)
from tacit.inference import (
    SGD as SGD,
)
from tacit.inference import (
    SGHMC as SGHMC,
)
from tacit.inference import (
    SGLD as SGLD,
)
from tacit.inference import (
    SWAG as SWAG,
)
from tacit.inference import (
    VI as VI,
)
from tacit.inference import (
    Ensemble as Ensemble,
)
from tacit.inference import (
    Fit as Fit,
)
from tacit.inference import (
    IterateAverage as IterateAverage,
)
from tacit.inference import (
    LowRank as LowRank,
)
from tacit.inference import (
    MeanField as MeanField,
)
from tacit.inference import (
    Plan as Plan,
)
from tacit.inference import (
    ProgressBar as ProgressBar,
)
from tacit.inference import (
    Ramp as Ramp,
)
from tacit.inference import (
    RecordDraws as RecordDraws,
)
from tacit.inference import (
    Scheduled as Scheduled,
)
from tacit.inference import (
    SharedDraws as SharedDraws,
)
from tacit.inference import assign_shards as assign_shards
from tacit.inference import (
    calibrate as calibrate,
)
from tacit.inference import (
    calibrate_batch_size as calibrate_batch_size,
)
from tacit.inference import (
    calibrate_steps as calibrate_steps,
)
from tacit.inference import (
    data_free_clip_norm as data_free_clip_norm,
)
from tacit.inference import (
    fit as fit,
)
from tacit.inference import (
    load_checkpoint as load_checkpoint,
)
from tacit.inference import (
    private_clip_norm as private_clip_norm,
)
from tacit.inference import (
    save_checkpoint as save_checkpoint,
)
from tacit.inference import (
    synthetic_records as synthetic_records,
)
from tacit.models import (
    Model as Model,
)
from tacit.models import (
    bayesian as bayesian,
)
from tacit.models import (
    explain_program as explain_program,
)
from tacit.models import (
    from_equinox as from_equinox,
)
from tacit.models import (
    from_flax as from_flax,
)
from tacit.models import (
    from_function as from_function,
)
from tacit.models import (
    from_nnx as from_nnx,
)
from tacit.models import (
    from_program as from_program,
)
from tacit.posterior import (
    Posterior as Posterior,
)
from tacit.posterior import (
    load_posterior as load_posterior,
)
from tacit.posterior import (
    predict as predict,
)
from tacit.privacy.accounting import (
    GDP as GDP,
)
from tacit.privacy.accounting import (
    PLD as PLD,
)
from tacit.privacy.accounting import (
    RDP as RDP,
)
from tacit.privacy.accounting import (
    Adjacency as Adjacency,
)
from tacit.privacy.accounting import (
    CLTApproximation as CLTApproximation,
)
from tacit.privacy.accounting import (
    delta as delta,
)
from tacit.privacy.accounting import (
    epsilon as epsilon,
)
from tacit.privacy.budget import (
    Budget as Budget,
)
from tacit.privacy.budget import (
    InMemoryLedger as InMemoryLedger,
)
from tacit.privacy.clipping import (
    Flat as Flat,
)
from tacit.privacy.clipping import (
    Normalised as Normalised,
)
from tacit.privacy.clipping import (
    PerLayer as PerLayer,
)
from tacit.privacy.clipping import (
    explain_clipping as explain_clipping,
)
from tacit.privacy.cost import (
    Cost as Cost,
)
from tacit.privacy.filters import (
    GDPFilter as GDPFilter,
)
from tacit.privacy.filters import (
    RDPFilter as RDPFilter,
)
from tacit.privacy.ledger import (
    DataSetLedger as DataSetLedger,
)
from tacit.privacy.ledger import (
    LedgerFile as LedgerFile,
)
from tacit.privacy.mechanism import (
    GaussianSum as GaussianSum,
)
from tacit.privacy.sampling import (
    FixedBatch as FixedBatch,
)
from tacit.privacy.sampling import (
    FullBatch as FullBatch,
)
from tacit.privacy.sampling import (
    PoissonBatch as PoissonBatch,
)
from tacit.robust import (
    FGSM as FGSM,
)
from tacit.robust import (
    L2 as L2,
)
from tacit.robust import (
    PGD as PGD,
)
from tacit.robust import (
    Linf as Linf,
)
from tacit.robust import (
    adversarial as adversarial,
)
from tacit.robust import (
    attack_posterior as attack_posterior,
)
from tacit.robust import (
    robust_accuracy as robust_accuracy,
)
from tacit.tables import (
    OnHost as OnHost,
)
from tacit.tables import (
    distribute as distribute,
)
from tacit.typing import (
    Record as Record,
)

__version__: str
__all__: list[str]
