"""The build of the native kernel, with whatever C++ compiler the machine has.

It needs nothing but the standard library, since ``setup.py`` runs it where nothing is installed.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
from pathlib import Path

__all__ = ["LIBRARY", "build", "build_name", "compiler"]

LIBRARY = "kernel.native.so"
"""The file that is built, beside this one. Two dots, or Python would take it for a module."""

_SOURCES = Path(__file__).parent
_FLAGS = [
    *("-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"),
    # Contracting a product and a sum leaves the proven error bounds valid, and is faster. Roots
    # become vector instructions where they need not set errno.
    *("-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi"),
]


def build_name(jaxlib_version: str) -> str:
    """Returns what a library of these sources, for this version of jaxlib, calls itself."""
    digest = hashlib.sha256()
    for path in sorted([*_SOURCES.glob("*.h"), *_SOURCES.glob("*.cc")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{digest.hexdigest()[:32]} jaxlib {'.'.join(jaxlib_version.split('.')[:2])}"


def compiler() -> list[str] | None:
    """Returns the command of a C++17 compiler that works: ``$CXX``, or one on the path; or None."""
    named = os.environ.get("CXX")
    candidates = [shlex.split(named)] if named else [["c++"], ["g++"], ["clang++"]]
    for command in candidates:
        if command and shutil.which(command[0]):
            # The kernel needs a standard library, and numbers that 64-bit processors have.
            program = "#include <atomic>\n__extension__ typedef unsigned __int128 Wide;\n"
            trial = subprocess.run(
                [*command, "-std=c++17", "-x", "c++", "-fsyntax-only", "-"],
                input=program,
                text=True,
                capture_output=True,
                check=False,
            )
            if trial.returncode == 0:
                return command
    return None


def build(target: Path, *, command: list[str], include: Path, jaxlib_version: str) -> None:
    """Compiles the kernel into ``target``, or raises ``subprocess.CalledProcessError``."""
    name = build_name(jaxlib_version)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(f".{os.getpid()}")
    sources = [str(_SOURCES / "kernel.cc"), "-isystem", str(include)]
    subprocess.run(
        [*command, *_FLAGS, f'-DTACIT_BUILD="{name}"', *sources, "-o", str(unfinished)], check=True
    )
    unfinished.replace(target)
