"""States in half precision on disk: near the exact ones, whole or found out, read in pieces."""

import errno
import os
from dataclasses import replace

import hypothesis.extra.numpy as arrays
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit import _artefact, over_draws
from tacit.certify import certify_predictive, smooth
from tacit.data import as_records
from tacit.errors import IntervalWarning, InvalidArgumentError, PrivacyWarning, TacitError
from tacit.inference import SGD, SGLD, VI, Ensemble, Plan, fit, load_checkpoint, save_checkpoint
from tacit.inference import half_precision as recording
from tacit.metrics import diagnose
from tacit.metrics.uncertainty import classification_moments
from tacit.models import MLP, Categorical, FixedGaussian, GaussianPrior, bayesian
from tacit.posterior import load_posterior, predict
from tacit.privacy.budget import Budget, InMemoryLedger
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch, PoissonBatch
from tacit.robust import FGSM, Linf, attack_posterior
from tacit.rounding import Rounding, reference_of, restored, rounded
from tacit.state_file import FILE_NAME, StateFile, state_file_of

NUM_RECORDS, DIM = 120, 4
X = np.random.default_rng(0).normal(size=(NUM_RECORDS, DIM)).astype(np.float32)
KEY = jax.random.key(0)
BUDGET = Budget(epsilon=1e4, delta=1e-3)


def network(width=30):
    return bayesian(
        MLP(num_inputs=DIM, hidden=(width,), num_outputs=3),
        prior=GaussianPrior(std=1.0),
        likelihood=Categorical(num_classes=3),
    )


MODEL = network()
RECORDS = as_records(X, np.arange(NUM_RECORDS) % 3)
WHOLE = GaussianSum(
    sampling=FullBatch(num_records=NUM_RECORDS), clip_norm=1.0, noise_multiplier=1.0
)
SHARD = GaussianSum(
    sampling=FullBatch(num_records=NUM_RECORDS // 3), clip_norm=1.0, noise_multiplier=1.0
)
METHOD = SGLD.fixed_temperature(
    sampling=PoissonBatch(num_records=NUM_RECORDS, batch_size=30), clip_norm=1.0, step_size=0.05
)
PLAN = Plan(method=METHOD, num_steps=12, num_chains=2, thinning=2)


def run(folder=None, *, plan=PLAN, model=MODEL, budget=BUDGET, **others):
    return fit(plan, model, RECORDS, budget=budget, seed=0, half_precision=folder, **others)


@pytest.fixture(scope="module")
def exact():
    return run()


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    return run(tmp_path_factory.mktemp("half"))


def in_memory(posterior):
    """The posterior with the same rounded states, all of them in memory."""
    return replace(
        posterior, kept=jax.tree.map(lambda leaf: jnp.asarray(leaf[...]), posterior.kept)
    )


def leaves_of(*posteriors):
    trees = [jax.tree.leaves(posterior.kept) for posterior in posteriors]
    return [[np.asarray(leaf) for leaf in pair] for pair in zip(*trees, strict=True)]


# Rounding

FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)
STATES = arrays.arrays(np.float32, (2, 5), elements=FLOATS)


def restored_from(states, first):
    reference = reference_of(first)
    scales, halves = rounded(states, reference)
    return restored(halves, scales[:, None], reference), reference


@settings(max_examples=500, deadline=None)
@given(STATES, STATES)
def test_a_rounded_state_is_as_near_as_stated_whatever_its_values(states, first):
    found, reference = restored_from(states, first)
    assert found.dtype == states.dtype
    is_finite = np.isfinite(states)
    np.testing.assert_array_equal(found[~is_finite], states[~is_finite])
    exact, near = states.astype(np.float64), reference.astype(np.float64)
    with np.errstate(invalid="ignore"):
        distances = np.where(is_finite, np.abs(exact - near), 0)
        errors = np.where(is_finite, np.abs(found.astype(np.float64) - exact), 0)
    largest = distances.max(axis=1, keepdims=True)
    # The last two are the rounding of float32 itself, of the difference and of the sum.
    bound = 2**-11 * distances + 2**-40 * largest + 2**-23 * np.maximum(distances, np.abs(exact))
    assert (errors <= np.where(is_finite, bound, 0) + 2.0**-148).all()


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1e-45])
def test_a_diverged_value_spoils_neither_its_neighbours_nor_later_states(bad):
    first = np.array([[0.5, bad]], np.float32)
    for states in (first, np.array([[0.501, 0.25]], np.float32)):
        found, _ = restored_from(states, first)
        np.testing.assert_allclose(found[:, 0], states[:, 0], rtol=1e-6)
        np.testing.assert_allclose(found[:, 1], states[:, 1], rtol=2**-10)


def test_the_error_is_relative_to_the_spread_and_not_to_the_values():
    rng = np.random.default_rng(0)
    first = 1000.0 + rng.normal(size=(1, 2000)).astype(np.float32)
    states = first + 0.01 * rng.normal(size=first.shape).astype(np.float32)
    found, _ = restored_from(states, first)
    # Half precision of the values themselves would be wrong by up to a quarter.
    assert np.abs(found - states).max() < 1e-4
    assert np.abs(states.astype(np.float16).astype(np.float32) - states).max() > 0.1


# Runs


def test_the_first_state_is_exact_and_the_others_are_near(exact, half):
    for wanted, found in leaves_of(exact.posterior, half.posterior):
        assert found.shape == wanted.shape == (2, 6, *wanted.shape[2:])
        np.testing.assert_array_equal(found[:, 0], wanted[:, 0])
        distances = np.abs(wanted - wanted[:, :1])
        assert (np.abs(found - wanted) <= 2**-11 * distances + 1e-6).all()
        assert (found != wanted).any()


def test_chains_go_on_from_exact_states(exact, half):
    # The last state of a chain is that of a run in memory, bit for bit.
    jax.tree.map(np.testing.assert_array_equal, exact.checkpoint.states, half.checkpoint.states)
    jax.tree.map(np.testing.assert_array_equal, exact.info, half.info)


@pytest.mark.parametrize("chunk_steps", [1, 5, 100])
def test_chunks_change_nothing(half, tmp_path, chunk_steps):
    other = run(tmp_path, chunk_steps=chunk_steps)
    assert state_file_of(other.posterior.kept).digest == state_file_of(half.posterior.kept).digest


def test_states_of_fewer_bits_are_kept_as_they_are(tmp_path):
    model = MODEL._replace(
        init=lambda key: jax.tree.map(lambda w: w.astype(jnp.bfloat16), MODEL.init(key))
    )
    found = run(tmp_path, model=model).posterior
    for wanted, stored in leaves_of(run(model=model).posterior, found):
        assert stored.dtype == jnp.bfloat16
        np.testing.assert_array_equal(stored, wanted)
    assert found.rounding.largest == 0.0


@pytest.mark.parametrize(
    ("method", "num_chains", "num_kept"),
    [
        (Ensemble(member=SGD(release=SHARD, optimizer=optax.sgd(0.1)), num_shards=3), 2 * 3, 4),
        (VI(release=WHOLE, optimizer=optax.adam(0.01)), 2, 4),
    ],
    ids=["members are chains", "means and standard deviations"],
)
def test_whatever_a_method_retains_is_what_is_on_disk(tmp_path, method, num_chains, num_kept):
    plan = Plan(method=method, num_steps=4, thinning=1, num_chains=2)
    settings = {"plan": plan, "budget": Budget.non_private()}
    stored, exact = (run(where, **settings).posterior for where in (tmp_path, None))
    assert (stored.num_chains, stored.num_kept) == (num_chains, num_kept)
    for wanted, found in leaves_of(exact, stored):
        np.testing.assert_allclose(found, wanted, atol=2**-11 * np.ptp(wanted) + 1e-7)
    one, other = predict(stored, X), predict(in_memory(stored), X)
    np.testing.assert_allclose(one.probabilities, other.probabilities, atol=1e-6)
    checkpoint = {}
    run(tmp_path, **settings, chunk_steps=2, on_chunk=lambda c: checkpoint.update({c.step: c}))
    save_checkpoint(checkpoint[2], tmp_path / "stopped")
    resumed = load_checkpoint(tmp_path / "stopped", plan, MODEL, RECORDS)
    again = run(tmp_path / "on", **settings, resume=resumed).posterior
    # Programs of other lengths may round the last bit otherwise.
    for wanted, found in leaves_of(stored, again):
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_the_loss_is_measured(tmp_path, half, monkeypatch):
    def coarse(values, reference):
        scales, halves = rounded(values, reference)
        return scales, (halves.view(np.uint16) & np.uint16(0xFF00)).view(np.float16)

    monkeypatch.setattr(recording, "rounded", coarse)
    spoilt = run(tmp_path).posterior.rounding
    fine = half.posterior.rounding
    assert fine.num_draws == spoilt.num_draws == 12
    assert 0 < fine.mean < fine.largest < 1e-3
    assert spoilt.largest > 50 * fine.largest
    assert spoilt.in_stds > 50 * fine.in_stds > 0
    assert "in half precision" in repr(half.posterior)
    assert f"{fine.largest:.1g} at most" in fine.text


def test_the_loss_is_that_of_the_mean_over_draws():
    rng = np.random.default_rng(0)
    exact = rng.dirichlet(np.ones(3), size=(50, 8))
    near = exact + 0.001 * np.array([1.0, -1.0, 0.0])
    loss = Rounding(classification_moments(exact), classification_moments(near)).loss
    assert (loss.num_inputs, loss.num_draws) == (8, 50)
    assert loss.largest == pytest.approx(0.001)
    assert loss.mean == pytest.approx(0.001 * 2 / 3)
    stds = exact.std(axis=0)
    assert loss.in_stds == pytest.approx(np.sqrt(2 / 3) * 0.001 / np.sqrt(np.mean(stds**2)))
    assert loss.std == pytest.approx(0.0, abs=1e-9)


def test_real_targets_are_compared_by_their_means(tmp_path):
    model = bayesian(
        MLP(num_inputs=DIM, hidden=(30,), num_outputs=1),
        prior=GaussianPrior(std=1.0),
        likelihood=FixedGaussian(std=1.0),
    )
    records = as_records(X, X[:, 0])
    found = fit(PLAN, model, records, budget=BUDGET, seed=0, half_precision=tmp_path).posterior
    assert "predicted means" in found.rounding.text
    whole = predict(in_memory(found), X)
    np.testing.assert_allclose(predict(found, X).mean, whole.mean, rtol=1e-6)


# Going on, and sharing a folder


@pytest.mark.parametrize("stop", [1, 4, 7])
def test_a_resumed_run_writes_the_file_of_one_that_never_stopped(half, tmp_path, stop):
    saved = {}

    def keep(checkpoint):
        save_checkpoint(checkpoint, tmp_path / str(checkpoint.step))
        saved[checkpoint.step] = checkpoint

    run(tmp_path, chunk_steps=1, on_chunk=keep)
    checkpoint = load_checkpoint(tmp_path / str(stop), PLAN, MODEL, RECORDS)
    resumed = run(tmp_path / "resumed", resume=checkpoint)
    files = [state_file_of(each.posterior.kept) for each in (half, resumed)]
    assert files[0].digest == files[1].digest
    assert files[1].path.read_bytes() == files[0].path.read_bytes()
    for name, value in half.posterior.rounding._asdict().items():
        assert getattr(resumed.posterior.rounding, name) == pytest.approx(value, rel=1e-2)


def test_what_was_kept_in_memory_goes_on_in_half_precision(half, tmp_path):
    saved = {}
    run(chunk_steps=1, on_chunk=lambda c: saved.update({c.step: c}))
    resumed = run(tmp_path, resume=saved[6])
    assert state_file_of(resumed.posterior.kept).digest == state_file_of(half.posterior.kept).digest


def test_what_was_kept_in_half_precision_does_not_silently_go_on_in_memory(half):
    with pytest.raises(InvalidArgumentError, match="half_precision must be a folder"):
        run(plan=replace(PLAN, num_steps=14), resume=half.checkpoint)


def test_forks_in_one_folder_leave_each_other_alone(tmp_path):
    saved = {}
    run(tmp_path, chunk_steps=4, on_chunk=lambda c: saved.update({c.step: c}))
    kept = [run(tmp_path, resume=saved[4]).posterior]
    before = [np.asarray(leaf) for leaf in jax.tree.leaves(kept[0].kept)]
    other = fit(
        PLAN, MODEL, RECORDS, budget=BUDGET, seed=1, half_precision=tmp_path, resume=saved[4]
    ).posterior
    for leaf, first, second in zip(
        before, jax.tree.leaves(kept[0].kept), jax.tree.leaves(other.kept), strict=True
    ):
        np.testing.assert_array_equal(first, leaf)
        np.testing.assert_array_equal(second[:, :2], leaf[:, :2])
        assert (second[:, 2:] != leaf[:, 2:]).any()


def test_a_checkpoint_that_is_saved_later_does_not_cut_a_posterior_short(tmp_path):
    saved = {}
    found = run(tmp_path, chunk_steps=4, on_chunk=lambda c: saved.update({c.step: c}))
    with pytest.warns(PrivacyWarning, match="INSECURE"):
        found.posterior.save(tmp_path / "other")
    save_checkpoint(saved[4], tmp_path / "other")
    assert load_posterior(tmp_path / "other").num_kept == 6
    assert jax.tree.leaves(load_checkpoint(tmp_path / "other", PLAN, MODEL, RECORDS).kept)[0].shape[
        :2
    ] == (2, 2)


def test_a_refused_run_leaves_what_was_there(tmp_path):
    (tmp_path / FILE_NAME).write_text("of another run")
    records = as_records(X[:-1], np.arange(NUM_RECORDS - 1) % 3)
    with pytest.raises(InvalidArgumentError, match="rows"):
        fit(PLAN, MODEL, records, budget=BUDGET, half_precision=tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [FILE_NAME]
    assert (tmp_path / FILE_NAME).read_text() == "of another run"


def test_a_disk_without_room_is_found_out_before_a_record_is_read(tmp_path, monkeypatch):
    def full(handle, start, length):
        assert length > 12 * 2 * sum(leaf.size for leaf in jax.tree.leaves(MODEL.init(KEY)))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ledger = InMemoryLedger()
    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(TacitError, match=r"cannot be written \(No space left"):
        run(tmp_path, ledger=ledger)
    assert not ledger.costs
    assert not list(tmp_path.iterdir())


def test_several_processes_are_refused_before_anything_is_spent(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "num_processes", lambda: 2)
    with pytest.raises(InvalidArgumentError, match="half_precision must be left out"):
        run(tmp_path)


# Files


@pytest.fixture
def folder(half, tmp_path):
    with pytest.warns(PrivacyWarning, match="INSECURE"):
        half.posterior.save(tmp_path)
    save_checkpoint(half.checkpoint, tmp_path)
    return tmp_path


def test_a_posterior_travels_with_its_states_and_their_loss(half, folder):
    loaded = load_posterior(folder)
    assert loaded.rounding == half.posterior.rounding
    for wanted, found in leaves_of(half.posterior, loaded):
        np.testing.assert_array_equal(found, wanted)
    jax.tree.map(np.testing.assert_array_equal, predict(half.posterior, X), predict(loaded, X))


@pytest.mark.parametrize("place", [0, 1000, -1])
def test_an_altered_file_is_found_out_when_it_is_read(folder, place):
    file = folder / FILE_NAME
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    posterior = load_posterior(folder)
    with pytest.raises(TacitError, match="does not match its checksum"):
        predict(posterior, X)
    checkpoint = load_checkpoint(folder, PLAN, MODEL, RECORDS)
    with pytest.raises(TacitError, match="does not match its checksum"):
        run(folder / "on", plan=replace(PLAN, num_steps=14), resume=checkpoint)


def test_a_file_that_is_cut_short_or_gone_is_found_out_when_it_is_opened(folder):
    file = folder / FILE_NAME
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(TacitError, match="is cut short"):
        load_posterior(folder)
    file.unlink()
    with pytest.raises(TacitError, match=f"holds no {FILE_NAME}"):
        load_posterior(folder)


def test_states_of_another_model_are_refused(folder):
    with pytest.raises(TacitError, match="do not fit the model"):
        load_posterior(folder, model=network(width=31))


# Reading

INDICES = [
    np.s_[...],
    np.s_[0, -1],
    np.s_[:, -1],
    np.s_[:, 1:4],
    np.s_[..., 0],
    np.s_[1, :, ..., 2],
    (np.array([0, 1, 1]), np.array([5, 0, 2])),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_what_is_on_disk_is_indexed_like_an_array(half, index):
    for leaf in jax.tree.leaves(half.posterior.kept):
        whole = np.asarray(leaf)
        np.testing.assert_array_equal(leaf[index], whole[index])
        np.testing.assert_array_equal(jnp.asarray(leaf), whole)
        assert (leaf.ndim, leaf.size, leaf.nbytes) == (whole.ndim, whole.size, whole.nbytes)
        flat = leaf.reshape(*leaf.shape[:2], -1)
        np.testing.assert_array_equal(flat[:, :, 1:3], whole.reshape(2, 6, -1)[:, :, 1:3])


@pytest.fixture(params=[1, 3, 1000])
def draws_at_once(request, half, monkeypatch):
    state = sum(leaf.nbytes for leaf in jax.tree.leaves(half.posterior.kept)) // 12
    monkeypatch.setattr(over_draws, "_MOST_BYTES", request.param * state)


@pytest.mark.usefixtures("draws_at_once")
@pytest.mark.parametrize("num_draws", [None, 5, 30])
def test_predictions_in_pieces_are_those_of_all_draws_at_once(half, num_draws):
    found = predict(half.posterior, X, num_draws=num_draws, batch_size=50)
    whole = in_memory(half.posterior)
    each = jax.vmap(lambda w: jax.vmap(lambda x: MODEL.predict(w, x, jax.random.key(0)))(X))(
        whole.draws(num_draws)
    )
    np.testing.assert_allclose(found.probabilities, each.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(found.epistemic_variance, each.var(axis=0), atol=1e-6)


@pytest.mark.usefixtures("draws_at_once")
def test_whatever_is_said_of_a_posterior_is_said_of_one_on_disk(half):
    stored, whole = half.posterior, in_memory(half.posterior)
    x, y, ball = X[:6], np.arange(6) % 3, Linf(radius=0.01)

    def said(posterior):
        with pytest.warns(IntervalWarning):
            interval = posterior.credible()
        return (
            posterior.draws(),
            interval,
            diagnose(posterior),
            certify_predictive(posterior, x, y, ball).is_certified,
            smooth(posterior, x[:2], std=0.1, num_selection=10, num_estimation=50, batch_size=20),
            attack_posterior(posterior, FGSM(ball=ball), x, y),
        )

    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6),
        said(stored),
        said(whole),
    )


def test_an_attack_on_more_states_than_memory_should_hold_is_refused(half, monkeypatch):
    state = sum(leaf.nbytes for leaf in jax.tree.leaves(half.posterior.kept)) // 12
    monkeypatch.setattr(over_draws, "_MOST_AT_ONCE", 5 * state)
    attack = FGSM(ball=Linf(radius=0.01))
    with pytest.raises(InvalidArgumentError, match="num_draws must be at most 5 here"):
        attack_posterior(half.posterior, attack, X[:3], np.zeros(3, int))
    attack_posterior(half.posterior, attack, X[:3], np.zeros(3, int), num_draws=5)
    attack_posterior(in_memory(half.posterior), attack, X[:3], np.zeros(3, int))


def test_no_more_than_a_piece_is_ever_read(half, folder, monkeypatch):
    sizes = []
    read = StateFile.read

    def noted(*arguments):
        found = read(*arguments)
        sizes.append(found.nbytes)
        return found

    monkeypatch.setattr(StateFile, "read", noted)
    whole = max(leaf.nbytes for leaf in jax.tree.leaves(half.posterior.kept))
    state = sum(leaf.nbytes for leaf in jax.tree.leaves(half.posterior.kept)) // 12
    monkeypatch.setattr(over_draws, "_MOST_BYTES", 2 * state)
    monkeypatch.setattr("tacit.intervals._MOST_AT_ONCE", 24)
    monkeypatch.setattr("tacit.metrics.chains._MOST_AT_ONCE", 24)
    posterior = load_posterior(folder)
    assert repr(posterior)
    assert posterior.num_kept == 6
    assert not sizes  # opening reads nothing
    predict(posterior, X)
    # One leaf of two states.
    assert max(sizes) == whole // 6
    sizes.clear()
    with pytest.warns(IntervalWarning):
        posterior.credible()
    diagnose(posterior)
    assert max(sizes) == 24 * 4
    sizes.clear()
    with pytest.warns(PrivacyWarning, match="INSECURE"):
        posterior.save(folder / "copy")
    assert not sizes  # bytes are copied as they are


def test_states_leave_the_device_a_few_at_a_time(tmp_path, monkeypatch):
    num_rows = []
    add = recording.Recording.add

    def noted(self, states, rows):
        num_rows.append(jax.tree.leaves(states)[0].shape[1])
        add(self, states, rows)

    monkeypatch.setattr(recording.Recording, "add", noted)
    monkeypatch.setattr(recording, "_MOST_BYTES", 1)
    run(tmp_path, chunk_steps=1000)
    # A step in between and the last one of each chunk of two steps.
    assert len(num_rows) == 6
    assert max(num_rows) <= 2


def test_what_was_saved_before_there_was_half_precision_is_read(exact, tmp_path):
    save_checkpoint(exact.checkpoint, tmp_path)
    values, document = _artefact.read(tmp_path, "checkpoint")
    del document["on_disk"]
    _artefact.write(tmp_path, "checkpoint", values, document)
    found = load_checkpoint(tmp_path, PLAN, MODEL, RECORDS)
    jax.tree.map(np.testing.assert_array_equal, found.kept, exact.checkpoint.kept)
    with pytest.warns(PrivacyWarning, match="INSECURE"):
        exact.posterior.save(tmp_path)
    loaded = load_posterior(tmp_path)
    assert loaded.rounding is None
    for wanted, own in leaves_of(exact.posterior, loaded):
        np.testing.assert_array_equal(own, wanted)
