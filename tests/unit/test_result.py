"""The typed result: what is built is what is written and what is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError
from report_runs import make_result

from forsaken.errors import OutputError
from forsaken.result import Result, Step


def built() -> Result:
    table = make_result()
    history = [Step(**step) for step in table.pop("history")]
    return Result(**{name: part for name, part in table.items() if name not in ("schema", "kind")}, history=history)


def test_built_written_and_read_it_is_the_same(tmp_path: Path) -> None:
    result = built()
    path = result.write(tmp_path / "result.json")
    assert Result.read(path) == result
    assert json.loads(path.read_bytes()) == make_result() == result.to_dict()


def test_builders_are_checked_as_files_are() -> None:
    with pytest.raises(ValidationError, match="samples holds 12 entries"):
        Result(**built().model_dump() | {"counts": built().counts.model_copy(update={"forget": 13}), "history": []})
    with pytest.raises(ValidationError, match="finite number"):
        Result(**built().model_dump() | {"fr": float("nan"), "history": []})


def test_a_number_that_json_does_not_know_is_not_written(tmp_path: Path) -> None:
    result = built().model_copy(update={"facts": {"loss": float("nan")}})
    with pytest.raises(ValueError, match="Out of range"):
        result.write(tmp_path / "result.json")
    assert list(tmp_path.iterdir()) == []


def test_keys_of_a_newer_version_are_left_out(tmp_path: Path) -> None:
    table = make_result() | {"later": 1}
    table["counts"]["later"] = 2
    (tmp_path / "result.json").write_text(json.dumps(table), encoding="utf-8")
    assert Result.read(tmp_path / "result.json") == built()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"cannot read .*result\.json: No such file") as caught:
        Result.read(tmp_path / "result.json")
    assert caught.value.remedy == "check the path"


def test_a_table_too_deep_is_refused(tmp_path: Path) -> None:
    deep: dict[str, object] = {}
    for _ in range(30):
        deep = {"deeper": deep}
    (tmp_path / "result.json").write_text(json.dumps(make_result() | {"facts": deep}), encoding="utf-8")
    with pytest.raises(OutputError, match=r"facts: .*more than 20 deep"):
        Result.read(tmp_path / "result.json")
