"""Programs that are kept for later processes change no bit, and tell nothing of records or keys."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from jax._src import compilation_cache as internal  # there is no public way to read an entry

from cli.tables import write_patients


def run_command(folder, **environment):
    """Runs ``tacit fit`` in a process of its own, and returns its files but for when it was."""
    folder.mkdir()
    write_patients(folder)
    arguments = [
        *("fit", "data.csv", "--schema", "schema.toml", "--epsilon", "5", "--delta", "1e-3"),
        *("--hidden", "4", "--steps", "6", "--seed", "0", "--output", "run"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tacit", *arguments],
        cwd=folder,
        env=undecided() | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "not kept" not in done.stderr
    found = {path.name: path.read_bytes() for path in (folder / "run").iterdir()}
    date = json.loads(found["statement.json"])["date"].encode()
    seal = re.compile(rb"[0-9a-f]{64}")  # of documents with their dates
    return {name: seal.sub(b"", text.replace(date, b"")) for name, text in found.items()}


def undecided():
    """The environment of a process that decides for itself where programs are kept."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "TACIT_"))}


def test_a_seeded_fit_is_the_same_without_with_an_empty_and_with_a_full_folder(tmp_path):
    kept = tmp_path / "kept"
    without = run_command(tmp_path / "without", TACIT_CACHE="off")
    assert not kept.exists()
    empty = run_command(tmp_path / "empty", TACIT_CACHE=str(kept))
    programs = {path: path.stat().st_mtime_ns for path in kept.rglob("*-cache")}
    assert any(path.name.startswith("jit__advance-") for path in programs)
    assert {path.stat().st_mode & 0o777 for path in (kept, *kept.iterdir())} == {0o700}
    full = run_command(tmp_path / "full", TACIT_CACHE=str(kept))
    # All of it came from there: nothing was compiled that had not been.
    assert {path: path.stat().st_mtime_ns for path in kept.rglob("*-cache")} == programs
    assert without == empty == full
    # Without the native kernel other programs are compiled, elsewhere, for the same numbers.
    other = run_command(tmp_path / "other", TACIT_CACHE=str(kept), TACIT_NATIVE="off")
    assert len(list(kept.iterdir())) == 2
    for name in ("checkpoint.safetensors", "posterior.safetensors"):
        assert other[name] == full[name]


PROGRAM = """
import secrets, sys, warnings
drawn, real = [], secrets.token_bytes
secrets.token_bytes = lambda size: (drawn.append(real(size)), drawn[-1])[1]
import jax, jax.numpy as jnp, numpy as np, numpyro, optax
import numpyro.distributions as dist
from numpyro.infer import Trace_ELBO
from tacit import compiling, metrics
from tacit.audit import audit_membership
from tacit.audit.membership import LiRA, PlanTrainer
from tacit.data import as_records
from tacit.inference import SGD, Plan, fit, private_clip_norm
from tacit.models import MLP, Bernoulli, GaussianPrior, bayesian
from tacit.numpyro import DPSVI
from tacit.posterior import predict
from tacit.privacy.budget import Budget
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import PoissonBatch

warnings.simplefilter("ignore")
compiling.keep_compiled()
random = np.random.default_rng(5)
x = random.normal(size=(60, 3)).astype(np.float32)
y = (random.random(60) < 0.5).astype(np.int32)
weight = random.uniform(0.2, 0.9, 60).astype(np.float32)
records = as_records(x, y, weight=weight)
model = bayesian(MLP(num_inputs=3, hidden=(2,), num_outputs=1), prior=GaussianPrior(std=1.0),
                 likelihood=Bernoulli())
release = GaussianSum(sampling=PoissonBatch(num_records=60, batch_size=20), clip_norm=1.0,
                      noise_multiplier=2.0)
plan = Plan(method=SGD(release=release, optimizer=optax.sgd(0.1)), num_steps=4)
budget = Budget(20.0, 1e-3)
posterior = fit(plan, model, records, budget=budget).posterior
found = predict(posterior, x)
metrics.nll(np.asarray(found.probabilities), y)
private_clip_norm(model, records, budget=budget, noise_multiplier=3.0)
audit_membership(PlanTrainer(plan=plan, model=model, budget=budget), records, num_canaries=8,
                 attack=LiRA(num_shadows=4), seed=0)

def program(x, y):
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("people", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ slope), obs=y)

def guide(x, y):
    numpyro.sample("slope", dist.Normal(numpyro.param("loc", jnp.zeros(3)), 1).to_event(1))

svi = DPSVI(program, guide, numpyro.optim.Adam(0.1), Trace_ELBO(), epsilon=5.0, delta=1e-3,
            clip_norm=1.0, batch_size=20, num_steps=9)
state = svi.init(jax.random.key(0), x, y)
state, _ = svi.update(state, x, y)
state, _ = jax.jit(svi.update)(state, x, y)
svi.run(jax.random.key(0), 4, x, y, progress_bar=False)
np.savez("private.npz", x=x, weight=weight, keys=np.frombuffer(b"".join(drawn), np.uint8))
if "closing" in sys.argv:
    jax.jit(lambda z: z @ jnp.asarray(x).T)(jnp.ones(3))
"""


def programs_in(folder):
    """The name and the content of every program that is kept."""
    for path in folder.rglob("*-cache"):
        content = internal.decompress_executable(path.read_bytes())
        yield path.name.split("-")[0], content


def private_bytes(folder):
    """Neighbouring private numbers, along rows and columns, and each secret key."""
    with np.load(folder / "private.npz") as found:
        x, weight, keys = found["x"], found["weight"], found["keys"].tobytes()
    assert keys
    rows = [row.tobytes() for row in x]
    columns = [
        np.ascontiguousarray(column[at : at + 3]).tobytes()
        for column in [*x.T, weight]
        for at in range(0, 57, 3)
    ]
    return [*rows, *columns, *(keys[at : at + 32] for at in range(0, len(keys) - 31, 32))]


@pytest.mark.parametrize("closing", [False, True], ids=["tacit", "a program that closes over them"])
def test_no_record_and_no_key_is_in_what_is_kept(tmp_path, closing):
    subprocess.run(
        [sys.executable, "-c", PROGRAM, *(["closing"] if closing else [])],
        cwd=tmp_path,
        env=undecided() | {"TACIT_CACHE": str(tmp_path / "kept")},
        check=True,
    )
    private = private_bytes(tmp_path)
    kept = list(programs_in(tmp_path / "kept"))
    assert {"jit__advance", "jit_step", "jit_one", "jit_histogram"} <= {name for name, _ in kept}
    telling = {name for name, content in kept if any(p in content for p in private)}
    # What a search must find where it is: a program with the table as a constant.
    assert telling == ({"jit__lambda"} if closing else set())
