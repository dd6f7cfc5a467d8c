"""The fast way of clipping equals the reference, for any loss, and never under-estimates a norm."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiments.architectures import zhang_mnist_cnn
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from tacit.privacy.clipping import (
    Flat,
    Normalised,
    PerLayer,
    bounds,
    explain_clipping,
)
from tacit.privacy.clipping.book_keeping import norms_and_sum
from tacit.privacy.clipping.gradient import (
    clipped_gradient_sum,
    find_norm_plan,
)
from tacit.privacy.clipping.operations import Map, NormPlan, make_norm_plan
from tacit.privacy.clipping.rules import Dense, Layout, Lookup, Read, joint_squared_norm
from tacit.privacy.clipping.tracing import trace
from tacit.privacy.clipping.verification import _verdicts, is_verified
from tacit.rng import seeded_key

B = 8
generator = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(generator.normal(size=shape), jnp.float32)


def whole(high, *shape):
    return jnp.asarray(generator.integers(0, high, shape), jnp.int32)


def cross_entropy(logits, label):
    return -jax.nn.log_softmax(logits)[label]


def mlp(w, record, key):
    x, y = record
    h = jax.nn.relu(x @ w["a"] + w["b"])
    return cross_entropy(h @ w["c"] + w["d"], y)


MLP = {"a": normal(7, 9), "b": normal(9), "c": normal(9, 4), "d": normal(4)}
LABELLED = (normal(B, 7), whole(4, B))
DRAW = jax.tree.map(lambda leaf: normal(*leaf.shape), MLP)


def dropout(w, record, key):
    x, y = record
    h = jax.nn.relu(x @ w["a"] + w["b"])
    return cross_entropy((h * jax.random.bernoulli(key, 0.5, h.shape)) @ w["c"] + w["d"], y)


def variational(w, record, key):
    drawn = jax.tree.map(lambda m, r, e: m + jax.nn.softplus(r) * e, w["m"], w["r"], DRAW)
    return mlp(drawn, record, key)


def local_draw(w, x, key):
    mean, std = x @ w["m"], jnp.sqrt(x**2 @ jax.nn.softplus(w["r"]) ** 2)
    return jnp.sum(jnp.tanh(mean + std * jax.random.normal(key, mean.shape)))


def per_record_draw(w, x, key):
    drawn = w["m"] + jax.nn.softplus(w["r"]) * jax.random.normal(key, w["m"].shape)
    return jnp.sum(jnp.tanh(x @ drawn))


def layers_by_scan(w, x, key):
    h, _ = lax.scan(lambda c, p: (jnp.tanh(c @ p[0] + p[1]), None), x, (w["k"], w["b"]))
    return jnp.sum(h * w["o"])


def recurrent(w, xs, key):
    def step(h, x):
        h = jnp.tanh(x @ w["i"] + h @ w["h"] + w["b"])
        return h, h

    h, states = lax.scan(step, w["h0"], xs)
    return jnp.sum(h @ w["o"]) + 0.1 * jnp.sum(states)


def backwards_scan_of_reparameterised(w, xs, key):
    def step(h, x):
        return jnp.tanh(x @ (w["i"] * jnp.exp(w["s"])) + h * w["g"]), None

    return jnp.sum(lax.scan(step, jnp.zeros(5), xs, reverse=True)[0])


def embedding(w, record, key):
    tokens, y = record
    h = jnp.take(w["table"], tokens, axis=0).mean(0)
    return jnp.logaddexp(0.0, -(2 * y - 1) * (h @ w["o"]))


def one_token(w, token, key):
    return jnp.sum(jnp.tanh(w["table"][token] * w["o"]))


def convolution(w, x, key):
    h = lax.conv_general_dilated(
        x[None], w["k"], (2, 1), [(1, 2), (0, 1)], dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jnp.sum(jnp.tanh(h + w["b"]).reshape(-1, 4) @ w["o"])


def dilated_convolution(w, x, key):
    h = lax.conv_general_dilated(
        x[None], w["k"], (1, 1), "SAME", rhs_dilation=(2, 2),
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
    )  # fmt: skip
    return jnp.sum(jnp.tanh(h) ** 2)


def grouped_convolution(w, x, key):
    h = lax.conv_general_dilated(
        x[None], w, (1, 1), "SAME", feature_group_count=2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip
    return jnp.sum(jnp.tanh(h))


def attacked(w, record, key):
    fixed = lax.stop_gradient(w)
    slope = jax.grad(lambda x: mlp(fixed, (x, record[1]), key))(record[0])
    return mlp(w, (record[0] + 0.1 * jnp.sign(slope), record[1]), key)


def attention(w, x, key):
    centred = (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-3)
    h = centred * w["g"] + w["b"]
    scores = jax.nn.softmax((h @ w["q"]) @ (h @ w["k"]).T)
    return jnp.sum(jnp.tanh(scores @ (h @ w["v"])))


def heads(w, x, key):
    q = jnp.einsum("td,hde->hte", x, w["q"])
    return jnp.sum(jnp.tanh(jnp.einsum("hte,hef->htf", q, w["p"])))


def branch(w, x, key):
    return lax.cond(
        x[0] > 0, lambda: jnp.sum(jnp.tanh(x @ w["a"])), lambda: jnp.sum(x @ w["b"]) ** 2
    )


@jax.custom_vjp
def scaled_product(x, w):
    return x @ w


scaled_product.defvjp(
    lambda x, w: (x @ w, (x, w)), lambda saved, d: (d @ saved[1].T, 2 * jnp.outer(saved[0], d))
)


def interval(w, x, key):
    """Interval bounds: centre and radius through two layers."""
    centre, radius = x, 0.1 * jnp.ones_like(x)
    for kernel in (w["a"], w["b"]):
        centre, radius = centre @ kernel, radius @ jnp.abs(kernel)
        low, high = jax.nn.relu(centre - radius), jax.nn.relu(centre + radius)
        centre, radius = (low + high) / 2, (high - low) / 2
    return jnp.sum(jnp.tanh(centre + radius))


@dataclasses.dataclass(frozen=True)
class Case:
    loss: object
    params: object
    records: object


CASES = {
    "mlp": Case(mlp, MLP, LABELLED),
    "dropout": Case(dropout, MLP, LABELLED),
    "variational": Case(
        variational, {"m": MLP, "r": jax.tree.map(lambda w: 0.3 * w - 1, MLP)}, LABELLED
    ),
    "local reparameterisation": Case(
        local_draw, {"m": normal(6, 5), "r": normal(6, 5)}, normal(B, 6)
    ),
    "per-record draw": Case(per_record_draw, {"m": normal(6, 5), "r": normal(6, 5)}, normal(B, 6)),
    "layers by scan": Case(
        layers_by_scan, {"k": normal(6, 5, 5), "b": normal(6, 5), "o": normal(5)}, normal(B, 5)
    ),
    "recurrent": Case(
        recurrent,
        {"i": normal(3, 5), "h": normal(5, 5), "b": normal(5), "o": normal(5, 2), "h0": normal(5)},
        normal(B, 8, 3),
    ),
    "backwards scan": Case(
        backwards_scan_of_reparameterised,
        {"i": normal(3, 5), "s": normal(3, 5), "g": normal(5)},
        normal(B, 4, 3),
    ),
    "embedding": Case(
        embedding, {"table": normal(30, 6), "o": normal(6)}, (whole(5, B, 9), whole(2, B))
    ),
    "one token": Case(one_token, {"table": normal(30, 6), "o": normal(6)}, whole(30, B)),
    "convolution": Case(
        convolution, {"k": normal(3, 2, 2, 4), "b": normal(4), "o": normal(4)}, normal(B, 8, 5, 2)
    ),
    "dilated convolution": Case(dilated_convolution, {"k": normal(4, 2, 3, 3)}, normal(B, 2, 6, 6)),
    "grouped convolution": Case(grouped_convolution, normal(3, 3, 2, 4), normal(B, 5, 5, 4)),
    "attention": Case(
        attention,
        {"g": normal(6), "b": normal(6), "q": normal(6, 4), "k": normal(6, 4), "v": normal(6, 3)},
        normal(B, 5, 6),
    ),
    "heads": Case(heads, {"q": normal(2, 6, 4), "p": normal(2, 4, 3)}, normal(B, 5, 6)),
    "tied with its transpose": Case(
        lambda w, x, k: jnp.tanh(jnp.tanh(x @ w) @ w.T) @ x, normal(5, 5), normal(B, 5)
    ),
    "one weight at two sites": Case(
        lambda w, x, k: jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ w)), normal(5, 5), normal(B, 5)
    ),
    "branch": Case(branch, {"a": normal(5, 3), "b": normal(5, 3)}, normal(B, 5)),
    "custom derivative": Case(
        lambda w, x, k: jnp.sum(jnp.tanh(scaled_product(x, w))), normal(5, 3), normal(B, 5)
    ),
    "prior inside the loss": Case(
        lambda w, x, k: jnp.sum(jnp.tanh(x @ w)) + 0.1 * jnp.sum(w**2), normal(5, 3), normal(B, 5)
    ),
    "low-rank update": Case(
        lambda w, x, k: jnp.sum(jnp.tanh(x @ (w["w"] + w["a"] @ w["b"]))),
        {"w": normal(6, 5), "a": normal(6, 2), "b": normal(2, 5)},
        normal(B, 6),
    ),
    "scalar and unused parameters": Case(
        lambda w, x, k: jnp.sum(jnp.tanh(w["s"] * x @ w["w"] + w["s"])),
        {"s": jnp.float32(0.7), "w": normal(6, 5), "unused": normal(3)},
        normal(B, 6),
    ),
    "weights times their own transpose": Case(
        lambda w, x, k: jnp.sum(jnp.tanh(x @ (w * w.T))), normal(5, 5), normal(B, 5)
    ),
    "rematerialised and compiled": Case(
        lambda w, x, k: jnp.sum(
            jax.checkpoint(lambda h: jax.jit(jnp.tanh)(h @ w["w"].T) * w["g"])(x)
        ),
        {"w": normal(5, 6), "g": normal(5)},
        normal(B, 6),
    ),
    "interval bounds": Case(interval, {"a": normal(6, 5), "b": normal(5, 4)}, normal(B, 6)),
    "two shared draws": Case(
        lambda w, r, k: sum(
            mlp(jax.tree.map(lambda m, v, e: m - jnp.exp(v) * e, w["m"], w["v"], draw), r, k)
            for draw in (DRAW, jax.tree.map(jnp.cos, DRAW))
        ),
        {"m": MLP, "v": jax.tree.map(lambda w: 0.3 * w - 1, MLP)},
        LABELLED,
    ),
    "against an attack": Case(attacked, MLP, LABELLED),
    "slices of one weight": Case(
        lambda w, x, k: jnp.sum(jnp.tanh(x @ w[:, :3])) + jnp.sum(jnp.sin(x @ w[:, 3:])),
        normal(5, 7),
        normal(B, 5),
    ),
}


def flax_case():
    import flax.linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            h = nn.LayerNorm()(nn.Embed(11, 6)(x))
            h = h + nn.MultiHeadDotProductAttention(num_heads=2)(h, h)
            return nn.Dense(2)(nn.gelu(nn.Dense(8)(h)).mean(0))

    tokens = whole(11, B, 5)
    params = Block().init(jax.random.key(0), tokens[0])
    return Case(
        lambda w, r, k: cross_entropy(Block().apply(w, r[0]), r[1]), params, (tokens, whole(2, B))
    )


def equinox_case():
    import equinox as eqx

    net = eqx.nn.MLP(6, 2, 7, 2, key=jax.random.key(0))
    params, static = eqx.partition(net, eqx.is_inexact_array)
    return Case(
        lambda w, r, k: cross_entropy(eqx.combine(w, static)(r[0]), r[1]),
        params,
        (normal(B, 6), whole(2, B)),
    )


def numpyro_case():
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer.util import log_density

    def program(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([4, 3]).to_event(2))
        b = numpyro.sample("b", dist.Normal(0, 1).expand([3]).to_event(1))
        numpyro.sample("y", dist.Categorical(logits=x @ w + b), obs=y)

    def loss(w, record, key):
        return -log_density(program, record, {}, w)[0]

    return Case(loss, {"w": normal(4, 3), "b": normal(3)}, (normal(B, 4), whole(3, B)))


FRAMEWORKS = {"flax": flax_case, "equinox": equinox_case, "numpyro": numpyro_case}


def find(name):
    return CASES[name] if name in CASES else FRAMEWORKS[name]()


def both(case, *, records=None, mask=None, clipping=Flat(), clip_norm=0.5, chunk_size=None):  # noqa: B008
    records = case.records if records is None else records
    batch = len(jax.tree.leaves(records)[0])
    keys = jax.random.split(seeded_key(0), batch)
    mask = jnp.ones(batch, bool) if mask is None else mask
    options = {"clipping": clipping, "clip_norm": clip_norm, "chunk_size": chunk_size}
    return [
        jax.jit(functools.partial(way, case.loss, **options))(case.params, records, keys, mask)
        for way in (clipped_gradient_sum, bounds.reference_gradient_sum)
    ]


def assert_equal(fast, slow, tolerance=3e-5):
    scale = 1e-6 + max(float(jnp.linalg.norm(leaf)) for leaf in jax.tree.leaves(slow))
    for a, b in zip(jax.tree.leaves(fast), jax.tree.leaves(slow), strict=True):
        assert float(jnp.linalg.norm(a - b)) <= tolerance * scale


# One case of each rule; `make test-all` compares the others, too.
OFTEN = {
    "mlp",
    "dropout",
    "variational",
    "recurrent",
    "embedding",
    "convolution",
    "attention",
    "tied with its transpose",
    "branch",
    "interval bounds",
    "numpyro",
}
EVERY = [
    pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow)
    for name in [*CASES, *FRAMEWORKS]
]


@pytest.mark.parametrize("name", EVERY)
def test_the_fast_way_equals_the_reference(name):
    case = find(name)
    record = jax.tree.map(lambda leaf: leaf[0], case.records)
    assert not isinstance(find_norm_plan(case.loss, case.params, record, seeded_key(0)), str)
    assert_equal(*both(case, mask=jnp.arange(B) % 4 != 3))


@pytest.mark.parametrize("clipping", [PerLayer(), Normalised()])
@pytest.mark.parametrize("name", ["mlp", "variational", "recurrent", "tied with its transpose"])
def test_every_clipping_rule_is_the_same_on_both_ways(name, clipping):
    assert_equal(*both(CASES[name], clipping=clipping))


@pytest.mark.parametrize("name", ["mlp", "convolution", "recurrent", "embedding", "branch"])
def test_without_a_clip_the_fast_way_is_the_plain_gradient(name):
    case = CASES[name]
    keys = jax.random.split(seeded_key(0), B)
    fast, _ = both(case, clip_norm=jnp.inf)
    plain = jax.grad(
        lambda w: jnp.sum(jax.vmap(lambda r, k: case.loss(w, r, k))(case.records, keys))
    )(case.params)
    assert_equal(fast, plain)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, 1e25])
@pytest.mark.parametrize("name", ["mlp", "convolution", "recurrent", "attention"])
def test_a_bad_record_adds_nothing_and_spoils_nothing(name, bad):
    case = CASES[name]
    spoiled = jax.tree.map(
        lambda leaf: leaf.at[2].set(bad) if leaf.dtype == jnp.float32 else leaf, case.records
    )
    with_bad, _ = both(case, records=spoiled)
    without, _ = both(case, mask=jnp.arange(B) != 2)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(with_bad))
    gap = jax.tree.map(jnp.subtract, with_bad, without)
    norm = np.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(gap)))
    assert norm <= 0.5 * (1 + 1e-5)


@pytest.mark.parametrize("name", ["mlp", "convolution", "layers by scan"])
def test_padding_and_chunks_change_nothing(name):
    case, mask = CASES[name], jnp.arange(B) < 5
    junk = jax.tree.map(
        lambda leaf: leaf.at[5:].set(jnp.nan) if leaf.dtype == jnp.float32 else leaf, case.records
    )
    (clean, _), (padded, _) = both(case, mask=mask), both(case, records=junk, mask=mask)
    chunked, _ = both(case, mask=mask, chunk_size=3)
    assert_equal(padded, clean)
    assert_equal(chunked, clean)


def test_an_empty_batch_sums_to_zero():
    fast, _ = both(CASES["mlp"], mask=jnp.zeros(B, bool))
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(fast))


def test_low_precision_parameters_are_left_to_the_reference():
    half = dataclasses.replace(
        CASES["mlp"], params=jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), MLP)
    )
    record = jax.tree.map(lambda leaf: leaf[0], half.records)
    assert "float32" in find_norm_plan(half.loss, half.params, record, seeded_key(0))
    fast, slow = both(half)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(fast))
    assert_equal(fast, slow)


def test_double_precision_agrees_to_its_own_precision():
    with jax.enable_x64(True):
        wide = Case(
            mlp,
            jax.tree.map(lambda leaf: leaf.astype(jnp.float64), MLP),
            (LABELLED[0].astype(jnp.float64), LABELLED[1]),
        )
        # Bounds on norms are those of single precision, so that factors agree only to that.
        assert_equal(*both(wide, clip_norm=math.inf), tolerance=1e-12)
        assert_equal(*both(wide))


def test_a_loss_traced_inside_a_step_may_close_over_what_the_step_computes():
    def step(params, draw):
        def loss(w, record, key):
            return mlp(jax.tree.map(lambda m, e: m + 0.1 * e, w, draw), record, key)

        keys = jax.random.split(seeded_key(0), B)
        arguments = (loss, params, LABELLED, keys, jnp.ones(B, bool))
        options = {"clipping": Flat(), "clip_norm": 0.5}
        return (
            clipped_gradient_sum(*arguments, **options),
            bounds.reference_gradient_sum(*arguments, **options),
        )

    assert_equal(*jax.jit(step)(MLP, DRAW))


@given(
    kinds=st.lists(
        st.sampled_from(
            ["exp", "transpose", "scale", "shift", "square", "softplus", "flip", "self", "sum"]
        ),
        max_size=4,
    ),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=25, deadline=None)
def test_any_chain_of_maps_from_parameter_to_weight_is_classified_soundly(kinds, seed):
    random = np.random.default_rng(seed)
    other = jnp.asarray(random.normal(size=(4, 4)), jnp.float32)
    maps = {
        "exp": lambda w: jnp.exp(0.3 * w),
        "transpose": jnp.transpose,
        "scale": lambda w: w * other,
        "shift": lambda w: other - w,
        "square": lambda w: w**2,
        "softplus": jax.nn.softplus,
        "flip": lambda w: w[::-1].reshape(2, 8).reshape(4, 4),
        "self": lambda w: w * w.T,
        "sum": lambda w: w + jnp.sum(w) / 16,
    }

    def loss(w, x, key):
        for kind in kinds:
            w = maps[kind](w)
        return jnp.sum(jnp.tanh(0.3 * x @ w))

    params = jnp.asarray(0.5 * random.normal(size=(4, 4)), jnp.float32)
    x = jnp.asarray(random.normal(size=(3, 4)), jnp.float32)
    keys = jax.random.split(seeded_key(0), 3)
    plan = make_norm_plan(trace(loss, params, x[0], keys[0]))
    ruled, _ = norms_and_sum(
        plan, params, x, keys, jnp.ones(3, bool), clipping=Flat(), clip_norm=1.0
    )
    each = jax.vmap(lambda r: jnp.sum(jax.grad(loss)(params, r, None) ** 2))(x)
    np.testing.assert_allclose(ruled, each, rtol=2e-3, atol=1e-9)


def test_maps_are_classified_as_what_they_are():
    def kinds(function, shape=(4, 4)):
        program = trace(
            lambda w, x, k: jnp.sum(jnp.tanh(x @ function(w))),
            jnp.ones(shape),
            jnp.ones(4),
            seeded_key(0),
        )
        return [path.map for paths in make_norm_plan(program).paths for path in paths]

    assert kinds(lambda w: -w.T + 1.0) == [Map.MOVED]
    assert kinds(lambda w: jax.nn.softplus(w) * 2) == [Map.ELEMENTWISE]
    assert kinds(lambda w: -jnp.abs(w.T)) == [Map.SIGNED]
    assert kinds(lambda w: jnp.abs(jnp.exp(w))) == [Map.ELEMENTWISE]
    assert kinds(lambda w: w * w.T) == [Map.GENERAL]
    assert kinds(lambda w: w @ w) == [Map.GENERAL]
    assert kinds(lambda w: jnp.broadcast_to(w, (4, 4)), (4, 1)) == [Map.GENERAL]
    assert kinds(lambda w: w * jnp.ones((4, 4)), ()) == [Map.GENERAL]
    assert kinds(lambda w: jnp.cumsum(w, 0)) == [Map.GENERAL]


@pytest.mark.parametrize("spread", [1.0, 1e2, 1e4])
def test_the_gram_form_never_under_estimates_even_when_positions_cancel(spread):
    random = np.random.default_rng(1)
    a = random.normal(size=(50, 1, 40, 6)) * spread
    d = random.normal(size=(50, 1, 40, 5))
    # Positions come in pairs that nearly cancel: the norm is tiny beside its terms.
    a[:, :, 1::2] = a[:, :, ::2] * (1 + 1e-5 * random.normal(size=(50, 1, 20, 1)))
    d[:, :, 1::2] = -d[:, :, ::2]
    a, d = a.astype(np.float32), d.astype(np.float32)
    part = Dense(
        inputs=jnp.asarray(a),
        cotangents=jnp.asarray(d),
        layout=Layout((), (0,), (1,)),
        is_stacked=False,
    )
    exact = np.sum(np.einsum("bgtk,bgtm->bgkm", a.astype(float), d.astype(float)) ** 2, (1, 2, 3))
    assert (np.asarray(part.squared_norm(None), float) >= exact * (1 - 1e-6)).all()


@pytest.mark.parametrize("spread", [1.0, 1e2, 1e4])
def test_a_weight_and_its_absolute_value_are_not_under_estimated_when_they_cancel(spread):
    random = np.random.default_rng(3)
    w = np.abs(random.normal(size=(6, 5))).astype(np.float32)  # so that |w| = w
    a = (spread * random.normal(size=(50, 1, 1, 6))).astype(np.float32)
    d = random.normal(size=(50, 1, 1, 5)).astype(np.float32)
    near = (a * (1 + 1e-5 * random.normal(size=(50, 1, 1, 1)))).astype(np.float32)
    parts = [
        Dense(
            inputs=jnp.asarray(inputs),
            cotangents=jnp.asarray(cotangents),
            layout=Layout((), (0,), (1,)),
            is_stacked=False,
        )
        for inputs, cotangents in ((a, d), (near, -d))
    ]
    found = joint_squared_norm(
        [Read(parts[0], jnp.ones(()), True), Read(parts[1], jnp.sign(w), True)]
    )
    gap = (a.astype(float) - near.astype(float))[:, 0, 0]
    exact = np.sum(np.einsum("bk,bm->bkm", gap, d[:, 0, 0].astype(float)) ** 2, (1, 2))
    assert (np.asarray(found, float) >= exact * (1 - 1e-6)).all()


@pytest.mark.parametrize("name", ["interval bounds", "two shared draws", "against an attack"])
def test_robust_losses_and_several_draws_form_no_matrix(name):
    case = find(name)
    record = jax.tree.map(lambda leaf: leaf[0], case.records)
    report = explain_clipping(case.loss, case.params, record)
    # The radius of the input is a constant here, so that the first layer's bound has no record.
    skipped = "a" if name == "interval bounds" else None
    assert all(
        path.num_formed == 0
        for path in report.parameters
        if len(path.shape) == 2 and path.name != skipped
    )


def test_look_ups_that_cancel_are_not_under_estimated():
    random = np.random.default_rng(2)
    d = random.normal(size=(50, 12, 4))
    d[:, 1::2] = -d[:, ::2] * (1 + 1e-6)
    d = d.astype(np.float32)
    rows = np.zeros((50, 12), np.int32)
    part = Lookup(rows=jnp.asarray(rows), cotangents=jnp.asarray(d))
    exact = np.sum(d.astype(float).sum(1) ** 2, -1)
    assert (np.asarray(part.squared_norm(None), float) >= exact).all()


@pytest.mark.parametrize(("tiny", "huge"), [(1e-20, 1e17), (1e-30, 1e18), (1e-25, 1e10)])
def test_norms_survive_when_one_side_is_tiny_and_the_other_huge(tiny, huge):
    part = Dense(
        inputs=jnp.full((1, 1, 1, 4), tiny, jnp.float32),
        cotangents=jnp.full((1, 1, 1, 9), huge, jnp.float32),
        layout=Layout((), (0,), (1,)),
        is_stacked=False,
    )
    (squared,) = part.squared_norm(None)
    assert float(jnp.sqrt(squared)) == pytest.approx(6 * tiny * huge, rel=1e-5)


def test_a_record_with_a_number_beyond_two_to_the_60_is_dropped():
    part = Dense(
        inputs=jnp.full((2, 1, 1, 4), 1e-30, jnp.float32),
        cotangents=jnp.asarray([[[[2.0**60]]], [[[2.0**61]]]], jnp.float32),
        layout=Layout((), (0,), (1,)),
        is_stacked=False,
    )
    assert np.isfinite(np.asarray(part.squared_norm(None))).tolist() == [True, False]


APART = jnp.array([4e9, 3.6e-10], jnp.float32)
OPPOSED = {
    "weighted": (
        lambda w, r, k: jnp.sum((r[0] @ jnp.exp(w)) * r[1]),
        jnp.full((300, 200), -43.8),
        (jnp.full((1, 300), 4e9), jnp.full((1, 200), 4e9)),
    ),
    "stacked by scan": (
        lambda w, r, k: lax.scan(
            lambda c, s: (c + jnp.sum((s[1] @ s[0]) * s[2]), None), 0.0, (w, r[0], r[1])
        )[0],
        jnp.ones((2, 200, 200)),
        (
            jnp.broadcast_to(APART[None, :, None], (1, 2, 200)),
            jnp.broadcast_to(APART[::-1][None, :, None], (1, 2, 200)),
        ),
    ),
    "Gram form": (
        lambda w, r, k: jnp.sum((r[0] @ w) * r[1]),
        jnp.ones((200, 200)),
        (
            jnp.broadcast_to(APART[None, :, None], (1, 2, 200)),
            jnp.broadcast_to(APART[::-1][None, :, None], (1, 2, 200)),
        ),
    ),
}


@pytest.mark.parametrize("name", OPPOSED)
def test_operands_of_opposite_sizes_do_not_slip_through_by_underflow(name):
    loss, params, records = OPPOSED[name]
    fast, _ = both(Case(loss, params, records), clip_norm=1.0)
    assert float(jnp.linalg.norm(fast)) <= 1 + 1e-5


def test_weakly_typed_parameters_take_the_fast_way_too():
    report = explain_clipping(
        lambda w, x, k: jnp.sum(jnp.tanh(x @ w)), jnp.full((70, 80), -2.0), normal(70)
    )
    assert report.parameters[0].num_formed == 0


def test_a_wrong_rule_is_found_out_before_it_is_used(monkeypatch):
    def loss(w, x, key):
        return jnp.sum(jnp.tanh(x @ w) ** 3)

    plan = make_norm_plan(trace(loss, normal(3, 2), normal(3), seeded_key(0)))
    assert is_verified(plan)
    _verdicts.clear()
    right = Dense.squared_norm
    monkeypatch.setattr(Dense, "squared_norm", lambda self, weight: 0.9 * right(self, weight))
    assert not is_verified(plan)
    assert "could not be verified" in find_norm_plan(loss, normal(3, 2), normal(3), seeded_key(0))
    _verdicts.clear()


@pytest.mark.parametrize("generator_name", ["threefry2x32", "rbg"])
def test_keys_of_other_generators_serve_as_well(generator_name):
    keys = jax.random.split(jax.random.key(0, impl=generator_name), B)
    found = find_norm_plan(dropout, MLP, jax.tree.map(lambda leaf: leaf[0], LABELLED), keys[0])
    assert not isinstance(found, str)


def test_explain_says_which_way_each_parameter_takes():
    def loss(w, x, key):
        return jnp.sum(jnp.tanh(x @ w["rho"])) + jnp.sum(jnp.sin(x @ (w["tied"] @ w["tied"])))

    params = {"rho": normal(80, 90), "tied": normal(80, 80), "unused": normal(2)}
    report = explain_clipping(loss, params, normal(80))
    text = str(report)
    assert "norms multiply at dot_general" in text
    assert "not used by the loss" in text
    assert "tied: it is transformed before use" in text
    assert {path.name: path.num_formed for path in report.parameters}["rho"] == 0
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    assert "All per-record gradients are formed" in str(explain_clipping(loss, half, normal(80)))


def test_no_per_record_gradient_of_a_dense_layer_is_ever_formed():
    params = {"a": normal(200, 300), "b": normal(300, 10)}
    program = jax.make_jaxpr(
        lambda w, r, k: clipped_gradient_sum(
            lambda w, x, k: jnp.sum(jnp.tanh(jnp.tanh(x @ w["a"]) @ w["b"])),
            w,
            r,
            k,
            jnp.ones(16, bool),
            clipping=Flat(),
            clip_norm=1.0,
        )
    )(params, normal(16, 200), jax.random.split(seeded_key(0), 16))
    largest = max(
        variable.aval.size for equation in program.jaxpr.eqns for variable in equation.outvars
    )
    assert largest <= 200 * 300


def test_our_own_network_needs_no_per_record_gradient_of_its_dense_layers():
    network = zhang_mnist_cnn()
    params = network.init(seeded_key(0))
    report = explain_clipping(
        lambda w, r, k: cross_entropy(network.apply(w, r[0], k), r[1]),
        params,
        (normal(28, 28, 1), whole(10)),
    )
    ways = {path.name: path.how for path in report.parameters}
    assert "norms multiply" in ways["dense_0/kernel"]
    assert "formed at dot_general" in ways["conv_1/kernel"]  # of patches


def test_a_loss_that_overflows_at_large_parameters_is_verified_at_smaller_ones():
    def loss(params, x, key):
        hidden = jnp.exp(x @ params["first"]) @ params["second"]
        return jnp.sum(jnp.exp(hidden))

    params = {"first": jnp.ones((400, 50)), "second": jnp.ones((50, 3))}
    assert isinstance(find_norm_plan(loss, params, jnp.ones(400), seeded_key(0)), NormPlan)
