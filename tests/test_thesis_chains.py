"""The thesis' private chains are chosen on a stand-in, and never on the digits themselves."""

import pytest
from experiments import choosing_thesis, thesis_mnist
from experiments.cells import read_rows
from experiments.choosing import winner
from experiments.thesis_chains import CANDIDATES, CHOSEN, private_cell

STAND_IN = "fashion_mnist"


@pytest.mark.parametrize("group", CANDIDATES, ids=lambda group: f"{group[0]['network']}")
def test_only_the_best_of_a_group_on_the_stand_in_is_run_and_only_once_all_were_tried(group):
    tried = [private_cell(STAND_IN, chain) for chain in group]
    rows = [row for row in read_rows("choosing_thesis") if row["settings"] in tried]
    made = [row["settings"] for row in read_rows("thesis_mnist")]
    run = [chain for chain in group if private_cell("mnist", chain) in made]
    if len(rows) < len(group):
        assert not run
    else:
        best = winner(rows, choosing_thesis.merit)
        assert all(private_cell(STAND_IN, chain) == best for chain in run)
        assert any(private_cell(STAND_IN, chain) == best for chain in CHOSEN)


def test_a_chain_that_does_not_move_never_wins():
    stuck = {"scores": {"accuracy": 1.0, "certified accuracy": 1.0, "acceptance": 0.1}}
    moving = {"scores": {"accuracy": 0.5, "acceptance": 0.5}}
    assert choosing_thesis.merit(stuck) < choosing_thesis.merit(moving)


def test_no_candidate_is_tried_on_what_it_is_for():
    assert {cell["data"] for cell in choosing_thesis.EXPERIMENT.cells} == {STAND_IN}
    assert {cell["data"] for cell in thesis_mnist.EXPERIMENT.cells} == {"mnist"}
