"""Every result says which code made it."""

from __future__ import annotations

from pathlib import Path

import benchmark_scripts
import pytest

from forsaken.provenance import provenance, source_hash


def test_the_hash_of_the_source_changes_with_a_file_its_name_and_nothing_else(tmp_path: Path) -> None:
    def made(name: str, files: dict[str, str]) -> str:
        folder = tmp_path / name
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return source_hash(folder)

    plain = made("a", {"one.py": "1", "room/two.py": "2"})
    assert made("b", {"room/two.py": "2", "one.py": "1", "notes.md": "no code"}) == plain
    assert made("c", {"one.py": "1", "room/two.py": "3"}) != plain
    assert made("d", {"one.py": "1", "hall/two.py": "2"}) != plain
    assert made("e", {"one.py": "12", "room/two.py": ""}) != plain


def test_a_result_carries_the_hash_of_the_library() -> None:
    assert len(provenance()["source_sha256"]) == 64


def test_a_benchmark_carries_the_commit_too_and_does_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    with benchmark_scripts.script("common") as common:
        found = common.origin()
        assert {"source_sha256", "scripts_sha256", "processor", "cores", "versions"} <= set(found)
        assert found["commit"] is None or len(found["commit"].rstrip("+")) == 40
        monkeypatch.setenv("PATH", "")
        common.commit_of.cache_clear()
        assert common.origin()["commit"] is None
        common.commit_of.cache_clear()
