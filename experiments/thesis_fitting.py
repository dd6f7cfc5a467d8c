"""The thesis' chains: from settings to a posterior, private or not, robust or not.

A chain of Hamiltonian Monte Carlo has phases, all counted in one epsilon, each from where the last
one ended; the first starts from weights that know nothing of the data. Early phases go downhill.
With clipped gradients a trajectory gains less kinetic energy than it loses potential energy, so it
is accepted in spite of the noise; at a low temperature all losses count more, and momentum less.
The last phase takes moves that are small enough to be accepted where nothing is left to gain. Its
states are the posterior. A first phase may also be a burn-in, all of whose moves count, from the
same start and in the same epsilon: stochastic gradient Hamiltonian Monte Carlo, or without privacy
stochastic gradient descent.
"""

from collections.abc import Sequence

import optax

import tacit
from experiments.architectures import ghitu_mnist_mlp
from experiments.cells import Settings
from experiments.thesis_inputs import SCATTERING
from tacit.inference import Phase, calibrate_phases, fit_phases, tempered
from tacit.models import CNN, MLP, Categorical, GaussianPrior
from tacit.models.networks import AveragePool
from tacit.robust import FGSM, PGD, Linf
from tacit.typing import Key, Params, Record, Scalar

__all__ = [
    "NETWORKS",
    "ball",
    "descent",
    "is_burn_in",
    "model_of",
    "num_releases",
    "robust",
    "run_chain",
]


def _pooled(hidden: int, num_outputs: int) -> CNN:
    """Returns a hidden layer on averages of 2 x 2 pixels."""
    return CNN(
        input_shape=(28, 28, 1),
        stages=(AveragePool(window=2, stride=2),),
        hidden=(hidden,),
        num_outputs=num_outputs,
    )


NETWORKS: dict[str, MLP | CNN] = {
    "784-512-10": ghitu_mnist_mlp(),
    "pooled 196-32-10": _pooled(32, 10),
    SCATTERING: MLP(num_inputs=3969, num_outputs=10),
    "pooled 196-32-2": _pooled(32, 2),
}
"""The thesis' own for MNIST, and others that are small enough for the noise of a private chain."""


def ball(radius: float) -> Linf:
    """Returns where an adversary may move the pixels."""
    return Linf(radius=radius, low=0.0, high=1.0)


def model_of(settings: Settings) -> tacit.Model:
    """Returns the network under its prior, before anything is made robust."""
    network = NETWORKS[settings["network"]]
    model = tacit.bayesian(
        network,
        prior=GaussianPrior(std=settings["prior_std"]),
        likelihood=Categorical(num_classes=network.num_outputs),
    )

    def init(key: Key) -> Params:
        params = model.init(key)
        first = params["network"][min(params["network"])]
        first["kernel"] = settings["first_layer"] * first["kernel"]
        return params

    return model._replace(init=init)


def robust(settings: Settings, model: tacit.Model, radius: float | Scalar) -> tacit.Model:
    """Returns the model whose likelihood sees the adversary that the settings name."""
    weight, area = settings["clean_weight"], ball(0.0).at(radius)
    match settings["adversary"]:
        case "none":
            return model
        case "FGSM":
            return tacit.adversarial(model, FGSM(ball=area), weight=weight)
        case "PGD":
            attack = PGD(ball=area, num_steps=settings["attack_steps"])
            return tacit.adversarial(model, attack, weight=weight)
    return tacit.certified(model, NETWORKS[settings["network"]], area, weight=weight)


def run_chain(settings: Settings, train: Record, seed: int) -> Sequence[tacit.Fit]:
    """Runs the phases one after the other; the last one's statement counts them all."""
    model, budget = model_of(settings), tacit.Budget.non_private()
    phases = [_phase(settings, phase, len(train.y)) for phase in settings["phases"]]
    if "epsilon" in settings["phases"][-1]:
        *_, budget = budgets = [
            tacit.Budget(epsilon=phase["epsilon"], delta=settings["delta"])
            for phase in settings["phases"]
        ]
        phases = calibrate_phases(phases, budgets)
    return fit_phases(phases, model, train, budget=budget, seed=seed)


def _phase(settings: Settings, phase: Settings, num_records: int) -> Phase:
    if is_burn_in(phase):
        num_steps = phase["num_steps"]
        method = _burn_in(settings, phase, num_records)
        return Phase(
            plan=tacit.Plan(method=method, num_steps=num_steps, burn_in=num_steps - 1, thinning=1)
        )

    def seen(model: tacit.Model) -> tacit.Model:
        return tempered(robust(settings, model, phase["radius"]), phase["temperature"])

    plan = tacit.Plan(
        method=_method(phase, num_records), num_steps=phase["num_proposals"], thinning=1
    )
    return Phase(plan=plan, transform=seen)


def is_burn_in(phase: Settings) -> bool:
    """Returns whether a phase is one without proposals, all of whose moves count."""
    return "num_steps" in phase


def num_releases(phases: Sequence[Settings]) -> int:
    """Returns how many releases the phases make: their gradients, each used twice, and ratios."""
    return sum(
        p["num_steps"] if is_burn_in(p) else p["num_proposals"] * (p["num_leapfrog"] + 1) + 1
        for p in phases
    )


def _burn_in(settings: Settings, phase: Settings, num_records: int) -> tacit.inference.Scheduled:
    """Returns a method that goes downhill while the radius grows."""
    ramp = tacit.inference.Ramp(
        first=0.0, last=phase["radius"], stop=round(_RAMP * phase["num_steps"])
    )

    def seen(model: tacit.Model, step: Scalar) -> tacit.Model:
        return robust(settings, model, ramp(step))

    if "epsilon" not in phase:
        return tacit.inference.Scheduled(base=descent(phase, num_records), transform=seen)
    release = tacit.GaussianSum(
        sampling=_sampling(phase, num_records),
        clip_norm=phase["clip_norm"],
        noise_multiplier=1.0,
        chunk_size=_CHUNK,
    )
    method = tacit.SGHMC.fixed_noise(
        release=release, step_size=phase["learning_rate"] / num_records, friction=_FRICTION
    )
    return tacit.inference.Scheduled(base=method, transform=seen)


def descent(settings: Settings, num_records: int) -> tacit.SGD:
    """Returns stochastic gradient descent with momentum, not private."""
    release = tacit.GaussianSum.non_private(sampling=_sampling(settings, num_records))
    return tacit.SGD(
        release=release, optimizer=optax.sgd(settings["learning_rate"], momentum=1 - _FRICTION)
    )


def _method(phase: Settings, num_records: int) -> tacit.HMC:
    step_size = phase["path_length"] / phase["num_leapfrog"]
    if "epsilon" not in phase:
        return tacit.HMC.non_private(
            num_records=num_records,
            step_size=step_size,
            num_leapfrog=phase["num_leapfrog"],
            jitter=_JITTER,
            chunk_size=_CHUNK,
        )
    return tacit.HMC(
        gradient=tacit.GaussianSum(
            sampling=_sampling(phase, num_records),
            clip_norm=phase["clip_norm"],
            noise_multiplier=1.0,
            chunk_size=_CHUNK,
        ),
        ratio=tacit.GaussianSum(
            sampling=tacit.FullBatch(num_records=num_records),
            clip_norm=phase["ratio_clip_norm"],
            noise_multiplier=phase["ratio_noise"],  # times that of a gradient
            chunk_size=_CHUNK,
        ),
        step_size=step_size,
        num_leapfrog=phase["num_leapfrog"],
        jitter=_JITTER,
        reuse_gradient=True,
    )


def _sampling(phase: Settings, num_records: int) -> tacit.FullBatch | tacit.PoissonBatch:
    if phase["batch_size"] >= num_records:
        return tacit.FullBatch(num_records=num_records)
    return tacit.PoissonBatch(num_records=num_records, batch_size=phase["batch_size"])


_JITTER = 0.1
_CHUNK = 2048
_RAMP, _FRICTION = 0.6, 0.1
