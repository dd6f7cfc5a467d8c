"""The help is for people: every verb says what it does, shows an example, and explains itself."""

import itertools
import re
import shlex
import sys

import pytest
from typer.testing import CliRunner

from tacit import cli

VERBS = sorted(set(cli._VERBS) - {"ledger"})  # whose help lists verbs of its own


def tacit(*arguments):
    return CliRunner().invoke(cli.app, arguments, catch_exceptions=False, env={"COLUMNS": "80"})


def examples(verb):
    """The commands in a verb's help, each one paragraph that begins with ``tacit``."""
    text = re.sub(r"[╭│].*", "", tacit(verb, "--help").stdout)
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    return [shlex.split(part) for part in paragraphs if part.startswith("tacit ")]


def test_the_first_help_names_every_verb_and_where_to_start():
    out = tacit("--help").stdout
    assert "Start with tacit demo" in " ".join(out.split())
    assert all(verb in out for verb in VERBS)


def test_without_a_verb_the_help_is_shown():
    result = tacit()
    assert "Usage:" in result.output
    assert "demo" in result.output


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_an_example_with_options_that_exist(verb):
    found = examples(verb)
    assert found
    options = {
        option
        for parameter in cli._loaded(verb).params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    for words in found:
        assert words[:2] == ["tacit", verb]
        own = itertools.takewhile(lambda word: word != "--", words)  # then comes another verb
        assert {word for word in own if word.startswith("--")} <= options


@pytest.mark.parametrize("verb", ["epsilon", "calibrate"])
def test_the_examples_of_quick_verbs_work(verb):
    for words in examples(verb):
        result = tacit(*words[1:])
        assert result.exit_code == 0
        assert "adjacency zero-out" in result.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_explained(verb):
    command = cli._loaded(verb)
    assert all(parameter.help for parameter in command.params)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["epsilon"], "Missing option '--noise-multiplier'"),
        (["epsilon", "--noise-multiplier", "1"], "Missing option '--steps'"),
        (["calibrate", "--epsilon", "1"], "Missing option '--delta'"),
        (["demo", "--epsilon", "one"], "Invalid value for '--epsilon'"),
        (["demonstrate"], "No such command 'demonstrate'"),
    ],
)
def test_a_mistyped_command_names_what_is_wrong_and_where_help_is(
    monkeypatch, capsys, arguments, message
):
    monkeypatch.setattr(sys, "argv", ["tacit", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert "--help" in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sampling", "full", "--rate", "0.1"], "leave out --rate"),
        (["--sampling", "fixed", "--rate", "0.1"], "leave out --rate"),
        (["--rate", "0.1", "--batch", "10", "--records", "1000"], "not both"),
    ],
)
def test_options_that_contradict_each_other_are_not_silently_ignored(
    monkeypatch, capsys, options, message
):
    run = ["--noise-multiplier", "1", "--steps", "1", "--delta", "1e-5"]
    monkeypatch.setattr(sys, "argv", ["tacit", "epsilon", *run, *options])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
