"""After fitting: predicting, saving, loading and exporting, without the records."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen
from numpyro.contrib.module import random_flax_module
from numpyro.infer import Predictive
from numpyro.infer.autoguide import AutoNormal

from numpyro_cases import KEY, private, regression, table
from tacit.errors import InvalidArgumentError, PrivacyWarning, TacitError
from tacit.numpyro import load_program_posterior, to_arviz

pytestmark = [
    pytest.mark.filterwarnings("ignore:the loss is NaN:tacit.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore:this posterior is INSECURE:tacit.errors.PrivacyWarning"),
]
NEW = table(5, seed=7)[0]


@pytest.fixture(scope="module")
def fitted(clip_unverified):
    guide = AutoNormal(regression)
    svi = private(guide=guide, num_steps=5)
    x, y = table()
    state = svi.run(KEY, 5, x, y, progress_bar=False).state
    left = [weakref.ref(x), weakref.ref(y)]
    del x, y
    gc.collect()
    assert [reference() for reference in left] == [None, None], "something keeps a record alive"
    return svi, state, svi.posterior(state)


def bytes_of(table):
    """The bytes of every record, as any artefact would hold them."""
    for array in table:
        yield from (np.asarray(row).tobytes() for row in array if np.size(row) > 1)
        yield np.asarray(array).tobytes()
        yield from (np.asarray(row, np.float64).tobytes() for row in array)


def test_numpyros_predictive_works_with_the_result(fitted):
    svi, state, _ = fitted
    predict = Predictive(regression, guide=svi.guide, params=svi.get_params(state), num_samples=7)
    drawn = predict(jax.random.key(1), NEW)
    assert drawn["y"].shape == (7, 5)
    assert np.isfinite(drawn["y"]).all()


def test_a_saved_posterior_predicts_the_same_with_a_new_guide(fitted, tmp_path):
    _, _, posterior = fitted
    posterior.save(tmp_path)
    with pytest.raises(InvalidArgumentError, match="never called"):
        load_program_posterior(tmp_path, regression, AutoNormal(regression))
    loaded = load_program_posterior(
        tmp_path,
        regression,
        AutoNormal(regression),
        jnp.zeros((2, 2)),
        y=jnp.zeros(2),
    )
    jax.tree.map(np.testing.assert_array_equal, loaded.params, posterior.params)
    assert loaded.statement == posterior.statement
    for one, other in zip(
        (posterior.predictive(num_draws=7)(KEY, NEW), posterior.draws(NEW, num_draws=7)),
        (loaded.predictive(num_draws=7)(KEY, NEW), loaded.draws(NEW, num_draws=7)),
        strict=True,
    ):
        assert one.keys() == other.keys()
        jax.tree.map(np.testing.assert_array_equal, one, other)
    assert set(posterior.draws(NEW, num_draws=7)) == {"weights", "scale"}


def test_no_artefact_holds_a_record(fitted, tmp_path):
    _, _, posterior = fitted
    posterior.save(tmp_path)
    to_arviz(posterior, NEW, num_draws=5).to_netcdf(str(tmp_path / "posterior.nc"))
    written = b"".join(path.read_bytes() for path in sorted(tmp_path.iterdir()))
    assert len(list(tmp_path.iterdir())) == 3
    assert np.asarray(NEW[0]).tobytes() not in written
    for record in bytes_of(table()):
        assert record not in written
    # The search finds what is there.
    assert np.asarray(posterior.params["weights_auto_loc"]).tobytes() in written


def test_the_set_up_of_an_autoguide_holds_no_record(fitted):
    svi, _, _ = fitted
    trace = svi.guide.prototype_trace
    values = [np.asarray(site["value"]) for site in trace.values() if site["type"] == "sample"]
    assert values
    for value in values:
        assert not np.isin(value[value != 0], np.asarray(table()[1])).any()


def test_arviz_gets_draws_and_predictions_but_no_records(fitted):
    _, _, posterior = fitted
    exported = to_arviz(posterior, NEW, num_draws=11)
    assert set(exported.groups()) == {"posterior", "posterior_predictive"}
    assert exported.posterior["weights"].shape == (1, 11, 2)
    assert exported.posterior_predictive["y"].shape == (1, 11, 5)
    with pytest.raises(InvalidArgumentError, match="it observes y"):
        to_arviz(posterior, *table())


def test_saving_says_what_may_not_be_published(fitted, tmp_path):
    _, _, posterior = fitted
    with pytest.warns(PrivacyWarning, match="INSECURE"):
        posterior.save(tmp_path)
    assert "INSECURE" in repr(posterior)


def test_a_damaged_artefact_is_found_out(fitted, tmp_path):
    _, _, posterior = fitted
    posterior.save(tmp_path)
    path = tmp_path / "program.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(TacitError, match="checksum"):
        load_program_posterior(tmp_path, regression, posterior.guide)


def test_nested_parameters_are_saved_as_they_are(fitted, tmp_path):
    from dataclasses import replace

    _, state, posterior = fitted
    dense = (jnp.ones((2, 3)), jnp.zeros(()))
    nested = {"net": {"layer": {"kernel": jnp.ones((2, 3))}}, "stax": [dense, (), [dense]]}
    replace(posterior, params=nested).save(tmp_path)
    loaded = load_program_posterior(tmp_path, regression, posterior.guide)
    assert jax.tree.structure(loaded.params) == jax.tree.structure(nested)
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a, b, strict=True), loaded.params, nested
    )
    with pytest.raises(TacitError, match="got a DPSVIState at params"):
        replace(posterior, params={"state": state}).save(tmp_path)


def network(x, y=None):
    """The kernel has a prior; the bias is optimised."""
    prior = {"kernel": dist.Normal()}
    net = random_flax_module("net", linen.Dense(1), prior, input_shape=(1, 2))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(net(x)[:, 0], 1.0), obs=y)


def test_a_network_with_a_prior_is_saved_and_predicts_the_same(clip_unverified, tmp_path):
    svi = private(model=network, guide=AutoNormal(network), num_steps=2)
    state = svi.run(KEY, 2, *table(), progress_bar=False).state
    posterior = svi.posterior(state)
    posterior.save(tmp_path)
    blank = jnp.zeros((2, 2)), jnp.zeros(2)
    loaded = load_program_posterior(tmp_path, network, AutoNormal(network), *blank)
    assert jax.tree.structure(loaded.params) == jax.tree.structure(posterior.params)
    one, other = (each.predictive(num_draws=3)(KEY, NEW) for each in (posterior, loaded))
    assert one["y"].shape == (3, 5)
    jax.tree.map(np.testing.assert_array_equal, one, other)
