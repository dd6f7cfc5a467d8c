"""Freed memory is kept where nothing speaks against it."""

import ctypes
import json
import os
import subprocess
import sys

import pytest

from tacit import _memory

IS_GNU = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "gnu_get_libc_version")

COUNT_FAULTS = """
import ctypes, json, resource
{before}
library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes, library.free.restype = [ctypes.c_void_p], None
counts = []
for _ in range(3):
    buffer = library.malloc(2**26)
    ctypes.memset(buffer, 1, 2**26)
    library.free(buffer)
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(json.dumps(counts[2] - counts[1]))
"""


def faults(before, **environment):
    own = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_", "TACIT_"))}
    done = subprocess.run(
        [sys.executable, "-c", COUNT_FAULTS.format(before=before)],
        env=own | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.skipif(not IS_GNU, reason="another C library")
def test_a_buffer_that_was_freed_is_there_again_without_faults():
    num_pages = 2**26 // os.sysconf("SC_PAGE_SIZE")
    assert faults("") > num_pages / 2  # without tacit, or this tests nothing
    assert faults("import tacit") < num_pages / 100
    assert faults("import tacit", TACIT_KEEP_MEMORY="off") > num_pages / 2


@pytest.mark.parametrize(
    "setting", ["MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"]
)
def test_settings_of_the_environment_stay_as_they_are(setting, monkeypatch):
    monkeypatch.setenv(setting, "1")
    monkeypatch.setattr(ctypes, "CDLL", None)  # or it would be called
    assert not _memory.keep_freed_memory()


def test_it_is_not_asked_for_where_it_is_turned_off_or_unknown(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", None)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not _memory.keep_freed_memory()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("TACIT_KEEP_MEMORY", "off")
    assert not _memory.keep_freed_memory()
