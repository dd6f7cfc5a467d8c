"""Compiling: what is kept for later processes is their owner's alone, and changes no bit."""

import os
import sys
import time
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

import tacit
from tacit import compiling
from tacit.compiling import compiled_once, keep_compiled
from tacit.errors import InvalidArgumentError

CHOICES = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home of its own, where nobody has decided yet; what a test decides is taken back."""
    before = {name: getattr(jax.config, name) for name in CHOICES}
    jax.config.update("jax_compilation_cache_dir", None)
    for name in ("TACIT_CACHE", "XDG_CACHE_HOME", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    yield tmp_path / "home"
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def mode_of(path):
    return path.stat().st_mode & 0o777


@pytest.mark.skipif(sys.platform == "darwin", reason="where Linux has caches")
def test_programs_are_kept_where_the_platform_has_a_users_caches(home, monkeypatch):
    assert keep_compiled().parent == home / ".cache" / "tacit"
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which is to be ignored
    assert keep_compiled().parent == home / ".cache" / "tacit"
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "elsewhere"))
    assert keep_compiled().parent == home / "elsewhere" / "tacit"
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_compiled().parent == home / "Library" / "Caches" / "tacit"


def test_what_is_kept_is_for_its_owner_alone_and_found_again(home):
    home.mkdir()
    before = os.umask(0)
    try:
        own = keep_compiled()
    finally:
        os.umask(before)
    assert jax.config.jax_compilation_cache_dir == str(own)
    assert [mode_of(path) for path in (home / ".cache", own.parent, own)] == [0o700] * 3

    @jax.jit
    def a_program(x):
        return x * 1.25 + 17

    assert a_program(1.0) == 18.25
    assert [path.name.split("-")[0] for path in own.glob("*a_program*-cache")] == ["jit_a_program"]


def test_an_explicit_folder_is_used(home):
    assert keep_compiled(home / "mine").parent == home / "mine"


def test_it_can_be_turned_off(home, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", "off")
    assert keep_compiled() is None
    assert keep_compiled(home / "mine") is None
    assert jax.config.jax_compilation_cache_dir is None
    assert not home.exists()


def test_a_folder_may_be_named_by_its_whole_path_only(home, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(home / "named"))
    assert keep_compiled().parent == home / "named"
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("TACIT_CACHE", "yes")
    with pytest.raises(InvalidArgumentError, match="TACIT_CACHE must be off or the whole path of"):
        keep_compiled()


def test_what_jax_was_told_by_others_stays(home):
    jax.config.update("jax_compilation_cache_dir", "/somewhere/else")
    assert keep_compiled() is None
    assert jax.config.jax_compilation_cache_dir == "/somewhere/else"
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        assert keep_compiled() is None
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
    assert not home.exists()


def refused(caplog, **arguments):
    """The line in the log with which a folder is left alone."""
    caplog.clear()
    assert keep_compiled(**arguments) is None
    assert jax.config.jax_compilation_cache_dir is None
    (line,) = caplog.messages
    assert line.startswith("Compiled programs are not kept: ")
    assert "TACIT_CACHE" in line
    assert "\n" not in line
    return line


def test_a_folder_that_is_open_to_others_is_not_used(home, caplog):
    own = keep_compiled()
    jax.config.update("jax_compilation_cache_dir", None)
    for path, mode in [(own, 0o755), (own.parent, 0o750), (own, 0o720), (own, 0o702)]:
        path.chmod(mode)
        assert f"{path} is open to others (chmod 700 closes it)" in refused(caplog)
        path.chmod(0o700)
    assert keep_compiled() == own


def test_a_folder_of_somebody_else_is_not_used(home, caplog, monkeypatch):
    own = keep_compiled()
    jax.config.update("jax_compilation_cache_dir", None)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert f"{own} belongs to somebody else" in refused(caplog)


def test_a_folder_that_others_could_replace_is_not_used(home, caplog):
    shared = home / "shared"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    assert f"everybody can write to {shared}" in refused(caplog, folder=shared / "mine")
    shared.chmod(0o1777)  # as /tmp
    assert keep_compiled(shared / "mine") is not None


def test_a_link_leads_to_a_folder_that_is_looked_at(home, caplog):
    target = home / "target"
    target.mkdir(parents=True)
    target.chmod(0o755)
    (home / "link").symlink_to(target)
    assert f"{target} is open to others" in refused(caplog, folder=home / "link")


def test_without_room_for_a_folder_all_is_as_before(home, caplog):
    home.write_text("a file")
    assert "Not a directory" in refused(caplog)
    assert compiled_once(lambda x: x + 3)(4) == 7


def test_what_was_not_used_for_longest_makes_room(home, monkeypatch):
    own = keep_compiled()
    other = own.parent / "another-version"
    other.mkdir()
    now = time.time()
    for number, folder in enumerate([own, other, own, other]):
        path = folder / f"jit_{number}-cache"
        path.write_bytes(bytes(100))
        os.utime(path, (now + number, now - 1000))
    (own / "notes").write_bytes(bytes(1000))  # of somebody who keeps notes there
    monkeypatch.setattr(compiling, "MAX_BYTES", 250)
    jax.config.update("jax_compilation_cache_dir", None)
    keep_compiled()
    left = {path.name for path in own.parent.rglob("*") if path.is_file()}
    assert left == {"jit_2-cache", "jit_3-cache", "notes"}


def other_processor(path, **_):
    assert path == Path("/proc/cpuinfo")
    return "flags : fpu avx9000"


def test_machines_with_other_processors_and_other_kernels_share_nothing(home, monkeypatch):
    names = {compiling._fingerprint()}
    for change in [
        lambda m: m.setattr(compiling.native, "name", lambda: "JAX"),
        lambda m: m.setattr(tacit, "__version__", "0.0.0"),
        lambda m: m.setattr(Path, "read_text", other_processor),
    ]:
        with monkeypatch.context() as context:
            change(context)
            names.add(compiling._fingerprint())
    assert len(names) == 4
    assert compiling._fingerprint() in names
