"""Tables on many devices, in a process that has eight."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_all_is_the_same_on_eight_devices():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider",
         str(HERE / "on_eight_devices.py")],
        check=False,
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
