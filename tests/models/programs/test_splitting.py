"""Splitting: shared part and record terms are NumPyro's objective, and no record is kept."""

import functools
import gc

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.infer import SVI, Trace_ELBO, autoguide
from numpyro.infer.util import log_density

import tacit
from models.programs.zoo import LOCAL, SHARED, N, logistic
from tacit.models.programs.arguments import signature_of, split_arguments
from tacit.models.programs.split import split_program

# Programs run once here: compiling them well would take longer than running them.
FAST = {"xla_backend_optimization_level": 0}
LEFT_OUT = pytest.mark.filterwarnings("ignore:Found vars in model but not guide")


def arguments_of(case):
    return split_arguments(
        case.args, case.kwargs, public=case.public, signature=signature_of(case.model)
    )


@functools.cache
def local_split(name):
    return split_program(LOCAL[name].model, LOCAL[name].guide, arguments_of(LOCAL[name]))


def record_terms(split, params, key, records):
    keys = jax.random.split(jax.random.key(5), N)
    return jax.vmap(split.record_term, in_axes=(None, None, 0, 0))(params, key, records, keys)


def hand_written(case):
    return case.guide


def automatic(kind):
    return lambda case: kind(case.model)


GUIDED = [
    *(
        pytest.param(case, hand_written, 2 if name == "logistic, keywords" else 1, id=name)
        for name, case in SHARED.items()
        if case.guide is not None
    ),
    *(
        pytest.param(SHARED[name], automatic(kind), 1, id=kind.__name__)
        for kind, name in (
            (autoguide.AutoNormal, "varying intercepts"),
            (autoguide.AutoLowRankMultivariateNormal, "logistic, keywords"),
            (autoguide.AutoDelta, "normal mean"),
        )
    ),
]


@LEFT_OUT
@pytest.mark.parametrize(("case", "make_guide", "num_particles"), GUIDED)
def test_start_objective_and_gradient_are_those_of_numpyros_svi(case, make_guide, num_particles):
    arguments = arguments_of(case)
    split = split_program(case.model, make_guide(case), arguments, num_particles=num_particles)
    guide, bound = make_guide(case), Trace_ELBO(num_particles=num_particles)
    svi = SVI(case.model, guide, numpyro.optim.SGD(1.0), bound)
    state = svi.init(jax.random.key(3), *case.args, **case.kwargs)
    params = split.init(jax.random.key(3))
    jax.tree.map(np.testing.assert_array_equal, params, svi.optim.get_params(state.optim_state))
    key, scale = jax.random.key(4), split.plate_size / N

    def ours(params):
        terms = record_terms(split, params, key, arguments.records)
        return -split.shared_term(params, key) - scale * jnp.sum(terms)

    def numpyros(params):
        values = svi.constrain_fn(params)
        return bound.loss(key, values, case.model, guide, *case.args, **case.kwargs)

    both = jax.jit(
        lambda params: [jax.value_and_grad(loss)(params) for loss in (ours, numpyros)],
        compiler_options=FAST,
    )
    found, expected = both(params)
    # Float32 sums of a few dozen terms, in another order.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-4), found, expected)


@pytest.mark.parametrize("name", LOCAL)
def test_records_with_latents_of_their_own_add_up_to_numpyros_density(name):
    case, split = LOCAL[name], local_split(name)
    arguments = arguments_of(case)
    params = split.init(jax.random.key(3))
    values, key = split.constrain(params), jax.random.key(4)
    own_keys = jax.random.split(jax.random.key(5), N)
    local = [site.name for site in split.sites if site.role == "local latent"]

    def latents(record, own):
        rows = [leaf[None] for leaf in record]
        sites = split.program.run(values, key, rows, own).model
        return {
            name: site["value"][0] if name in local else site["value"]
            for name, site in sites.items()
            if site["type"] == "sample" and not site["is_observed"]
        }

    @functools.partial(jax.jit, compiler_options=FAST)
    def both(records):
        drawn = jax.vmap(latents)(records, own_keys)
        shared = {name: value if name in local else value[0] for name, value in drawn.items()}
        at = {**values, **shared}
        guide = numpyro.handlers.seed(case.guide, 0)
        log_model, log_guide = (
            log_density(program, case.args, case.kwargs, at)[0] for program in (case.model, guide)
        )
        terms = record_terms(split, params, key, records)
        return split.shared_term(params, key) + jnp.sum(terms), log_model - log_guide, drawn

    found, expected, drawn = both(arguments.records)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    # Their own latents come from the records' own keys, so equal records differ.
    assert len(np.unique(drawn[local[0]], axis=0)) == N


def test_other_records_change_nothing_but_their_own_terms():
    x = jax.random.normal(jax.random.key(0), (N, 2))
    y = jnp.arange(N) % 2
    made = []
    for table in (x, 1e6 * x + 3):
        guide = autoguide.AutoNormal(logistic)
        split = split_program(logistic, guide, split_arguments((table,), {"y": y}))
        params = split.init(jax.random.key(1))
        made.append((params, split.shared_term(params, jax.random.key(2)), split.blank))
    jax.tree.map(np.testing.assert_array_equal, *made)


def reachable_arrays(*roots):
    seen, queue = set(), list(roots)
    while queue:
        value = queue.pop()
        if id(value) in seen or isinstance(value, type) or type(value).__name__ == "module":
            continue
        seen.add(id(value))
        if isinstance(value, jax.Array | np.ndarray):
            if value.dtype in (jnp.float32, jnp.int32):
                yield np.asarray(value)
        else:
            # A function's globals are the whole test file; its closure is what it keeps.
            refers = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
            is_function = type(value).__name__ == "function"
            queue.extend(refers if is_function else gc.get_referents(value))


def test_neither_the_split_nor_the_guide_keeps_a_record():
    secret = 4711.5
    x, y = jnp.full((N, 2), secret), jnp.full(N, 4712)
    guide = autoguide.AutoNormal(logistic)
    # A guide that has seen the records before forgets them.
    numpyro.handlers.seed(guide, 0)(x, y=y * 0)
    assert any(np.any(array == secret) for array in reachable_arrays(guide))
    split = split_program(logistic, guide, split_arguments((x,), {"y": y}))
    split.init(jax.random.key(0))
    arrays = list(reachable_arrays(split, guide))
    assert arrays
    assert not any(np.any((array == secret) | (array == 4712)) for array in arrays)


def test_an_autoguide_is_ready_after_the_split():
    guide = autoguide.AutoNormal(logistic)
    split = split_program(logistic, guide, split_arguments((jnp.ones((N, 2)),), {"y": jnp.ones(N)}))
    params = split.constrain(split.init(jax.random.key(0)))
    assert guide.median(params)["weights"].shape == (2,)


def test_an_autoguide_inside_of_a_function_is_ready_after_the_split():
    inner = autoguide.AutoNormal(logistic)

    def guide(*args, **kwargs):
        return inner(*args, **kwargs)

    split = split_program(logistic, guide, split_arguments((jnp.ones((N, 2)),), {"y": jnp.ones(N)}))
    params = split.constrain(jax.jit(split.init)(jax.random.key(0)))
    assert inner.median(params)["weights"].shape == (2,)


def test_a_vae_is_clipped_without_forming_anything_for_a_record_but_its_biases():
    arguments, split = arguments_of(LOCAL["vae"]), local_split("vae")
    params = split.init(jax.random.key(0))

    def loss(params, record, key):
        return -split.record_term(params, jax.random.key(1), record, key)

    report = tacit.explain_clipping(loss, params, [leaf[0] for leaf in arguments.records])
    assert not report.fallback
    kernels = {path.name: path for path in report.parameters if "kernel" in path.name}
    assert len(kernels) == 5
    assert all(path.num_formed == 0 for path in kernels.values()), str(report)
