import jax
import jax.numpy as jnp
import numpy as np

from tacit.inference.compilation import without_repeats


def count(name, function, *arguments):
    return str(jax.make_jaxpr(function)(*arguments)).count(f" {name} ")


def test_what_is_drawn_twice_from_one_key_is_drawn_once():
    def draws(key, scale):
        first = jax.random.normal(key, (3,))
        second = jax.jit(lambda key: jax.random.normal(key, (3,)))(key)
        return {"sum": first + scale * second, "first": first}

    key = jax.random.key(0)
    shared = without_repeats(draws)
    program = str(jax.make_jaxpr(shared)(key, 2.0))
    assert program.count("random_bits[") == 1
    jax.tree.map(np.testing.assert_array_equal, shared(key, 2.0), draws(key, 2.0))


def test_repeats_of_repeats_are_found():
    def function(x):
        return jnp.sin(jnp.cos(x)) * jnp.sin(jnp.cos(x))

    assert count("sin", without_repeats(function), 1.0) == 1
    assert count("cos", without_repeats(function), 1.0) == 1


def test_equal_operations_on_different_operands_stay_two():
    def function(x, y):
        return jnp.sin(x) + jnp.sin(y) + jnp.sum(x * 2.0) + jnp.sum(x * 3.0)

    shared = without_repeats(function)
    assert count("sin", shared, 1.0, 2.0) == 2
    assert shared(1.0, 2.0) == function(1.0, 2.0)


def test_zeros_of_both_signs_stay_different():
    def function(x):
        return jnp.stack([jnp.copysign(x, 0.0), jnp.copysign(x, -0.0)])

    assert without_repeats(function)(1.0).tolist() == [1.0, -1.0]


def test_arrays_that_a_function_closes_over_are_told_apart():
    first, second = jnp.arange(3.0), jnp.arange(3.0) + 1

    def function(x):
        return x * first + x * second

    np.testing.assert_array_equal(without_repeats(function)(2.0), function(2.0))


def test_derivatives_and_maps_go_through():
    def function(x):
        return jnp.sin(x) * jnp.sin(x)

    shared = without_repeats(function)
    assert jnp.allclose(jax.grad(shared)(0.3), jax.grad(function)(0.3))
    x = jnp.arange(4.0)
    np.testing.assert_allclose(jax.vmap(shared)(x), function(x), rtol=1e-6)
