"""One tiny run of each kind, shared by all tests of verbs that read a run."""

import shutil

import pytest

from cli.tables import ILL, TINY, WEEKS, tacit, write_patients


def _fitted(folder, schema):
    write_patients(folder, schema=schema)
    tacit(
        "fit", folder / "data.csv", "--schema", folder / "schema.toml", "--epsilon", 5,
        "--output", folder / "run", "--seed", 0, *TINY,
    )  # fmt: skip
    write_patients(folder, schema=schema, seed=1)
    return folder


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """A folder that tests may read and not change."""
    return _fitted(tmp_path_factory.mktemp("classes"), ILL)


@pytest.fixture(scope="session")
def _of_numbers(tmp_path_factory):
    return _fitted(tmp_path_factory.mktemp("numbers"), WEEKS)


@pytest.fixture
def classes(tiny_run, tmp_path):
    """A folder with a run of classes, and other patients in ``data.csv``."""
    return shutil.copytree(tiny_run, tmp_path / "classes")


@pytest.fixture
def numbers(_of_numbers, tmp_path):
    """The same for numbers."""
    return shutil.copytree(_of_numbers, tmp_path / "numbers")
