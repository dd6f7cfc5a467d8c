"""Metrics: arrays in, numbers out.

All of them are post-processing and cost no privacy on public or separately consented records;
on private records a metric is a release and must be charged.
"""

from tacit.metrics.bootstrap import bootstrap, calibration_interval
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
from tacit.metrics.intervals import (
    Band,
    gaussian_interval,
    interval_coverage,
    interval_score,
    mixture_interval,
    quantile_interval,
)
from tacit.metrics.ood import OODScores, fpr95, fpr_at, ood_auroc, ood_scores
from tacit.metrics.sampling_error import Interval, wilson_interval
from tacit.metrics.scores import accuracy, auroc, brier, gaussian_nll, mse, nll, rmse
from tacit.metrics.selective import (
    RiskCoverage,
    accuracy_at_coverage,
    aurc,
    excess_aurc,
    risk_coverage,
)
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
    "Band",
    "ChainDiagnostics",
    "ClassificationUncertainty",
    "DrawMoments",
    "Interval",
    "OODScores",
    "RegressionUncertainty",
    "ReliabilityTable",
    "RiskCoverage",
    "accuracy",
    "accuracy_at_coverage",
    "ace",
    "aurc",
    "auroc",
    "bootstrap",
    "brier",
    "calibration_interval",
    "classification_moments",
    "classification_uncertainty",
    "decompose_classification",
    "decompose_regression",
    "diagnose",
    "ece",
    "ess_bulk",
    "ess_tail",
    "excess_aurc",
    "fpr95",
    "fpr_at",
    "gaussian_interval",
    "gaussian_nll",
    "interval_coverage",
    "interval_score",
    "mce",
    "mcse",
    "merge_moments",
    "mixture_interval",
    "mse",
    "nll",
    "ood_auroc",
    "ood_scores",
    "quantile_interval",
    "r_hat",
    "regression_moments",
    "regression_uncertainty",
    "reliability",
    "risk_coverage",
    "rmse",
    "sce",
    "wilson_interval",
    "zhang_ece",
    "zhang_mce",
]
