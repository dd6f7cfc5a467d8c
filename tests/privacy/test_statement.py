"""The privacy statement says what was executed, and a second accountant can check it."""

import json
import math
from dataclasses import replace

import dp_accounting as dpa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import InvalidArgumentError, TacitError
from tacit.inference import SGLD, SWAG
from tacit.privacy.accounting import PLD, RDP, Adjacency, accountants
from tacit.privacy.budget import Budget
from tacit.privacy.cost import Cost, ParallelDpEvent
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import PoissonBatch
from tacit.privacy.statement import (
    Statement,
    read_statement,
    second_accountant,
    text,
    verify_statement,
)
from tacit.privacy.statement.construction import make_statement
from tacit.privacy.statement.fields import statement_from_json

GAUSSIAN = dpa.GaussianDpEvent
POISSON = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.01, GAUSSIAN(1.0)), 100)
FIXED = dpa.SelfComposedDpEvent(dpa.SampledWithoutReplacementDpEvent(1000, 50, GAUSSIAN(4.0)), 20)
MIXED = dpa.ComposedDpEvent([GAUSSIAN(9.0), POISSON, ParallelDpEvent(GAUSSIAN(5.0), 3)])
COSTS = {
    "full": dpa.SelfComposedDpEvent(GAUSSIAN(20.0), 30),
    "poisson": POISSON,
    "fixed": FIXED,
    "mixed": MIXED,
    "together": dpa.PoissonSampledDpEvent(0.1, dpa.ComposedDpEvent([GAUSSIAN(5.0)] * 2)),
}


def state(cost=POISSON, *, accountant=None, epsilon=100.0, is_secure=True):
    return make_statement(
        cost=Cost(cost, is_secure=is_secure),
        budget=Budget(epsilon=epsilon, delta=1e-5, accountant=accountant or PLD()),
        unit="one record (one row)",
        num_units=1000,
    )


HONEST = state().to_json()


@pytest.fixture
def honest():
    return HONEST


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize(
    "adjacency",
    [
        pytest.param(one, id=str(one), marks=() if one is Adjacency.ZERO_OUT else pytest.mark.slow)
        for one in Adjacency
    ],
)
def test_the_second_accountant_confirms_what_the_first_claims(cost, adjacency):
    if cost is MIXED and adjacency is Adjacency.REPLACE_ONE:
        pytest.skip("disjoint shards are not proven there")
    statement = state(cost, accountant=PLD(adjacency=adjacency))
    found = verify_statement(statement.to_json())
    assert found.holds, found.verdict
    # The claim is rounded up in the third digit; both are the same bound on two grids.
    assert statement.epsilon - 2e-3 < found.recomputed <= statement.epsilon * 1.001


def test_a_schedule_of_many_noises_is_confirmed(monkeypatch):
    # Both accountants round many multipliers down to few; here to six, which is quicker than 128.
    monkeypatch.setattr(second_accountant, "_MAX_DISTINCT", 6)
    noises = [1.0 + 0.01 * i for i in range(15)]
    cost = dpa.ComposedDpEvent([dpa.PoissonSampledDpEvent(0.05, GAUSSIAN(s)) for s in noises])
    statement = state(cost, accountant=PLD(max_distinct=6))
    (row,) = statement.releases_made
    assert (row["lowest_noise_multiplier"], row["highest_noise_multiplier"]) == (1.0, noises[-1])
    assert row["times"] == 15
    assert verify_statement(statement.to_json()).holds


def test_a_looser_accountant_claims_more_and_that_holds():
    found = verify_statement(state(accountant=RDP()).to_json())
    assert found.holds
    assert found.recomputed < 0.95 * found.claimed


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_claim_that_is_too_small_is_found_out(honest, share):
    epsilon = round(share * honest["epsilon"], 3)
    found = verify_statement(honest | {"epsilon": epsilon, "epsilon_text": f"{epsilon:.3f}"})
    assert not found.holds
    assert "TOO SMALL" in found.verdict


def test_less_noise_than_was_claimed_is_found_out(honest):
    cost = json.loads(json.dumps(honest["cost"]).replace("1.0", "0.8"))
    assert cost != honest["cost"]
    assert "TOO SMALL" in verify_statement(honest | {"cost": cost}).verdict


def test_more_noise_than_is_listed_is_found_out(honest):
    cost = json.loads(json.dumps(honest["cost"]).replace("1.0", "2.0"))
    found = verify_statement(honest | {"cost": cost})
    assert not found.holds
    assert "releases_made" in found.verdict


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"epsilon_text": "0.100"}, "epsilon_text"),
        ({"delta": 0.0}, "NOT VERIFIABLE"),
        ({"delta": "a"}, "NOT VERIFIABLE"),
        ({"epsilon": -1.0}, "NOT VERIFIABLE"),
        ({"epsilon": None}, "NOT VERIFIABLE"),
        ({"adjacency": "kind: to animals"}, "kind"),
        ({"arithmetic": "float32"}, "arithmetic"),
        ({"cost": {}}, "NOT VERIFIABLE"),
        ({"cost": []}, "NOT VERIFIABLE"),
        ({"cost": {"kind": "LaplaceDpEvent", "noise_multiplier": 1.0}}, "LaplaceDpEvent"),
        ({"cost": {"kind": "GaussianDpEvent", "noise_multiplier": -1.0}}, "noise multiplier"),
        ({"cost": {"kind": "GaussianDpEvent"}}, "noise_multiplier"),
        ({"releases_made": [{}]}, "NOT VERIFIABLE"),
        ({"sha256": "0" * 64}, "checksum"),
        ({"is_secure": False}, "INSECURE"),
    ],
)
def test_what_is_altered_or_unknown_does_not_pass(honest, change, word):
    found = verify_statement(honest | change)
    assert not found.holds
    assert word in found.verdict


@pytest.fixture(scope="module")
def of_a_method():
    method = SGLD.fixed_noise(
        release=GaussianSum(
            sampling=PoissonBatch(num_records=1000, batch_size=10),
            clip_norm=1.0,
            noise_multiplier=1.0,
        ),
        step_size=1e-3,
    )
    statement = make_statement(
        cost=Cost(POISSON, is_secure=True),
        budget=Budget(epsilon=100.0, delta=1e-5),
        unit="one record (one row)",
        num_units=1000,
        method=method,
    ).to_json()
    assert verify_statement(statement).holds
    return statement


@pytest.mark.parametrize(
    "change",
    [
        {"unit": "one person, with at most 9 rows"},
        {"num_units": 10},
        {"adjacency": "zero-out: nobody can be found, ever"},
        {"delta": 1e-4},
        {"summary": "Nobody can learn anything."},
        {"best_attack": {"false_positive_rate": 0.01, "true_positive_rate": 0.0101}},
        {"best_attack": None},
        {"curve": [{"delta": 1e-5, "epsilon": 0.1}]},
        {"curve": []},
    ],
    ids=str,
)
def test_a_changed_promise_contradicts_the_rest_of_the_statement(of_a_method, change):
    found = verify_statement(of_a_method | change)
    assert not found.holds
    assert "ALTERED" in found.verdict


@pytest.mark.parametrize("is_secure", [True, False])
def test_a_claim_with_the_right_digits_in_it_is_not_the_claim(is_secure):
    honest = state(is_secure=is_secure).to_json()
    found = verify_statement(honest | {"epsilon_text": f"1{honest['epsilon_text']}"})
    assert "ALTERED: epsilon is" in found.verdict


def test_no_bound_on_an_attack_is_rounded_down():
    document = HONEST | {"best_attack": {"false_positive_rate": 0.01, "true_positive_rate": 0.0341}}
    assert "at most 3.5 %" in text.summary(document)


@pytest.mark.parametrize(
    "field", ["cost", "delta", "sensitivity", "recompute", "tuning", "software"]
)
def test_a_missing_field_does_not_pass(honest, field):
    document = {key: value for key, value in honest.items() if key != field}
    found = verify_statement(document)
    assert not found.holds
    assert f"has no {field}" in found.verdict
    with pytest.raises(TacitError, match=field):
        statement_from_json(document)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["kind", "event", "events", "count"]), inner, max_size=3)
    ),
    max_leaves=5,
)
FIELDS = ["cost", "epsilon", "delta", "adjacency", "arithmetic", "releases_made", "sha256"]


@given(field=st.sampled_from(FIELDS), value=JSON)
@settings(max_examples=60, deadline=None)
def test_no_nonsense_in_a_field_is_more_than_a_claim_that_does_not_hold(field, value):
    document = HONEST | {field: value}
    found = verify_statement(document)
    assert found.verdict
    # A claim that is not the smallest is true all the same.
    may_be_weaker = field in ("epsilon", "delta")
    assert not found.holds or value == HONEST.get(field) or (may_be_weaker and value > 0)


@pytest.mark.parametrize(("noise", "count"), [(1.0, 10**9), (0.3, 10**5), (1.0, 10**30)])
def test_an_absurd_cost_is_refused_at_once(honest, noise, count):
    cost = {"kind": "GaussianDpEvent", "noise_multiplier": noise}
    cost = {"kind": "SelfComposedDpEvent", "event": cost, "count": count}
    assert not verify_statement(honest | {"cost": cost}).holds


def test_a_cost_that_is_far_above_its_claim_is_found_out_quickly(honest):
    cost = {"kind": "GaussianDpEvent", "noise_multiplier": 1.0}
    cost = {"kind": "SelfComposedDpEvent", "event": cost, "count": 5000}
    found = verify_statement(honest | {"cost": cost})
    assert found.recomputed > 2500


def test_a_cost_nested_too_deep_is_refused(honest):
    cost = honest["cost"]
    for _ in range(5000):
        cost = {"kind": "SelfComposedDpEvent", "event": cost, "count": 1}
    assert "NOT VERIFIABLE" in verify_statement(honest | {"cost": cost}).verdict


def test_shards_are_not_verified_where_a_record_may_be_replaced(honest):
    document = honest | {
        "adjacency": "replace-one: ...",
        "cost": {"kind": "ParallelDpEvent", "num_shards": 2, "event": honest["cost"]},
    }
    assert "replaced" in verify_statement(document).verdict


def test_nothing_is_promised_aloud_by_a_run_without_privacy():
    statement = state(dpa.NonPrivateDpEvent(), epsilon=math.inf)
    assert statement.best_attack is None
    assert statement.curve == []
    assert "no privacy at all" in statement.summary
    found = verify_statement(statement.to_json())
    assert not found.holds
    assert "NOT PRIVATE" in found.verdict
    assert json.dumps(found.to_json(), allow_nan=False)


def test_a_known_seed_is_said_aloud():
    statement = state(is_secure=False)
    assert "INSECURE" in statement.text()
    assert "INSECURE" in statement.summary
    assert "INSECURE" in verify_statement(statement.to_json()).verdict
    lying = statement.to_json() | {"is_secure": True}
    assert "is_secure" in verify_statement(lying).verdict


def test_a_statement_survives_its_file(tmp_path):
    statement = state(MIXED)
    statement.save(tmp_path)
    document = read_statement(tmp_path)
    assert statement_from_json(document) == statement
    assert verify_statement(document).holds
    assert (tmp_path / "statement.txt").read_text().startswith("PRIVACY STATEMENT")
    assert not verify_statement(document | {"intended_use": "another"}).holds


def test_a_statement_unlike_the_posteriors_is_found_out(honest):
    found = verify_statement(honest, sealed=honest | {"num_units": 7})
    assert "posterior.json" in found.verdict
    assert verify_statement(honest, sealed=dict(honest)).holds


def test_the_text_has_every_field_a_reader_needs(honest):
    text = statement_from_json(honest).text()
    for part in (
        "unit of privacy",
        "adjacency",
        "holds against",
        "not protected",
        "not covered",
        "mechanism",
        "rate 0.01",
        "noise multiplier 1",
        "accountant",
        "cross-check",
        "tuning",
        "ChaCha20",
        "sampled exactly",
        "rounding is inside",
        "dp-accounting",
        "to check it",
    ):
        assert part in text
    assert max(map(len, text.splitlines())) <= 92


def test_every_configured_sum_is_stated_with_its_clip():
    sampling = PoissonBatch(num_records=1000, batch_size=10)
    release = GaussianSum(sampling=sampling, clip_norm=0.5, noise_multiplier=1.0)
    method = SWAG(start=1, base=SGLD.fixed_noise(release=release, step_size=0.1))
    statement = make_statement(
        cost=Cost(method.cost(5), is_secure=True),
        budget=Budget(epsilon=10.0, delta=1e-5),
        unit="one record",
        num_units=1000,
        method=method,
        num_steps=5,
    )
    (engine,) = statement.engines
    assert engine["name"] == "base.release"
    assert (engine["clip_norm"], engine["rate"]) == (0.5, 0.01)
    assert "5 of each of 1 chain" in statement.text()
    assert statement.method == "SWAG of SGLD"


def test_the_summary_names_the_change_that_it_compares():
    assert state().summary.startswith("Take any one record out")
    assert "MIND" not in state().summary
    other = state(accountant=PLD(adjacency=Adjacency.REPLACE_ONE))
    assert other.summary.startswith("Replace any one record")


def test_a_delta_that_would_let_a_record_be_published_is_said_aloud():
    budget = Budget(epsilon=100.0, delta=1e-3)
    statement = make_statement(
        cost=Cost(POISSON, is_secure=True), budget=budget, unit="one row", num_units=1000
    )
    assert "MIND: delta is not below 1/1000" in statement.summary


def test_the_attack_bound_is_no_looser_than_that_of_epsilon_alone():
    statement = state()
    alone = math.exp(statement.epsilon) * 0.01 + statement.delta
    assert 0.01 < statement.best_attack["true_positive_rate"] < alone


def test_an_unknown_way_of_tuning_is_refused():
    with pytest.raises(InvalidArgumentError, match="tuning"):
        replace(state(), tuning="a little")


def test_a_statement_has_no_field_that_json_cannot_hold():
    document = state(COSTS["full"]).to_json()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert set(document) == set(Statement.__dataclass_fields__)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe\x00", b"[" * 100_000])
def test_a_damaged_file_is_explained(tmp_path, content):
    (tmp_path / "statement.json").write_bytes(content)
    with pytest.raises(TacitError, match=r"statement\.json"):
        read_statement(tmp_path)


def test_a_directory_without_a_statement_is_explained(tmp_path):
    with pytest.raises(TacitError, match="no statement"):
        read_statement(tmp_path)
    with pytest.raises(TacitError, match="does not exist"):
        read_statement(tmp_path / "nowhere")


def test_a_statement_says_in_which_arithmetic_it_holds(honest):
    assert honest["version"] == 1
    assert honest["arithmetic"] == text.ARITHMETIC
    assert honest["epsilon"] == float(accountants.round_up(PLD().epsilon(POISSON, delta=1e-5)))
    assert "  sensitivity  one record adds at most the clip norm" in str(state())
