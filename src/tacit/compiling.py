"""Compiling: what runs once is compiled cheaply, and what was compiled can be kept for later.

A kept program is machine code that a later process runs, and it tells the shapes of what it was
compiled for, the number of rows of a private table among them. So it is kept only in a folder that
nobody but its owner can read or write. No value of a record is in it: programs get records as
arguments (`tacit.privacy.clipping.isolation`).
"""

import functools
import hashlib
import logging
import os
import platform
import stat
import sys
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from tacit import native
from tacit.errors import InvalidArgumentError

__all__ = ["MAX_BYTES", "compiled_once", "keep_compiled"]

MAX_BYTES = 2**28
"""What is kept at most of earlier processes, 256 MB; a model has some hundreds of kilobytes."""

compiled_once = functools.partial(
    jax.jit,
    compiler_options={"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False},
)
"""`jax.jit` for what runs a few times at most, where compiling well would take longer than that.

It takes a sixth of the time to compile. No release may be computed by it: the engine was attacked
as it is compiled by default.
"""


def keep_compiled(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Keeps what is compiled from now on in a folder, and looks there for what was compiled before.

    The ``tacit`` command does this. A program that imports tacit calls it if it wants to, because
    it changes how JAX treats all programs of the process. Programs are kept by JAX's own cache.

    Guarantee:
      The folder is made for its owner alone (mode 0700). One that is not the user's own, that
      others can read or write, or that others could replace, is not used; a line in the log says
      so. Results are the same, bit for bit, with and without it.

    Args:
      folder: by default what ``TACIT_CACHE`` says, else ``tacit`` in the user's folder for caches.

    Returns:
      Where programs are kept. None where ``TACIT_CACHE`` is ``off``, the folder cannot be used, or
      JAX was told before where to keep them, as by ``JAX_COMPILATION_CACHE_DIR``.
    """
    wanted = os.environ.get("TACIT_CACHE", "")
    config = jax.config
    is_decided = config.jax_compilation_cache_dir is not None  # type: ignore[attr-defined]
    if wanted == "off" or is_decided or not config.jax_enable_compilation_cache:  # type: ignore[attr-defined]
        return None
    if folder is None and wanted and not os.path.isabs(wanted):
        raise InvalidArgumentError(
            f"TACIT_CACHE must be off or the whole path of a folder; got {wanted!r}."
        )
    try:
        root = Path(folder or wanted or _user_folder())
        own = _own_folder(root)
    except (OSError, RuntimeError) as error:  # the latter where a user has no home
        logging.getLogger(__name__).warning(
            "Compiled programs are not kept: %s. Set TACIT_CACHE to another folder, or to off.",
            error,
        )
        return None
    config.update("jax_compilation_cache_dir", str(own))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # A fit is some dozens of small programs, each of which takes ten milliseconds.
        config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation_cache.reset_cache()
    return own


def _user_folder() -> Path:
    """Returns where this platform has a user's caches."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):  # others are to be ignored
        return Path(named) / "tacit"
    home = Path.home()
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "tacit"


def _own_folder(root: Path) -> Path:
    """Returns the folder for programs of this machine and version; raises where it is not safe."""
    if not hasattr(os, "geteuid"):
        raise OSError("nothing tells here who can write to a folder")
    root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = root.resolve() / _fingerprint()
    for path in (own.parent, own):
        path.mkdir(mode=0o700, exist_ok=True)
    for path in (own, *own.parents):
        _require_own(path, is_kept=path in (own, own.parent))
    _make_room(own.parent)
    return own


def _require_own(path: Path, *, is_kept: bool) -> None:
    """Raises where others could change what is kept: its folder, or one above it."""
    found = path.stat()
    owners = {os.geteuid()} if is_kept else {os.geteuid(), 0}
    if found.st_uid not in owners:
        raise OSError(f"{path} belongs to somebody else")
    if is_kept and found.st_mode & 0o077:
        raise OSError(f"{path} is open to others (chmod 700 closes it)")
    # In one like /tmp, the sticky bit keeps others from replacing what is not theirs.
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise OSError(f"everybody can write to {path}")


def _fingerprint() -> str:
    """Returns a name for all that a program is compiled for, beside what JAX has in its keys.

    A home may be shared by machines with other processors, and versions of tacit may give the
    native kernel's functions another meaning.
    """
    processor = platform.processor() or platform.node()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        named = [line for line in lines if line.startswith(("flags", "Features", "model name"))]
        processor = "\n".join(sorted(set(named))) or processor
    except OSError:
        pass  # not on Linux
    versions = [sys.modules[name].__version__ for name in ("tacit", "jax", "jaxlib")]
    parts = (platform.machine(), processor, sys.version, *versions, native.name())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _make_room(root: Path) -> None:
    """Removes what was not used for longest, until what is kept is at most `MAX_BYTES`."""
    found = []
    for path in root.glob("*/*-cache"):
        try:
            facts = path.stat()
        except FileNotFoundError:
            continue  # another process makes room, too
        found.append((max(facts.st_atime, facts.st_mtime), facts.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= MAX_BYTES:
            return
        path.unlink(missing_ok=True)
        total -= size
