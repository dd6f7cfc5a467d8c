"""A damaged ledger is found out and explained in one line; it is never reset."""

import sqlite3

import dp_accounting as dpa
import numpy as np
import pytest

from tacit.errors import LedgerDamagedError, LedgerError
from tacit.privacy.cost import Cost
from tacit.privacy.filters import GDPFilter
from tacit.privacy.ledger import LedgerFile

CHEAP = dpa.GaussianDpEvent(20.0)


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    path = tmp_path_factory.mktemp("ledger") / "people.ledger"
    data = LedgerFile.create(path).register("census", GDPFilter(epsilon=3.0, delta=1e-5))
    for _ in range(12):
        data.charge(Cost(CHEAP, is_secure=True))
    return path.read_bytes(), told(path)


def told(path):
    state = LedgerFile.open(path).state
    record = state.data_sets["census"]
    return state.head, record.rule, record.spending.num_charges, float(record.spending.total[0])


def problem(path):
    try:
        LedgerFile.open(path)
    except LedgerError as error:
        return str(error)
    return None


def explained(path):
    message = problem(path)
    assert message is not None
    assert str(path) in message
    assert "\n" not in message
    return message


def test_a_flipped_byte_is_found_or_changes_nothing(intact, tmp_path):
    content, truth = intact
    path, found = tmp_path / "people.ledger", 0
    # Every byte of the header, and every 61st of the rest.
    for position in [*range(100), *range(100, len(content), 61)]:
        for mask in (0x01, 0xFF):
            damaged = bytearray(content)
            damaged[position] ^= mask
            path.write_bytes(damaged)
            message = problem(path)
            if message is None:
                assert told(path) == truth
            else:
                assert str(path) in message
                assert "\n" not in message
                found += 1
            assert path.read_bytes() == damaged or told(path) == truth  # nothing was repaired
    assert found > 100


def test_a_truncated_file_is_never_taken_for_a_shorter_one(intact, tmp_path):
    content, _ = intact
    path = tmp_path / "people.ledger"
    for length in [0, 1, 50, 100, 511, *range(1024, len(content), 1024), len(content) - 1]:
        path.write_bytes(content[:length])
        assert "damaged" in explained(path)
        assert path.stat().st_size == length


def edited(content, path, *statements):
    path.write_bytes(content)
    connection = sqlite3.connect(path)
    for name in ("changed", "deleted"):
        connection.execute(f"DROP TRIGGER entries_are_never_{name}")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM entries WHERE number = 7",
        "DELETE FROM entries WHERE number > 20",
        "DELETE FROM entries",
        "DELETE FROM head",
        "UPDATE head SET count = 2",
        "UPDATE entries SET body = replace(body, '20.0', '90.0') WHERE number = 10",
        "UPDATE entries SET kind = 'run' WHERE kind = 'charge' AND number = 4",
        "UPDATE entries SET number = 1000 WHERE number = 9",
        "INSERT INTO entries SELECT 1000, kind, body, digest FROM entries WHERE number = 9",
        "DROP TABLE entries",
    ],
)
def test_an_edit_by_hand_is_found(intact, tmp_path, statement):
    path = tmp_path / "people.ledger"
    edited(intact[0], path, statement)
    assert "damaged" in explained(path)


def test_entries_cannot_be_changed_or_deleted_by_accident(intact, tmp_path):
    path = tmp_path / "people.ledger"
    path.write_bytes(intact[0])
    connection = sqlite3.connect(path)
    for statement in ("DELETE FROM entries", "UPDATE entries SET body = ''"):
        with pytest.raises(sqlite3.IntegrityError, match="never"):
            connection.execute(statement)
    connection.close()


def test_an_old_copy_is_found_by_a_head_that_was_noted_down(intact, tmp_path):
    path = tmp_path / "people.ledger"
    path.write_bytes(intact[0])
    ledger = LedgerFile.open(path)
    ledger.data_set("census").charge(Cost(CHEAP, is_secure=True))
    noted = ledger.head
    path.write_bytes(intact[0])
    old = LedgerFile.open(path)
    with pytest.raises(LedgerDamagedError, match="older copy"):
        old.verify(known_head=noted)
    # A process that has seen more refuses the old copy at its next look.
    with pytest.raises(LedgerDamagedError, match="entry 28 is not the one that was there before"):
        ledger.data_set("census").charge(Cost(CHEAP, is_secure=True))


def test_files_that_are_no_ledger_are_named_as_such(tmp_path):
    path = tmp_path / "people.ledger"
    assert "there is no ledger" in explained(path)
    path.write_bytes(b"name,age\nZoe,41\n" * 100)
    assert "damaged" in explained(path)
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE cats (name TEXT)")
    connection.close()
    assert "not a ledger" in explained(path)
    assert "not a file" in explained(tmp_path)
    assert "cannot be made" in _creation_error(tmp_path / "missing" / "people.ledger")


def _creation_error(path):
    with pytest.raises(LedgerError) as caught:
        LedgerFile.create(path)
    return str(caught.value)


def test_a_ledger_of_another_format_is_refused(intact, tmp_path):
    path = tmp_path / "people.ledger"
    path.write_bytes(intact[0])
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 7")
    connection.close()
    assert "has format 7; this version of tacit reads format 1" in explained(path)


def test_a_ledger_that_is_locked_too_long_is_explained_and_nothing_is_charged(intact, tmp_path):
    path = tmp_path / "people.ledger"
    path.write_bytes(intact[0])
    data = LedgerFile.open(path, timeout=0.05).data_set("census")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="locked by another process"):
        data.charge(Cost(CHEAP, is_secure=True))
    other.execute("ROLLBACK")
    other.close()
    data.charge(Cost(CHEAP, is_secure=True))
    assert data.spending.num_charges == 13


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("PRAGMA query_only = ON", "cannot be written"),
        ("PRAGMA max_page_count = 1", "disk is full"),
    ],
)
def test_a_charge_that_cannot_be_written_is_not_made(intact, tmp_path, monkeypatch, limit, message):
    path = tmp_path / "people.ledger"
    path.write_bytes(intact[0])
    data = LedgerFile.open(path).data_set("census")
    connect = sqlite3.connect

    def limited(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.execute(limit)
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", limited)
        with pytest.raises(LedgerError, match=f"{message}.*Nothing was charged"):
            # More than the last page has room for.
            data.charge(Cost(dpa.ComposedDpEvent([dpa.GaussianDpEvent(1e6)] * 200), is_secure=True))
    # The run may have begun; it has not paid.
    assert told(path)[1:] == intact[1][1:]


def test_accounting_of_a_reopened_ledger_is_that_of_its_charges(intact):
    assert intact[1][2:] == (12, pytest.approx(12 / 20.0**2))
    assert np.isfinite(intact[1][3])
