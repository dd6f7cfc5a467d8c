"""The settings for MNIST on a fixed front end are those that won on Fashion-MNIST."""

import pytest
from experiments import mnist_front_end
from experiments.cells import read_rows
from experiments.choosing import winner
from experiments.markdown import at
from experiments.pages import front_end


@pytest.mark.parametrize(("key", "choice"), mnist_front_end.CHOSEN.items(), ids=str)
def test_the_settings_of_a_row_had_the_best_likelihood_on_the_stand_in(key, choice):
    stand_in, front_end_name, epsilon = key
    own = {"data": stand_in, "front_end": front_end_name, "epsilon": epsilon}
    tried = at(read_rows("choosing_front_end"), own)
    if not tried:  # then nothing may be claimed either
        assert not at(read_rows("mnist_front_end"), own | {"data": "mnist"} | choice)
        return
    best = winner(tried, lambda row: -row["scores"]["NLL"])
    assert best == mnist_front_end.cell(stand_in, front_end_name, epsilon, choice)


def test_what_the_posterior_adds_is_the_mean_difference(monkeypatch):
    def row(gain):
        scores = {"accuracy": 0.9, "NLL": 0.3, "ECE": 0.01, "OOD AUROC, entropy": 0.8}
        last = {f"{name}, last state": value - gain for name, value in scores.items()}
        return {"scores": scores | last}

    text = front_end._what_it_adds([row(0.01), row(0.03)])
    assert "+0.0200 accuracy" in text
    assert front_end._what_it_adds([]) == ""
