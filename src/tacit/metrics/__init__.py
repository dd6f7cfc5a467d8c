"""Metrics: arrays in, numbers out.

All of them are post-processing and cost no privacy on public or separately consented records;
on private records a metric is a release and must be charged.
"""

from tacit.metrics.calibration import (
    ReliabilityTable,
    ace,
    ece,
    gaussian_interval,
    interval_coverage,
    interval_score,
    mce,
    mixture_interval,
    quantile_interval,
    reliability,
    sce,
)
from tacit.metrics.chains import (
    diagnose,
    ess_bulk,
    ess_tail,
    mcse,
    r_hat,
)
from tacit.metrics.confidence import (
    Interval,
    bootstrap,
    calibration_interval,
    wilson_interval,
)
from tacit.metrics.scores import (
    accuracy,
    auroc,
    brier,
    gaussian_nll,
    mse,
    nll,
    rmse,
)
from tacit.metrics.selection import (
    accuracy_at_coverage,
    aurc,
    excess_aurc,
    fpr95,
    ood_auroc,
    ood_scores,
    risk_coverage,
)
from tacit.metrics.uncertainty import (
    ClassificationUncertainty,
    RegressionUncertainty,
    classification_uncertainty,
    regression_uncertainty,
)

__all__ = [
    "ClassificationUncertainty",
    "Interval",
    "RegressionUncertainty",
    "ReliabilityTable",
    "accuracy",
    "accuracy_at_coverage",
    "ace",
    "aurc",
    "auroc",
    "bootstrap",
    "brier",
    "calibration_interval",
    "classification_uncertainty",
    "diagnose",
    "ece",
    "ess_bulk",
    "ess_tail",
    "excess_aurc",
    "fpr95",
    "gaussian_interval",
    "gaussian_nll",
    "interval_coverage",
    "interval_score",
    "mce",
    "mcse",
    "mixture_interval",
    "mse",
    "nll",
    "ood_auroc",
    "ood_scores",
    "quantile_interval",
    "r_hat",
    "regression_uncertainty",
    "reliability",
    "risk_coverage",
    "rmse",
    "sce",
    "wilson_interval",
]
