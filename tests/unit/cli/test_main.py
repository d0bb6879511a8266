"""The command line as a whole: every verb helps, answers in JSON, and fails in words with the right exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from job_folders import forsaken, run, write_job, write_world

import forsaken as package
from forsaken.cli.exits import MEANINGS, Exit
from forsaken.cli.main import app
from forsaken.errors import ForsakenError


def verbs(group: Any = None, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that lead to it."""
    command = typer.main.get_command(app) if group is None else group
    for name, each in command.commands.items():
        if hasattr(each, "commands"):
            yield from verbs(each, (*before, name))
        else:
            yield (*before, name), each


VERBS = dict(verbs())


def plain(text: str) -> str:
    """Text without frames and line ends."""
    return " ".join(re.sub(r"[│╭╮╰╯─┃━┏┓┗┛]", " ", text).split())


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_world(tmp_path_factory.mktemp("main") / "job")
    run(write_job(folder, output={"mask": True}))
    return folder


def test_the_verbs_of_a_job_are_there() -> None:
    wanted = {("init",), ("unlearn",), ("verify",), ("report",), ("env",), ("demo",), ("suspects",)}
    wanted |= {("mask", verb) for verb in ("show", "apply", "revert")}
    assert wanted <= set(VERBS)


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_every_verb_has_help_with_an_example_that_names_it(words: tuple[str, ...]) -> None:
    ended = forsaken(*words, "--help")
    assert ended.code == 0
    assert f"Example: forsaken {' '.join(words)}" in plain(ended.out)


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_tables_of_a_job_file_are_seen_in_the_help(words: tuple[str, ...]) -> None:
    """Names in square brackets are taken for markup, and vanish, unless they are escaped."""
    verb = VERBS[words]
    texts = [verb.help or "", *(getattr(each, "help", None) or "" for each in verb.params)]
    written, seen = " ".join(texts), plain(forsaken(*words, "--help").out)
    assert all(table in seen for table in re.findall(r"\[[a-z]+\]", written))


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_the_options_of_every_example_exist(words: tuple[str, ...]) -> None:
    example = (VERBS[words].help or "").split("Example:", 1)[1]
    known = {option for each in VERBS[words].params for option in each.opts}
    assert set(re.findall(r"--[a-z-]+", example)) <= known


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_every_verb_can_answer_in_json(words: tuple[str, ...]) -> None:
    assert "--json" in {option for each in VERBS[words].params for option in each.opts}


def test_every_group_helps() -> None:
    assert "forsaken[federated]" in plain(forsaken("federated", "--help").out)
    for words in ((), ("mask",), ("keys",), ("datasets",), ("scenarios",)):
        ended = forsaken(*words, "--help")
        assert ended.code == 0
        assert "Usage" in ended.out
    shown = plain(forsaken("--help").out)
    assert all(f"{code:d} {meaning}" in shown for code, meaning in MEANINGS.items())


def test_without_words_it_helps() -> None:
    assert "Usage" in (ended := forsaken()).out + ended.err


def test_the_version() -> None:
    assert forsaken("--version").out.strip() == package.__version__


def failing(folder: Path) -> dict[str, list[object]]:
    job, out = folder / "forsaken.toml", folder / "forgotten"
    none = folder / "none"
    return {
        "init": [job],
        "unlearn": [none],
        "suspects": [none],
        "verify": [none, "--weights", none, "--any-signer"],
        "report": [none],
        "mask show": [none],
        "mask apply": [none, job, "--out", folder / "x.safetensors"],
        "mask revert": [out / "mask.safetensors", none, "--out", folder / "x.safetensors"],
        "datasets get": ["none"],
        "scenarios show": ["none"],
    }


@pytest.mark.parametrize("words", failing(Path()))
def test_every_error_is_one_json_document(done: Path, words: str) -> None:
    given = failing(done)[words]
    told = forsaken(*words.split(), *given, "--json")
    assert told.code == 2, told.err
    assert set(told.json) == {"error", "kind"}
    assert told.json["kind"].endswith("Error")
    assert told.json["error"] in plain(told.err) or plain(told.json["error"]) in plain(told.err)
    people = forsaken(*words.split(), *given)
    assert (people.code, people.out) == (2, "")
    assert people.err.startswith("error: ")
    assert "Traceback" not in people.err


def test_every_answer_is_one_json_document(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = done / "forgotten"
    answers: dict[str, list[object]] = {
        "init": [],
        "unlearn": [done / "forsaken.toml", "--dry-run"],
        "verify": [out / "certificate.json", "--weights", out / "model.safetensors", "--any-signer"],
        "report": [out],
        "mask show": [out / "mask.safetensors"],
        "mask apply": [out / "mask.safetensors", done / "forsaken.toml", "--out", tmp_path / "new.safetensors"],
        "env": [],
        "datasets list": [],
        "scenarios list": [],
    }
    for words, given in answers.items():
        told = forsaken(*words.split(), *given, "--json")
        expected = Exit.NOT_SHOWN if words == "verify" else Exit.DONE  # the run has nothing to compare with
        assert told.code == expected, (words, told.err)
        assert isinstance(told.json, dict | list), words


def test_a_wrong_word_is_a_usage_error() -> None:
    for words in (["nonsense"], ["unlearn", "--nonsense"], ["mask", "apply"], ["verify"]):
        ended = forsaken(*words)
        assert ended.code == 2
        assert ended.out == ""
        assert "Usage" in ended.err
        assert "Traceback" not in ended.err


def test_a_usage_error_with_json_is_json_too() -> None:
    ended = forsaken("mask", "apply", "--json")
    assert ended.code == 2
    assert set(json.loads(ended.out)) == {"error", "kind"}


def test_a_mistake_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch, done: Path) -> None:
    """Only errors that were foreseen become words."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr("forsaken.jobs.configuration.read_job", fail)
    with pytest.raises(AssertionError, match="a bug"):
        forsaken("unlearn", done / "forsaken.toml")


def test_errors_with_markup_and_many_lines_are_shown_whole(done: Path) -> None:
    (done / "odd.toml").write_text("[model]\nweights = 5\n[odd]\nx = 1\n")
    ended = forsaken("unlearn", done / "odd.toml")
    assert ended.code == 2
    assert "[odd] is unknown" in ended.err
    assert "line 2" in ended.err


def test_env_names_no_person_and_no_place() -> None:
    told = forsaken("env", "--json")
    assert told.code == 0
    assert {"torch", "numpy", "forsaken", "skops"} <= set(told.json["versions"])
    text = told.out
    for secret in (str(Path.home()), os.uname().nodename, str(Path.cwd())):
        assert secret not in text or secret in ("", "/")
    assert "time" not in told.json
    people = forsaken("env")
    assert told.json["versions"]["torch"] in people.out


def process(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = "from forsaken.cli.main import main; main()"
    settings = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"} | environment
    return subprocess.run(
        [sys.executable, "-c", code, *words], env=settings, capture_output=True, text=True, timeout=60, check=False
    )


def test_completion() -> None:
    shown = process("--show-completion", "bash")
    assert shown.returncode == 0, shown.stderr
    assert "complete" in shown.stdout


def test_it_starts_at_once() -> None:
    """Help must not wait for torch."""
    code = (
        "import sys\nfrom forsaken.cli import main\nsys.argv = ['forsaken', 'unlearn', '--help']\n"
        "try:\n    main.main()\nexcept SystemExit:\n    pass\n"
        "print('torch' in sys.modules, 'transformers' in sys.modules, 'sklearn' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip().splitlines()[-1] == "False False False"


def test_output_into_a_closed_pipe_is_no_traceback() -> None:
    code = "from forsaken.cli.main import main; main()"
    command = f'"{sys.executable}" -c "{code}" scenarios list | head -c 1 > /dev/null'
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in ended.stderr


def test_a_terminal_without_unicode() -> None:
    ended = process("scenarios", "list", PYTHONIOENCODING="ascii", LC_ALL="C")
    assert ended.returncode == 0, ended.stderr
    assert "digits" in ended.stdout


def test_errors_have_names_that_scripts_can_rely_on() -> None:
    assert ForsakenError.__name__ == "ForsakenError"
    assert all(each.__name__.endswith("Error") for each in ForsakenError.__subclasses__())
