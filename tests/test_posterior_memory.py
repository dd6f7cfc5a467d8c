"""The benchmark of large posteriors measures each step, and the page has what it aims at."""

import re

from benchmarks.posterior_memory import BEGIN, END, PAGE, STEPS, Measured, Task, in_child, render


def test_a_step_is_measured_in_a_process_of_its_own(tmp_path):
    found = {
        step: in_child(Task(step, str(tmp_path), 3, is_half=True))
        for step in ("fit", "save", "predict")
    }
    assert (tmp_path / "saved/retained.states").stat().st_size > 3 * 2 * 2_395_210
    assert "in half precision" in found["fit"].note
    assert "accuracy" in found["predict"].note
    for row in found.values():
        assert row.seconds > 0
        assert 0 < row.before_mb < row.peak_mb < 4000


def test_a_table_has_a_row_for_each_step():
    rows = [
        Measured(Task(step, "", draws, is_half), 1.0, 200.0, 500.0, 800.0, "a note")
        for draws, is_half in ((500, True), (50, False))
        for step in STEPS
    ]
    table = render(rows)
    assert table.count("| 500 | half precision, on disk |") == len(STEPS)
    assert table.count("| 50 | float32, in memory |") == len(STEPS)
    assert "| 300 | 800 |" in table
    assert "says: a note." in table


def test_every_step_of_500_draws_of_2_400_000_parameters_took_less_than_a_gigabyte():
    table = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    anonymous = re.findall(
        r"\| 500 \| half precision.*\| ([\d,]+) \| [\d,]+ \|$", table, re.MULTILINE
    )
    assert len(anonymous) == len(STEPS)
    assert all(int(value.replace(",", "")) < 1000 for value in anonymous)
