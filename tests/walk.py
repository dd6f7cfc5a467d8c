"""How far a record travels: the files and functions of tacit that one fit passes through.

``python tests/walk.py`` prints both walks. ``tests/test_architecture.py`` keeps them short.
"""

import contextlib
import importlib
import os
import pkgutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src" / "tacit"


class Walk(NamedTuple):
    """What was passed: files, functions, and how deep calls of tacit were nested."""

    num_files: int
    num_functions: int
    depth: int


class _Steps:
    """Notes every call of a function of tacit, in all threads."""

    def __init__(self):
        self.functions, self.depth = set(), 0
        self._local = threading.local()

    def __call__(self, frame, event, _):
        # Comprehensions, lambdas and class bodies are parts of the function that they stand in.
        if event not in ("call", "return") or frame.f_code.co_name.startswith("<"):
            return
        if not frame.f_code.co_filename.startswith(str(SOURCE)):
            return
        nested = getattr(self._local, "nested", 0) + (1 if event == "call" else -1)
        self._local.nested = max(nested, 0)
        self.depth = max(self.depth, self._local.nested)
        self.functions.add((frame.f_code.co_filename, frame.f_code.co_qualname))


@contextlib.contextmanager
def _walking(steps):
    import tacit

    # What runs while modules are loaded is not on the way of a record.
    for module in pkgutil.walk_packages(tacit.__path__, "tacit."):
        importlib.import_module(module.name)
    threading.setprofile(steps)
    sys.setprofile(steps)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def of_command():
    """Walks ``tacit fit`` on a small CSV file."""
    from tacit import cli

    with tempfile.TemporaryDirectory() as folder:
        table, schema = Path(folder) / "people.csv", Path(folder) / "schema.toml"
        rows = "".join(f"{20 + i % 50},{('no', 'yes')[i % 2]}\n" for i in range(200))
        table.write_text(f"age,smoker\n{rows}")
        schema.write_text(
            '[target]\nname = "smoker"\nclasses = ["no", "yes"]\n\n'
            "[columns.age]\nlow = 0\nhigh = 100\n"
        )
        run = str(Path(folder) / "run")
        arguments = [str(table), "--schema", str(schema), "--epsilon", "1", "--output", run]
        steps = _Steps()
        with contextlib.redirect_stdout(open(os.devnull, "w")), _walking(steps):
            cli.app(["fit", *arguments], standalone_mode=False)
    return _walk(steps)


def of_program():
    """Walks `DPSVI.run` on a small NumPyro program."""
    import jax
    import numpy as np
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer.autoguide import AutoNormal

    from tacit.numpyro import DPSVI

    def model(x):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)

    steps, x = _Steps(), np.linspace(-1, 1, 100, dtype=np.float32)
    with _walking(steps):
        svi = DPSVI(
            model,
            AutoNormal(model),
            numpyro.optim.SGD(1e-3),
            epsilon=1.0,
            delta=1e-6,
            num_steps=10,
            clip_norm=5.0,
        )
        svi.run(jax.random.key(0), 10, x)
    return _walk(steps)


def _walk(steps):
    return Walk(len({file for file, _ in steps.functions}), len(steps.functions), steps.depth)


def in_a_new_process(name):
    """Walks where nothing was compiled or cached before."""
    program = f"import walk; print(*walk.{name}())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    return Walk(*map(int, done.stdout.split()[-3:]))


if __name__ == "__main__":
    for name in ("of_command", "of_program"):
        print(name.replace("_", " "), in_a_new_process(name))
