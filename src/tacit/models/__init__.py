"""Models: priors, likelihoods and networks; they know nothing of privacy."""

from tacit.models.activations import Activation
from tacit.models.adapters import from_equinox, from_flax, from_function, from_nnx
from tacit.models.architectures import (
    ghitu_mnist_mlp,
    ghitu_pneumonia_cnn,
    zhang_mnist_cnn,
    zhang_mnist_mlp,
    zhang_regression_mlp,
)
from tacit.models.base import (
    IntegrableLogPrior,
    Likelihood,
    Model,
    Moments,
    Network,
    Prediction,
    Prior,
)
from tacit.models.bayesian import bayesian, model_from_spec
from tacit.models.boxes import Box
from tacit.models.cnn import CNN, AveragePool, Conv, MaxPool
from tacit.models.crown import EuclideanBall, linear_bounds
from tacit.models.embedding import EmbeddingBag
from tacit.models.features import extract_features, with_front_end
from tacit.models.front_end import FixedFrontEnd
from tacit.models.intervals import interval_bounds, interval_bounds_over_weights
from tacit.models.likelihoods import (
    Bernoulli,
    Categorical,
    FixedGaussian,
    HeteroscedasticGaussian,
    LearntGaussian,
    PoissonCounts,
)
from tacit.models.mlp import MLP
from tacit.models.priors import FlatPrior, GaussianPrior, LaplacePrior, PerLeafPrior
from tacit.models.programs import constrained, explain_program, from_program
from tacit.models.scattering import Scattering
from tacit.models.shapes import draw_shapes
from tacit.models.whitening import FrontEnd, Whitened

__all__ = [
    "CNN",
    "MLP",
    "Activation",
    "AveragePool",
    "Bernoulli",
    "Box",
    "Categorical",
    "Conv",
    "EmbeddingBag",
    "EuclideanBall",
    "FixedFrontEnd",
    "FixedGaussian",
    "FlatPrior",
    "FrontEnd",
    "GaussianPrior",
    "HeteroscedasticGaussian",
    "IntegrableLogPrior",
    "LaplacePrior",
    "LearntGaussian",
    "Likelihood",
    "MaxPool",
    "Model",
    "Moments",
    "Network",
    "PerLeafPrior",
    "PoissonCounts",
    "Prediction",
    "Prior",
    "Scattering",
    "Whitened",
    "bayesian",
    "constrained",
    "draw_shapes",
    "explain_program",
    "extract_features",
    "from_equinox",
    "from_flax",
    "from_function",
    "from_nnx",
    "from_program",
    "ghitu_mnist_mlp",
    "ghitu_pneumonia_cnn",
    "interval_bounds",
    "interval_bounds_over_weights",
    "linear_bounds",
    "model_from_spec",
    "with_front_end",
    "zhang_mnist_cnn",
    "zhang_mnist_mlp",
    "zhang_regression_mlp",
]
