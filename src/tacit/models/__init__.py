"""Models: priors, likelihoods and networks; they know nothing of privacy."""

from tacit.models.base import (
    FrontEnd,
    IntegrableLogPrior,
    Likelihood,
    Model,
    Moments,
    Network,
    Prediction,
    Prior,
    part,
)
from tacit.models.bayesian import (
    bayesian,
    from_equinox,
    from_flax,
    from_function,
    from_nnx,
    model_from_spec,
)
from tacit.models.front_end import (
    FixedFrontEnd,
    Whitened,
    draw_shapes,
    extract_features,
    with_front_end,
)
from tacit.models.layers import Activation
from tacit.models.likelihoods import (
    Bernoulli,
    Categorical,
    FixedGaussian,
    HeteroscedasticGaussian,
    LearntGaussian,
    PoissonCounts,
)
from tacit.models.networks import CNN, MLP, AveragePool, Conv, EmbeddingBag, MaxPool
from tacit.models.priors import FlatPrior, GaussianPrior, LaplacePrior, PerLeafPrior
from tacit.models.programs import constrained, explain_program, from_program
from tacit.models.scattering import Scattering

__all__ = [
    "CNN",
    "MLP",
    "Activation",
    "AveragePool",
    "Bernoulli",
    "Categorical",
    "Conv",
    "EmbeddingBag",
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
    "model_from_spec",
    "part",
    "with_front_end",
]
