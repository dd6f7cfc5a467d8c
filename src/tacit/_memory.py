"""Memory that a step frees is kept for the next one.

The C library gives large buffers back to the system when they are freed. The next step gets them
anew, page by page, and a page that is touched for the first time takes a fault: for a batch of 1024
images that is half of a step's time. So the library is told to keep what it has. A process then
stays as large as it was at its largest.
"""

import ctypes
import os
import sys

__all__ = ["keep_freed_memory"]

# From malloc.h of the GNU C library. With more than one arena only small buffers would be kept.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Asks the C library to keep freed memory, and returns whether it does.

    Works for the GNU C library on Linux, and best before JAX has started its threads. Where the
    environment has settings of its own (``MALLOC_...`` or ``GLIBC_TUNABLES``) they stay as they
    are. ``TACIT_KEEP_MEMORY=off`` leaves everything as it is.
    """
    is_set = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if os.environ.get("TACIT_KEEP_MEMORY") == "off" or is_set or sys.platform != "linux":
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    settings = {_TRIM_THRESHOLD: _NEVER, _MMAP_THRESHOLD: _NEVER, _ARENA_MAX: 1}
    done = [library.mallopt(setting, value) for setting, value in settings.items()]
    return all(done)
