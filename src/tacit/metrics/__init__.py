"""Metrics: arrays in, numbers out.

All of them are post-processing and cost no privacy on public or separately consented records;
on private records a metric is a release and must be charged.
"""

from tacit.metrics.calibration import (
    ReliabilityTable,
    ace,
    ece,
    mce,
    reliability,
    sce,
    zhang_ece,
    zhang_mce,
)
from tacit.metrics.chains import ChainDiagnostics, diagnose, ess_bulk, ess_tail, mcse, r_hat
from tacit.metrics.sampling_error import Interval, bootstrap, wilson_interval
from tacit.metrics.scores import accuracy, auroc, brier, gaussian_nll, mse, nll, rmse
from tacit.metrics.uncertainty import (
    ClassificationUncertainty,
    DrawMoments,
    RegressionUncertainty,
    classification_moments,
    classification_uncertainty,
    decompose_classification,
    decompose_regression,
    merge_moments,
    regression_moments,
    regression_uncertainty,
)

__all__ = [
    "ChainDiagnostics",
    "ClassificationUncertainty",
    "DrawMoments",
    "Interval",
    "RegressionUncertainty",
    "ReliabilityTable",
    "accuracy",
    "ace",
    "auroc",
    "bootstrap",
    "brier",
    "classification_moments",
    "classification_uncertainty",
    "decompose_classification",
    "decompose_regression",
    "diagnose",
    "ece",
    "ess_bulk",
    "ess_tail",
    "gaussian_nll",
    "mce",
    "mcse",
    "merge_moments",
    "mse",
    "nll",
    "r_hat",
    "regression_moments",
    "regression_uncertainty",
    "reliability",
    "rmse",
    "sce",
    "wilson_interval",
    "zhang_ece",
    "zhang_mce",
]
