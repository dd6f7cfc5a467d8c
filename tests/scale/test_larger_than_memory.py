"""A table of ten million rows trains in the memory of a small one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NUM_COLUMNS = 50
TABLE_MEGABYTES = 10_000_000 * NUM_COLUMNS * 4 / 1e6


def peaks(num_records, folder):
    """Trains in a process of its own; returns its peaks of memory in megabytes."""
    done = subprocess.run(
        [sys.executable, str(HERE / "train_mapped.py"), str(num_records), str(NUM_COLUMNS), folder],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory as Linux tells it")
def test_memory_does_not_grow_with_the_table(tmp_path):
    large, small = tmp_path / "large", tmp_path / "small"
    large.mkdir()
    small.mkdir()
    of_large, of_small = peaks(10_000_000, str(large)), peaks(10_000, str(small))
    # JAX itself takes most of it. The table alone would take two thousand.
    assert of_large["peak"] < of_small["peak"] + 150
    assert of_large["peak"] < TABLE_MEGABYTES / 2
    assert of_large["num_steps"] == 60
