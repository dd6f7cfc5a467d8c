"""A Poisson batch whose size is conditioned on its capacity costs what is stated, and no more."""

import itertools
import math
from dataclasses import dataclass, replace
from fractions import Fraction

import dp_accounting as dpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom, norm

import tacit
from laws.planting import plant
from tacit.errors import InvalidArgumentError
from tacit.inference import SGHMC, SGLD
from tacit.privacy.accounting import GDP, PLD, RDP, Adjacency, delta, divergences, epsilon
from tacit.privacy.budget import Budget
from tacit.privacy.cost import (
    ConditionedPoissonDpEvent,
    Cost,
    count_releases,
    event_from_json,
    event_to_json,
    noise_multipliers,
)
from tacit.privacy.drawing import size_table
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import PoissonBatch
from tacit.privacy.statement import verify_statement
from tacit.privacy.statement.construction import make_statement
from tacit.rng import seeded_key
from tacit.tables.base import Batch

ZERO_OUT, ADD_REMOVE, REPLACE_ONE = Adjacency
EPSILONS = (0.0, 0.1, 0.3, 1.0, 2.0)


def conditioned(num_records, rate, capacity, noise, steps=1):
    event = ConditionedPoissonDpEvent(rate, num_records, capacity, dpa.GaussianDpEvent(noise))
    return dpa.SelfComposedDpEvent(event, steps)


def poisson(rate, noise, steps=1):
    event = dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise))
    return dpa.SelfComposedDpEvent(event, steps)


def law(num_rows, rate, capacity):
    """The chance of each set of rows that fits, by going through all of them."""
    subsets = [
        subset
        for size in range(capacity + 1)
        for subset in itertools.combinations(range(num_rows), size)
    ]
    chances = np.array([(rate / (1 - rate)) ** len(subset) for subset in subsets])
    return dict(zip(subsets, chances / chances.sum(), strict=True))


def cut_law(num_rows, rate, capacity):
    """The same for a batch that is cut at its capacity: what conditioning is not."""
    chances = dict.fromkeys(law(num_rows, rate, capacity), 0.0)
    for subset in law(num_rows, rate, num_rows):
        chance = rate ** len(subset) * (1 - rate) ** (num_rows - len(subset))
        kept = list(itertools.combinations(subset, min(capacity, len(subset))))
        for batch in kept:
            chances[batch] += chance / len(kept)
    return chances


def worst_delta(first, second, cell, at):
    """The larger of the two hockey-stick divergences of two densities on a grid."""
    return max(
        np.maximum(p - math.exp(at) * q, 0.0).sum() * cell
        for p, q in ((first, second), (second, first))
    )


# --- brute force ---------------------------------------------------------------------------------

SMALL = [
    (num_rows, rate, capacity, noise)
    for num_rows, rate, noise in ((3, 0.3, 0.7), (4, 0.4, 1.0), (5, 0.2, 0.6), (5, 0.5, 1.2))
    for capacity in range(1, num_rows + 1)  # below the mean, too
]
X = np.linspace(-12, 12, 4801)


def mixture(chances, values, noise):
    """The density of a noisy sum of numbers, over all batches."""
    return sum(
        chance * norm.pdf(X, sum(values[i] for i in batch), noise)
        for batch, chance in chances.items()
    )


def excess_of_sums(chances, batch, adjacency):
    """The most by which a table of numbers exceeds what the accountant says, over all tables."""
    num_rows, noise = batch[0], batch[-1]
    claimed = [
        delta(conditioned(*batch), at, PLD(adjacency=adjacency, discretisation=1e-3))
        for at in EPSILONS
    ]
    worst = -1.0
    for others in itertools.product((-1, 1), repeat=num_rows - 1):
        for value in (1.0, -1.0, 0.5):
            with_record = mixture(chances, (value, *others), noise)
            changes = {ZERO_OUT: (0.0,), ADD_REMOVE: (0.0,), REPLACE_ONE: (-value, 0.0, -0.3)}
            for change in changes[adjacency]:
                without = mixture(chances, (change, *others), noise)
                for at, most in zip(EPSILONS, claimed, strict=True):
                    worst = max(worst, worst_delta(with_record, without, X[1] - X[0], at) - most)
    return worst


@pytest.mark.parametrize("adjacency", [ZERO_OUT, REPLACE_ONE], ids=str)
@pytest.mark.parametrize("batch", SMALL, ids=str)
def test_no_small_table_is_easier_to_tell_from_its_neighbour_than_the_cost_says(batch, adjacency):
    assert excess_of_sums(law(*batch[:3]), batch, adjacency) < 1e-6


@pytest.mark.parametrize("batch", [b for b in SMALL if b[0] < 5], ids=str)
def test_with_vacant_rows_the_cost_covers_every_number_of_records_up_to_the_declared(batch):
    # Tables of n and n - 1 records in N rows, in any order: vacant rows hold nothing.
    num_rows, rate, capacity, noise = batch
    chances = law(num_rows, rate, capacity)
    claimed = [delta(conditioned(*batch), at, PLD(adjacency=ADD_REMOVE)) for at in EPSILONS]
    for num_records in range(1, num_rows + 1):
        for others in itertools.product((-1, 1), repeat=num_records - 1):
            vacant = (0.0,) * (num_rows - num_records)
            larger = mixture(chances, (*others, 1.0, *vacant), noise)
            smaller = mixture(chances, (0.0, *others, *vacant), noise)
            for at, most in zip(EPSILONS, claimed, strict=True):
                assert worst_delta(larger, smaller, X[1] - X[0], at) < most + 1e-6


def test_conditioning_on_the_true_number_would_cost_more_where_it_is_private():
    # Why rows are vacant: without them, the batch of the others tells how many records there are.
    num_rows, rate, capacity, noise = 4, 0.4, 2, 3.0
    larger = mixture(law(4, rate, capacity), (1.0, 1.0, 1.0, 1.0), noise)
    smaller = mixture(law(3, rate, capacity), (1.0, 1.0, 1.0), noise)
    claimed = delta(conditioned(num_rows, rate, capacity, noise), 0.0, PLD(adjacency=ADD_REMOVE))
    shown = {
        others: [
            sum(c for b, c in law(n, rate, capacity).items() if set(b) - {3} == set(others))
            for n in (4, 3)
        ]
        for others in law(3, rate, capacity)
    }
    told = sum(max(0.0, without - with_record) for with_record, without in shown.values())
    assert told > 0.05  # and that is without looking at any value
    assert worst_delta(larger, smaller, X[1] - X[0], 0.0) <= claimed + told


@pytest.mark.parametrize("adjacency", Adjacency, ids=str)
@pytest.mark.parametrize("batch", SMALL, ids=str)
def test_where_the_others_in_the_batch_are_seen_the_cost_is_exact(batch, adjacency):
    noise = batch[-1]
    chances, x = law(*batch[:3]), np.linspace(-14, 15, 8001)
    zero, one, other = (norm.pdf(x, mean, noise) for mean in (0, 1, -1))
    for at in EPSILONS:
        true = 0.0
        for others in (subset for subset in chances if 0 not in subset):
            out, inside = chances[others], chances.get((0, *others), 0.0)
            first = out * zero + inside * one
            replaced = out * zero + inside * other
            second = replaced if adjacency is REPLACE_ONE else (out + inside) * zero
            true += np.maximum(first - math.exp(at) * second, 0.0).sum() * (x[1] - x[0])
        found = delta(conditioned(*batch), at, PLD(adjacency=adjacency))
        unamplified = GDP(adjacency=adjacency).delta(dpa.GaussianDpEvent(noise), epsilon=at)
        assert found == pytest.approx(min(true, unamplified), abs=2e-5)
        assert found > true - 1e-6  # the error of the integral


@pytest.mark.parametrize("capacity", [1, 2, 3])
@pytest.mark.parametrize("adjacency", [ZERO_OUT, REPLACE_ONE], ids=str)
def test_no_table_of_vectors_is_easier_to_tell_than_the_cost_says(capacity, adjacency):
    rate, noise = 0.4, 0.6
    axis = np.linspace(-5, 5, 201)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1)

    def density(vectors):
        total = np.zeros(grid.shape[:2])
        for batch, chance in law(4, rate, capacity).items():
            centre = sum((vectors[i] for i in batch), np.zeros(2))
            square = np.sum((grid - centre) ** 2, axis=-1)
            total += chance * np.exp(-square / (2 * noise**2)) / (2 * math.pi * noise**2)
        return total

    turn = [np.array([math.cos(a), math.sin(a)]) for a in (0.0, 2.1, 4.2, 1.3)]
    crowd = [np.array([math.cos(a), math.sin(a)]) for a in (0.0, 1.6, 1.6, 1.6)]
    for first, *others in (turn, crowd):
        neighbour = -first if adjacency is REPLACE_ONE else 0 * first
        pair = density([first, *others]), density([neighbour, *others])
        for at in EPSILONS:
            true = worst_delta(*pair, (axis[1] - axis[0]) ** 2, at)
            cost = conditioned(4, rate, capacity, noise)
            assert true < delta(cost, at, PLD(adjacency=adjacency)) + 1e-6


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A batch of given records, as the engine would draw it."""

    indices: tuple[int, ...]
    num_records: int
    rate: float = 1.0
    inclusion_rate: float = 1.0

    @property
    def public_records(self):
        return self.num_records

    @property
    def capacity(self):
        return self.num_records

    def draw(self, key):
        mask = jnp.arange(self.num_records) < len(self.indices)
        missing = self.num_records - len(self.indices)
        return Batch(jnp.array([*self.indices, *(0,) * missing], jnp.int32), mask)

    def cost(self, noise_multiplier):
        return dpa.GaussianDpEvent(noise_multiplier)


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_a_person_with_several_rows_costs_as_much_as_one_record(capacity):
    # Persons 0, 1, 2, 3 have 3, 1, 2 and 1 rows; the engine sums and clips a person's rows.
    groups, rate, noise = np.array([0, 0, 0, 1, 2, 2, 3]), 0.4, 0.7
    x = np.array([2.0, 1.0, -0.5, -1.0, 0.4, 0.5, 3.0], np.float32)[:, None]
    records = tacit.as_records(x, np.zeros(7), groups=groups, max_rows=3)
    assert records.x.shape[:2] == (4, 3)

    def total(batch, table):
        release = GaussianSum(
            sampling=Chosen(indices=batch, num_records=4), clip_norm=1.0, noise_multiplier=0.0
        )
        return float(release(seeded_key(0), lambda r, key: jnp.sum(r.x), table))

    def density(table):
        return sum(
            chance * norm.pdf(X, total(batch, table), noise)
            for batch, chance in law(4, rate, capacity).items()
        )

    zeroed = records._replace(x=records.x.at[0].set(0.0))
    replaced = records._replace(x=records.x.at[0].multiply(-1.0))
    cost = conditioned(4, rate, capacity, noise)
    for neighbour, adjacency in ((zeroed, ZERO_OUT), (zeroed, ADD_REMOVE), (replaced, REPLACE_ONE)):
        pair = density(records), density(neighbour)
        for at in EPSILONS:
            true = worst_delta(*pair, X[1] - X[0], at)
            assert true < delta(cost, at, PLD(adjacency=adjacency)) + 1e-6


# --- Rényi accounting, golden numbers, and other costs --------------------------------------------


@pytest.mark.parametrize("adjacency", [ZERO_OUT, ADD_REMOVE], ids=str)
@pytest.mark.parametrize("batch", [(6, 0.3, 2, 1.2), (20, 0.3, 5, 0.8), (1000, 0.02, 24, 2.0)])
def test_renyi_divergences_cover_numerical_integration(batch, adjacency):
    num_records, rate, capacity, noise = batch
    full = binom.pmf(capacity, num_records, rate) / binom.cdf(capacity, num_records, rate)
    without = full * (1 - capacity / num_records)
    found = RDP(adjacency=adjacency).divergences(conditioned(*batch))
    for order in (1.5, 2.0, 8.0, 12.0):

        def moment(power):
            def integrand(u):
                ratio = 1 - rate + rate * math.exp(u / noise - 0.5 / noise**2)
                return ratio**power * norm.pdf(u)

            return without + (1 - without) * quad(integrand, -15, 40, limit=400)[0]

        true = max(math.log(moment(order)), math.log(moment(1 - order))) / (order - 1)
        bound = found[list(divergences.ORDERS).index(order)]
        assert true <= bound * (1 + 1e-9) <= true * (1 + 1e-4)


GOLDEN = [
    (60_000, 256, 3500, 1.3, 1e-5, 288, 255.1, 0.998),
    (60_000, 256, 3500, 1.3, 1e-5, 272, 251.6, 0.991),
    (32_561, 2048, 400, 1.3, 1e-5, 2136, 2045.6, 0.999),
    (1000, 100, 1000, 4.0, 1e-3, 119, 99.5, 0.997),
]


@pytest.mark.parametrize("golden", GOLDEN, ids=str)
@pytest.mark.parametrize("accountant", [PLD, RDP], ids=lambda a: a.__name__)
def test_epsilon_is_the_golden_part_of_that_of_a_poisson_batch(accountant, golden):
    num_records, size, steps, noise, at, capacity, mean, ratio = golden
    batch = PoissonBatch(num_records=num_records, batch_size=size, max_batch_size=capacity)
    cost = dpa.SelfComposedDpEvent(batch.cost(noise), steps)
    assert num_records * batch.inclusion_rate == pytest.approx(mean, abs=0.05)
    for adjacency in (ZERO_OUT, ADD_REMOVE):
        plain = epsilon(poisson(batch.rate, noise, steps), at, accountant(adjacency=adjacency))
        found = epsilon(cost, at, accountant(adjacency=adjacency))
        assert found / plain == pytest.approx(ratio, abs=6e-4)


@pytest.mark.parametrize("capacity", [1, 50, 90, 100, 110, 150, 999])
def test_no_capacity_costs_more_than_a_poisson_batch_of_the_same_rate(capacity):
    for accountant in (*(PLD(adjacency=a) for a in Adjacency), RDP(), RDP(adjacency=ADD_REMOVE)):
        plain = epsilon(poisson(0.1, 2.0, 50), 1e-5, accountant)
        assert epsilon(conditioned(1000, 0.1, capacity, 2.0, 50), 1e-5, accountant) <= plain


def test_a_capacity_below_the_mean_is_dearer_than_a_poisson_batch_of_the_same_mean():
    # Why a batch refuses it: q for the cost, and a smaller one for what is learnt.
    small = size_table(1000, 0.1, 80).mean / 1000
    assert small < 0.08
    assert epsilon(conditioned(1000, 0.1, 80, 2.0, 50), 1e-5) > 1.05 * epsilon(
        poisson(small, 2.0, 50), 1e-5
    )
    with pytest.raises(InvalidArgumentError, match="ask for a smaller batch_size"):
        PoissonBatch(num_records=1000, batch_size=100, max_batch_size=80)


def test_a_capacity_for_all_records_is_a_poisson_batch():
    for accountant in (PLD(), RDP()):
        assert epsilon(conditioned(100, 0.1, 100, 2.0, 5), 1e-5, accountant) == epsilon(
            poisson(0.1, 2.0, 5), 1e-5, accountant
        )


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (conditioned(10, 1.0, 5, 1.0), "sampling_probability must be below 1"),
        (conditioned(10, 1.5, 5, 1.0), r"must lie in \[0, 1\]"),
        (conditioned(0, 0.5, 5, 1.0), "a table not empty"),
        (conditioned(10, 0.5, -1, 1.0), "must not be negative"),
        (conditioned(10, 0.5, 5, -1.0), "noise_multiplier"),
    ],
)
def test_an_impossible_event_is_refused(event, message):
    with pytest.raises(InvalidArgumentError, match=message):
        PLD().epsilon(event, delta=1e-5)


def test_an_event_is_written_read_and_counted():
    event = conditioned(60_000, 256 / 60_000, 272, 1.3, 7)
    assert event_from_json(event_to_json(event)) == event
    assert count_releases(event) == {event.event: 7}
    assert list(noise_multipliers(event)) == [(1.3, 7)]


@pytest.mark.parametrize("adjacency", Adjacency, ids=str)
@pytest.mark.parametrize("capacity", [30, 55, 90])
def test_a_statement_of_a_conditioned_batch_is_confirmed_by_the_second_accountant(
    capacity, adjacency
):
    statement = make_statement(
        cost=Cost(conditioned(1000, 0.05, capacity, 1.5, 40), is_secure=True),
        budget=Budget(epsilon=100.0, delta=1e-5, accountant=PLD(adjacency=adjacency)),
        unit="one record (one row)",
        num_units=1000,
    )
    found = verify_statement(statement.to_json())
    assert found.holds, found.verdict
    assert statement.epsilon - 2e-3 < found.recomputed <= statement.epsilon * 1.001
    assert "Poisson batch of bounded size" in statement.text()
    # A claim that ignores the rate is found out.
    cost = statement.cost | {"event": statement.cost["event"] | {"sampling_probability": 0.06}}
    assert "TOO SMALL" in verify_statement(statement.to_json() | {"cost": cost}).verdict


# --- two rates -----------------------------------------------------------------------------------

TIGHT = PoissonBatch(num_records=30, batch_size=12, max_batch_size=12)


def estimates(batch, num_records, num_draws=4000):
    release = GaussianSum(sampling=batch, clip_norm=1.0, noise_multiplier=0.0)
    rows = jnp.ones(num_records)
    keys = jax.random.split(seeded_key(0), num_draws)
    draw = jax.jit(jax.vmap(lambda key: release(key, lambda row, key: row, rows)))
    return np.asarray(draw(keys), np.float64)


def check_unbiased(batch, num_records):
    found = estimates(batch, num_records)
    assert abs(found.mean() - num_records) < 5 * found.std() / math.sqrt(found.size)


@pytest.mark.parametrize("num_records", [3, 12, 29, 30])
def test_estimates_are_unbiased_however_many_of_the_declared_records_there_are(num_records):
    check_unbiased(replace(TIGHT, num_records=num_records, declared_records=30), num_records)


def test_estimates_of_a_public_number_of_records_are_unbiased():
    check_unbiased(TIGHT, 30)


def test_the_temperature_of_a_sampler_is_that_of_the_noise_on_its_estimates():
    assert TIGHT.inclusion_rate < 0.92 * TIGHT.rate
    for method, factor in (
        (SGLD.fixed_temperature(sampling=TIGHT, clip_norm=2.0, step_size=1e-3), 1 / 4),
        (
            SGHMC.fixed_temperature(sampling=TIGHT, clip_norm=2.0, step_size=1e-3, friction=0.25),
            1 / (2 * 0.25),
        ),
    ):
        # The variance of the noise on the estimated sum is all that the dynamics see.
        temperature = factor * 1e-3 * method.release.noise_std**2
        assert temperature == pytest.approx(1.0, rel=1e-6)
        assert method.temperature() == pytest.approx(1.0, rel=1e-5)


def test_the_statement_shows_both_rates_of_a_sum():
    method = SGLD.fixed_temperature(sampling=TIGHT, clip_norm=2.0, step_size=1e-3)
    statement = make_statement(
        cost=Cost(method.cost(3), is_secure=True),
        budget=Budget(epsilon=100.0, delta=1e-5),
        unit="one record",
        num_units=30,
        method=method,
    )
    (engine,) = statement.engines
    assert (engine["rate"], engine["inclusion_rate"]) == (TIGHT.rate, TIGHT.inclusion_rate)
    assert f"inclusion rate {TIGHT.inclusion_rate:.6g}" in " ".join(statement.text().split())


# --- what would go wrong -------------------------------------------------------------------------


def exact_law_of(batch):
    """The chance of each set of rows as the sampler's table of sizes gives it, exactly."""
    counts = size_table(batch.public_records, batch.rate, batch.capacity).counts
    num_rows = batch.public_records
    return {
        subset: Fraction(count, 2**64) / math.comb(num_rows, size)
        for size, count in enumerate(counts)
        for subset in itertools.combinations(range(num_rows), size)
    }


def check_sizes_cost_what_is_stated(monkeypatch):
    """Draws, not tables: sizes of a batch with little room are not piled up at its capacity."""
    draw = jax.jit(jax.vmap(lambda key: TIGHT.draw(key).mask.sum()))
    sizes = np.asarray(draw(jax.random.split(seeded_key(0), 4000)))
    full = TIGHT.cost(1.0).capacity
    expected = binom.pmf(full, 30, TIGHT.rate) / binom.cdf(full, 30, TIGHT.rate)
    error = 5 * math.sqrt(expected * (1 - expected) / 4000)
    assert abs(np.mean(sizes == full) - expected) < error


def check_estimates(monkeypatch):
    check_unbiased(TIGHT, 30)


def check_size_is_secret(monkeypatch):
    """With noise and one key, what a release returns has one shape and no trace of the size.

    Records that contribute nothing leave pure noise, whatever the number of them that is drawn.
    """
    release = GaussianSum(sampling=TIGHT, clip_norm=1.0, noise_multiplier=1.0)
    keys = jax.random.split(seeded_key(0), 2000)
    draw = jax.vmap(lambda key: release(key, lambda row, key: 0.0 * row, jnp.ones(30)))
    noise = np.asarray(jax.jit(draw)(keys), np.float64) / release.noise_std
    batch_keys = jax.vmap(lambda key: jax.random.split(key, 4)[0])(keys)
    sizes = np.asarray(jax.vmap(lambda key: TIGHT.draw(key).mask.sum())(batch_keys))
    assert abs(np.corrcoef(noise**2, sizes)[0, 1]) < 5 / math.sqrt(len(noise))
    assert abs(np.corrcoef(noise, sizes)[0, 1]) < 5 / math.sqrt(len(noise))


BUGS = {
    "the size cut at the capacity, and charged as conditioned": (
        PoissonBatch,
        "draw",
        "size_table(self.public_records, self.rate, self.capacity).invert(words[:, 0])",
        "size_table(self.public_records, self.rate, self.public_records).invert(words[:, 0])",
        check_sizes_cost_what_is_stated,
    ),
    "estimates divided by the rate of the cost": (
        GaussianSum,
        "_release",
        "1 / self.sampling.inclusion_rate",
        "1 / self.sampling.rate",
        check_estimates,
    ),
    "noise that tells the size": (
        GaussianSum,
        "_release",
        "scale=scale * bound * spacing",
        "scale=scale * bound * spacing * (1 + batch.mask.sum())",
        check_size_is_secret,
    ),
    "the size added to a release": (
        GaussianSum,
        "_release",
        "scale = jnp.ones(())",
        "scale = jnp.ones(());"
        " total = total.with_own(total.own + batch.mask.sum().astype(total.own.dtype))",
        check_size_is_secret,
    ),
}


@pytest.mark.parametrize("check", dict.fromkeys(bug[-1] for bug in BUGS.values()))
def test_nothing_is_wrong_without_a_bug(check, monkeypatch):
    check(monkeypatch)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug, monkeypatch):
    owner, name, old, new, check = BUGS[bug]
    plant(monkeypatch, owner, name, old, new)
    with pytest.raises(AssertionError):
        check(monkeypatch)


def test_brute_force_catches_a_batch_that_is_cut_and_charged_as_conditioned():
    batch = (4, 0.4, 2, 1.0)
    assert excess_of_sums(law(*batch[:3]), batch, ZERO_OUT) < 1e-6
    assert excess_of_sums(cut_law(*batch[:3]), batch, ZERO_OUT) > 1e-3


@pytest.mark.parametrize("capacity", [5, 6, 7, 10])
def test_the_table_of_sizes_gives_every_record_the_odds_of_the_cost(capacity):
    batch = PoissonBatch(num_records=10, batch_size=4.5, max_batch_size=capacity)
    chances, q = exact_law_of(batch), Fraction(batch.rate)
    assert sum(chances.values()) == 1
    for others in (subset for subset in chances if 0 not in subset):
        inside = chances.get((0, *others), Fraction(0))
        assert inside * (1 - q) <= chances[others] * q


def test_a_size_table_rounded_to_nearest_would_give_some_record_better_odds():
    # Half of the roundings go the wrong way, which the one-sided table excludes.
    q = Fraction(0.45)
    weights = [math.comb(10, k) * q**k * (1 - q) ** (10 - k) for k in range(7)]
    rounded = [round(2**64 * weight / sum(weights)) for weight in weights]
    assert any((k + 1) * rounded[k + 1] * (1 - q) > (10 - k) * rounded[k] * q for k in range(6))


def test_nothing_but_the_indices_depends_on_the_true_number():
    few, many = (PoissonBatch(num_records=n, batch_size=12, declared_records=30) for n in (20, 29))
    assert (few.rate, few.inclusion_rate, few.capacity) == (
        many.rate,
        many.inclusion_rate,
        many.capacity,
    )
    assert few.cost(1.0) == many.cost(1.0)
    one, other = few.draw(seeded_key(3)), many.draw(seeded_key(3))
    # The same rows are drawn into the same slots; some are vacant in the smaller table.
    shared = np.asarray(other.indices) < 20
    np.testing.assert_array_equal(np.asarray(one.mask), np.asarray(other.mask) & shared)
    kept = np.asarray(one.mask)
    np.testing.assert_array_equal(np.asarray(one.indices)[kept], np.asarray(other.indices)[kept])


@pytest.mark.parametrize(("declared", "rate", "capacity"), [(1000, 0.1, 119), (50, 0.3, 12)])
def test_what_vacant_rows_save_is_bounded_as_the_docs_say(declared, rate, capacity):
    # Drawn from n records instead of N rows, the ratio of densities would be Z; W covers all n.
    noise, order = 1.5, np.linspace(0.0005, 0.9995, 1000)
    ratio = np.exp((norm.ppf(order, 0, noise) - 0.5) / noise**2)
    ratio /= ratio.mean()

    def spread(slope, full, at):
        return sum(
            chance * np.maximum(1 + slope * (drawn * ratio - (1 - full)) - at, 0.0).mean()
            for drawn, chance in ((0, full), (1, 1 - full))
        )

    def full_of(n):
        return binom.pmf(capacity, n - 1, rate) / binom.cdf(capacity, n - 1, rate)

    most = full_of(declared)
    for at in (1 - rate, 1 - rate / 2, 1.0, 1 + rate / 10, 1.1, 1.5, 3.0):
        bound = spread(rate / (1 - most), most, at)
        for n in range(1, declared + 1):
            full = full_of(n)
            # The density of the others changes as conditioning on n instead of n - 1 changes it.
            factor = binom.cdf(capacity, n - 1, rate) / binom.cdf(capacity, n, rate)
            assert factor == pytest.approx(1 / (1 - rate * full), rel=1e-9)
            assert spread(rate * factor, full, at) <= bound * (1 + 1e-9) + 1e-12
