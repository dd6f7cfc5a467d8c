"""A checkpoint on disk is whole or found out; a process that dies while writing loses nothing."""

import errno
import json
import os
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import GaussianDpEvent

from tacit import _artefact
from tacit.data import as_records
from tacit.errors import TacitError
from tacit.inference import SGD, Plan, load_checkpoint, save_checkpoint
from tacit.inference.chains import Checkpoint
from tacit.models import MLP, Categorical, GaussianPrior, bayesian
from tacit.posterior import load_posterior
from tacit.privacy.cost import Cost
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch
from tacit.privacy.stopping import Declared
from tacit.rng import seeded_key

MODEL = bayesian(
    MLP(num_inputs=2, hidden=(3,), num_outputs=2),
    prior=GaussianPrior(std=1.0),
    likelihood=Categorical(num_classes=2),
)
RELEASE = GaussianSum(sampling=FullBatch(num_records=4), clip_norm=1.0, noise_multiplier=9.0)
PLAN = Plan(method=SGD(release=RELEASE, optimizer=optax.sgd(0.1)), num_steps=5)
RECORDS = as_records(np.zeros((4, 2)), np.array([0, 1, 0, 1]))


def checkpoint(step):
    shapes = jax.eval_shape(PLAN.method.build(MODEL).init, seeded_key(0))
    states = jax.tree.map(lambda leaf: jnp.full((1, *leaf.shape), step, leaf.dtype), shapes)
    return Checkpoint(step, states, None, None, Cost(GaussianDpEvent(9.0), is_secure=True), "abc")


def load(folder):
    return load_checkpoint(folder, PLAN, MODEL, RECORDS)


def problem(folder, name="checkpoint"):
    """What is said about a damaged artefact: one line with the name of a file."""
    with pytest.raises(TacitError) as caught:
        _artefact.read(folder, name)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    return message


@pytest.mark.parametrize("declared", [None, Declared(5, GaussianDpEvent(4.0))])
def test_a_checkpoint_comes_back_with_the_run_that_made_it(tmp_path, declared):
    save_checkpoint(checkpoint(3)._replace(declared=declared), tmp_path)
    found = load(tmp_path)
    assert (found.step, found.run_id, found.cost) == (
        3,
        "abc",
        Cost(GaussianDpEvent(9.0), is_secure=True),
    )
    assert found.declared == declared
    assert not list(tmp_path.glob("*.partial"))


def test_a_checkpoint_of_an_earlier_version_declares_nothing(tmp_path):
    save_checkpoint(checkpoint(3), tmp_path)
    arrays, document = _artefact.read(tmp_path, "checkpoint")
    del document["declared"]
    _artefact.write(tmp_path, "checkpoint", arrays, document)
    assert load(tmp_path).declared is None


@pytest.mark.parametrize("ending", ["json", "safetensors"])
def test_a_flipped_or_missing_byte_is_found_wherever_it_is(tmp_path, ending):
    save_checkpoint(checkpoint(3), tmp_path)
    path = tmp_path / f"checkpoint.{ending}"
    content = path.read_bytes()
    accepted = []
    # Densely where the header is, and here and there among the arrays.
    positions = [*range(0, 6000, 3), *range(6000, len(content), 499)]
    for position in filter(lambda place: place < len(content), positions):
        for mask in (0x01, 0x20, 0xFF):
            damaged = bytearray(content)
            damaged[position] ^= mask
            path.write_bytes(damaged)
            try:
                _, document = _artefact.read(tmp_path, "checkpoint")
            except TacitError as error:
                said = str(error)
            else:
                said = None
                # White space of the JSON is all that may change.
                accepted.append(json.loads(damaged) == json.loads(content))
                assert document["step"] == 3
            assert said is None or (str(tmp_path) in said and "\n" not in said)
    assert all(accepted)
    assert ending == "json" or not accepted
    for length in (0, 1, len(content) // 2, len(content) - 2):
        path.write_bytes(content[:length])
        assert re.search("damaged|cut short", problem(tmp_path))


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"3", b"null", b'"step"', b'{"step": NaN}', b"\xff\xfe", b"[" * 100_000]
)
def test_what_is_not_our_json_is_one_clear_error(tmp_path, text):
    save_checkpoint(checkpoint(3), tmp_path)
    (tmp_path / "checkpoint.json").write_bytes(text)
    assert "checkpoint.json" in problem(tmp_path)


def test_an_artefact_without_a_checksum_is_refused(tmp_path):
    save_checkpoint(checkpoint(3), tmp_path)
    path = tmp_path / "checkpoint.json"
    document = json.loads(path.read_text())
    for name in ("document_sha256", "arrays_sha256"):
        path.write_text(json.dumps({k: v for k, v in document.items() if k != name}))
        assert "does not match its checksum" in problem(tmp_path)


def test_a_process_that_dies_while_it_writes_leaves_the_old_or_the_new(tmp_path, monkeypatch):
    class Died(BaseException):
        pass

    def die_at(call):
        """Dies at the given call of those that touch the disk."""
        count = 0
        fsync, replace = os.fsync, Path.replace

        def counted(function):
            def wrapped(*arguments):
                nonlocal count
                count += 1
                if count == call:
                    raise Died
                return function(*arguments)

            return wrapped

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", counted(fsync))
            patch.setattr(Path, "replace", counted(replace))
            save_checkpoint(checkpoint(4), tmp_path)

    steps = []
    for call in range(1, 6):
        save_checkpoint(checkpoint(3), tmp_path)
        with pytest.raises(Died):
            die_at(call)
        found = load(tmp_path)
        assert float(jax.tree.leaves(found.states)[0].ravel()[0]) == found.step
        steps.append(found.step)
    # Two files are written, two are put in place, and the folder is synced.
    assert steps == [3, 3, 3, 4, 4]


def test_a_full_disk_is_explained_and_the_old_checkpoint_stays(tmp_path, monkeypatch):
    save_checkpoint(checkpoint(3), tmp_path)

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(TacitError, match=r"checkpoint cannot be written \(No space left"):
            save_checkpoint(checkpoint(4), tmp_path)
    assert load(tmp_path).step == 3


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TacitError, match="cannot be written"):
        save_checkpoint(checkpoint(3), tmp_path / "file")


def test_a_posterior_is_guarded_alike(tmp_path):
    assert "holds no posterior" in problem(tmp_path, "posterior")
    (tmp_path / "posterior.safetensors").write_bytes(b"12")
    (tmp_path / "posterior.json").write_text("{")
    with pytest.raises(TacitError, match=r"posterior.json is damaged"):
        load_posterior(tmp_path)
