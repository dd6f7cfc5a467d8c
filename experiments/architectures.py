"""The networks of the published results that are reproduced here, by name.

References:
  Zhang, Bu, Chen and Long: Differentially Private Bayesian Neural Networks on Accuracy, Privacy
  and Reliability. Ghitu: Robustness-Privacy Trade-Off In Bayesian Neural Networks (thesis, Imperial
  College London, 2024).
"""

from tacit.models import CNN, MLP, Conv, MaxPool

__all__ = [
    "ghitu_mnist_mlp",
    "ghitu_pneumonia_cnn",
    "zhang_mnist_cnn",
    "zhang_mnist_mlp",
    "zhang_regression_mlp",
]


def zhang_mnist_mlp(*, dropout: float = 0.0) -> MLP:
    """Returns 784-1200-1200-10 with ReLU; the paper's Monte-Carlo dropout has rate 0.5."""
    return MLP(num_inputs=784, hidden=(1200, 1200), num_outputs=10, dropout=dropout)


def zhang_mnist_cnn(*, dropout: float = 0.0) -> CNN:
    """Returns the four-layer CNN for MNIST, which is also that of Opacus' MNIST example."""
    return CNN(
        input_shape=(28, 28, 1),
        stages=(
            Conv(features=16, kernel=8, stride=2, padding=3),
            MaxPool(window=2, stride=1),
            Conv(features=32, kernel=4, stride=2),
            MaxPool(window=2, stride=1),
        ),
        hidden=(32,),
        num_outputs=10,
        dropout=dropout,
    )


def zhang_regression_mlp(*, num_outputs: int = 2, dropout: float = 0.0) -> MLP:
    """Returns 1-200-200 with ReLU; two outputs serve the heteroscedastic Gaussian."""
    return MLP(num_inputs=1, hidden=(200, 200), num_outputs=num_outputs, dropout=dropout)


def ghitu_mnist_mlp() -> MLP:
    """Returns 784-512-10 with ReLU."""
    return MLP(num_inputs=784, hidden=(512,), num_outputs=10)


def ghitu_pneumonia_cnn() -> CNN:
    """Returns the CNN for PneumoniaMNIST, with one logit.

    The thesis prints 32 channels in the second convolution, but its 4800 flattened features are
    48 channels of 10 x 10.
    """
    return CNN(
        input_shape=(28, 28, 1),
        stages=(Conv(features=16, kernel=4, stride=2), Conv(features=48, kernel=4)),
        hidden=(100,),
        num_outputs=1,
    )
