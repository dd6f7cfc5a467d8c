"""The engine under the strongest attack: bugs are found in seconds, honest noise is not accused.

Seeds are fixed. With another seed an honest engine fails such a test with probability at most
1 - confidence, a thousandth here.
"""

import dataclasses

import pytest

from audit.bugs import BUGS, plant_bug
from laws.cases import METHODS
from tacit.audit import audit_release
from tacit.audit.release import releases_of, without_sampling
from tacit.errors import InvalidArgumentError
from tacit.inference import HMC
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FixedBatch, FullBatch, PoissonBatch

RELEASE = GaussianSum(sampling=FullBatch(num_records=4), clip_norm=2.0, noise_multiplier=4.0)


def audit(release, *, num_trials=4000):
    return audit_release(release, delta=1e-5, num_trials=num_trials, seed=1)


@pytest.mark.parametrize(
    "sampling",
    [
        FullBatch(num_records=4),
        PoissonBatch(num_records=8, batch_size=4, max_batch_size=8),
        FixedBatch(num_records=8, batch_size=4),
    ],
    ids=lambda sampling: type(sampling).__name__,
)
def test_no_violation_is_found_in_the_honest_engine(sampling):
    found = audit(dataclasses.replace(RELEASE, sampling=sampling, noise_multiplier=1.0))
    assert found.verdict == "no violation found"
    assert 0 < found.lower_bound < found.claimed_epsilon
    assert found.data.public


@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_is_a_violation(bug, monkeypatch):
    plant_bug(monkeypatch, bug)
    found = audit(RELEASE)
    assert found.verdict.startswith("VIOLATION: the ")
    assert found.lower_bound > found.claimed_epsilon


def test_noise_a_third_too_small_is_found_with_more_trials(monkeypatch):
    release = dataclasses.replace(RELEASE, noise_multiplier=1.0)
    monkeypatch.setattr(GaussianSum, "_multiplier", lambda self, _: 1 / 1.5)
    assert audit(release, num_trials=10_000).violation is not None


def test_batches_drawn_too_often_are_found(monkeypatch):
    rare = PoissonBatch(num_records=16, batch_size=1, max_batch_size=16)
    often = PoissonBatch(num_records=16, batch_size=8, max_batch_size=16)
    release = dataclasses.replace(RELEASE, sampling=rare, noise_multiplier=0.5)
    monkeypatch.setattr(
        PoissonBatch, "draw", lambda self, key, draw=PoissonBatch.draw: draw(often, key)
    )
    assert audit(release).violation is not None


def test_every_engine_of_every_method_is_found():
    for name, method in METHODS.items():
        has_two = isinstance(method, HMC) and method.gradient is not None
        assert len(releases_of(method)) == (2 if has_two else 1), name


def test_without_sampling_clip_and_noise_stay():
    release = without_sampling(METHODS["SGD per layer"].release)
    assert release.sampling == FullBatch(num_records=4)
    assert release.clipping == METHODS["SGD per layer"].release.clipping
    assert release.noise_multiplier == METHODS["SGD per layer"].release.noise_multiplier


def test_a_release_without_noise_claims_nothing_that_could_be_audited():
    with pytest.raises(InvalidArgumentError, match="claims nothing"):
        audit(GaussianSum.non_private(sampling=FullBatch(num_records=4)))
