"""Models: priors, likelihoods and networks; they know nothing of privacy."""

from tacit.models.base import Model, part
from tacit.models.bayesian import bayesian, from_equinox, from_flax, from_function
from tacit.models.front_end import FixedFrontEnd, Whitened, extract_features, with_front_end
from tacit.models.likelihoods import (
    Bernoulli,
    Categorical,
    FixedGaussian,
    HeteroscedasticGaussian,
    LearntGaussian,
    NegativeBinomial,
    PoissonCounts,
)
from tacit.models.networks import CNN, MLP, Conv, EmbeddingBag, MaxPool
from tacit.models.priors import FlatPrior, GaussianPrior, LaplacePrior
from tacit.models.programs.model import from_program
from tacit.models.programs.split import explain_program
from tacit.models.scattering import Scattering

__all__ = [
    "CNN",
    "MLP",
    "Bernoulli",
    "Categorical",
    "Conv",
    "EmbeddingBag",
    "FixedFrontEnd",
    "FixedGaussian",
    "FlatPrior",
    "GaussianPrior",
    "HeteroscedasticGaussian",
    "LaplacePrior",
    "LearntGaussian",
    "MaxPool",
    "Model",
    "NegativeBinomial",
    "PoissonCounts",
    "Scattering",
    "Whitened",
    "bayesian",
    "explain_program",
    "extract_features",
    "from_equinox",
    "from_flax",
    "from_function",
    "from_program",
    "part",
    "with_front_end",
]
