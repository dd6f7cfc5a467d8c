"""Opacus' private step, with per-record gradients by hooks or with ghost clipping.

The batch is a random gather of fixed size: Opacus' own Poisson loader, which collects records one
by one, would only add to it.
"""

import copy
import os
import sys
from collections.abc import Callable
from typing import Any

import opacus
import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers import serve
from benchmarks.timing import repeat

_CLIP_NORM, _NOISE_MULTIPLIER, _LEARNING_RATE = 1.0, 1.0, 1e-3  # as in tasks.py, without JAX
_NUM_RECORDS, _NUM_CLASSES = 60_000, 10
_NUM_CHECKED = 4


def _mlp(*hidden: int) -> nn.Module:
    sizes = (784, *hidden, _NUM_CLASSES)
    layers: list[nn.Module] = []
    for i in range(len(hidden)):
        layers += [nn.Linear(sizes[i], sizes[i + 1]), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def _cnn() -> nn.Module:
    """The network of Opacus' own MNIST example."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.ReLU(),
        nn.Linear(32, _NUM_CLASSES),
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp-784-1200-1200-10": (lambda: _mlp(1200, 1200), (784,)),
    "mlp-784-512-10": (lambda: _mlp(512), (784,)),
    "cnn-mnist": (_cnn, (1, 28, 28)),
}
"""The network and the shape of an input, by workload."""


def build(
    mode: str, network: nn.Module, batch: int, *, noise_multiplier: float, learning_rate: float
) -> Callable[[Tensor, Tensor], None]:
    """Returns ``update(x, y)``, which trains the network by one private step."""
    size = torch.zeros(batch)  # only its length is read
    private: Any = PrivacyEngine().make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=learning_rate),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(TensorDataset(size), batch_size=batch),
        noise_multiplier=noise_multiplier,
        max_grad_norm=_CLIP_NORM,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    if mode == "ghost":
        module, optimizer, criterion, _ = private
    else:
        module, optimizer, _ = private
        criterion = nn.CrossEntropyLoss()

    def update(x: Tensor, y: Tensor) -> None:
        criterion(module(x), y).backward()
        optimizer.step()
        # Now rather than before the next step: per-record gradients are gigabytes to hold.
        optimizer.zero_grad()

    return update


def check(mode: str, workload: str) -> None:
    """Raises unless every record is clipped by itself and the noise has its stated size."""
    make, shape = NETWORKS[workload]
    network = make()
    x, y = _records(_NUM_CHECKED, shape)

    def mean_of(noise_multiplier: float) -> Tensor:
        trained = copy.deepcopy(network)
        update = build(
            mode, trained, _NUM_CHECKED, noise_multiplier=noise_multiplier, learning_rate=1.0
        )
        update(x, y)
        return _flat(network) - _flat(trained)

    expected = torch.zeros_like(_flat(network))
    for i in range(_NUM_CHECKED):
        loss = nn.functional.cross_entropy(network(x[i : i + 1]), y[i : i + 1])
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        own = torch.cat([gradient.ravel() for gradient in gradients])
        expected += own * min(1.0, _CLIP_NORM / own.norm().item()) / _NUM_CHECKED
    without = mean_of(0.0)
    torch.testing.assert_close(without, expected, rtol=0, atol=1e-3 * expected.abs().max().item())
    spread = (mean_of(_NOISE_MULTIPLIER) - without).std()
    stated = torch.tensor(_NOISE_MULTIPLIER * _CLIP_NORM / _NUM_CHECKED)
    torch.testing.assert_close(spread, stated, rtol=0.1, atol=0)


def step_of(mode: str, workload: str, batch: int) -> Callable[[], None]:
    """Returns a function that trains for one private step."""
    make, shape = NETWORKS[workload]
    update = build(
        mode, make(), batch, noise_multiplier=_NOISE_MULTIPLIER, learning_rate=_LEARNING_RATE
    )
    x, y = _records(_NUM_RECORDS, shape)

    def run() -> None:
        indices = torch.randint(_NUM_RECORDS, (batch,))
        update(x[indices], y[indices])

    return run


def _records(num_records: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    return torch.randn(num_records, *shape), torch.randint(_NUM_CLASSES, (num_records,))


def _flat(network: nn.Module) -> Tensor:
    return torch.cat([leaf.detach().ravel() for leaf in network.parameters()])


def main() -> None:
    """Checks the peer, then runs its steps on demand."""
    mode, workload, batch = sys.argv[1:]
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    check(mode, workload)
    versions = {"opacus": opacus.__version__, "torch": torch.__version__}
    serve({"dispatched": repeat(step_of(mode, workload, int(batch)))}, versions)


if __name__ == "__main__":
    main()
