"""Planting bugs: a function of the real source with one piece of its text replaced."""

import inspect
import sys
import textwrap


def plant(monkeypatch, owner, name, old, new):
    """Replaces ``old`` by ``new`` in a function; fails when the text is no longer there."""
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{old!r} is not in {name} exactly once"
    namespace = dict(vars(sys.modules[function.__module__]))
    exec(compile(source.replace(old, new), f"<mutated {name}>", "exec"), namespace)
    monkeypatch.setattr(owner, name, namespace[name])
