"""A small part of the mutated files that `python tests/mutated_files.py` reads by the hundred thousand."""

from __future__ import annotations

import mutated_files
import pytest


def test_damaged_files_are_read_or_refused_in_words() -> None:
    failures = {}
    for name, kind in mutated_files.kinds().items():
        found = mutated_files.read_all(name, range(10 if kind.weight >= 0.5 else 2), seed=1)
        assert found.accepted + found.refused + sum(found.failures.values()) in (10, 2)
        if found.failures:
            failures[name] = found.examples
    assert failures == {}


def test_whole_files_are_accepted(tmp_path: mutated_files.Path) -> None:
    for name, kind in mutated_files.kinds().items():
        path = tmp_path / name / kind.name
        path.parent.mkdir(parents=True)
        for beside, content in kind.beside.items():
            (path.parent / beside).write_bytes(content)
        path.write_bytes(kind.content)
        assert (name, mutated_files.outcome(kind.read, path)) == (name, "accepted")


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("raise KeyError", "KeyError()"),
        ("__import__('os').abort()", "crash, exit code -6"),
        ("while True: pass", "no answer in 1 s"),
        ("x = bytearray(2**31)", "MemoryError()"),
    ],
)
def test_a_reader_that_fails_is_found(act: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_: object) -> None:
        exec(act)

    monkeypatch.setattr(mutated_files, "SECONDS", 1)
    monkeypatch.setitem(mutated_files.kinds(), "bad", mutated_files.Kind(b"{}", "a.json", read))
    found = mutated_files.read_all("bad", range(2))
    assert found.accepted == found.refused == 0
    assert [name.split(" at ")[0] for name in found.failures] == [words]
    assert sum(found.failures.values()) == 2
