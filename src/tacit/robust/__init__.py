"""Robustness: attacks on inputs, and models whose likelihood withstands them.

Robustness is a transform of a model, so that it composes with every method, private or not:
`adversarial` attacks each record as it is looked at, `certified` bounds the worst that any attack
could do. A record's robust loss is one loss: one gradient, one clip, one release, at the cost of
the plain one. ADV-DP-HMC, for one, is Hamiltonian Monte Carlo on a certified model: the robust
likelihood enters its gradients and its acceptance ratio, each clipped once. A radius that grows
during training is a schedule of models: see `tacit.inference.Scheduled`.

Whether a posterior withstands attacks is measured by `robust_accuracy`, on public inputs, at no
cost.
"""

from tacit.robust.attacks import FGSM, PGD, attack_posterior, robust_accuracy
from tacit.robust.balls import L2, Linf
from tacit.robust.training import adversarial

__all__ = ["FGSM", "L2", "PGD", "Linf", "adversarial", "attack_posterior", "robust_accuracy"]
