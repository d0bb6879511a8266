"""The examples with other libraries, each run as a process of its own; skipped where its extra is not installed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "integrations"
NEEDS = {"trainer": "accelerate", "lightning": "lightning", "skorch": "skorch", "mlflow": "mlflow"}


def said(name: str, folder: Path) -> str:
    if importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"the extra forsaken[{name}] is not installed ({NEEDS[name]} is missing)")
    script = FOLDER / f"with_{name}.py"
    ended = subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert not list(folder.iterdir()), "an example leaves files behind"
    return ended.stdout


@pytest.mark.parametrize("name", ["trainer", "lightning", "skorch"])
def test_a_training_of_another_library(name: str, tmp_path: Path) -> None:
    before, after = (int(each) for each in re.findall(r"given for (\d+) of", said(name, tmp_path)))
    assert before >= 7
    assert after <= before - 4


def test_versions_that_saw_a_record(tmp_path: Path) -> None:
    assert said("mlflow", tmp_path).splitlines()[-2:] == [
        "version 1 saw 20 of 20 records",
        "version 2 saw 0 of 20 records",
    ]


def test_every_example_is_run() -> None:
    assert {path.stem.removeprefix("with_") for path in FOLDER.glob("*.py")} == set(NEEDS)
