"""What the package may be installed with: no version with a known hole, and a look-up that says when it was skipped."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
# The first version without a hole that is known in the ones before: opening a file, or a lock, could do harm.
MENDED = {
    "cryptography": "46.0.5",
    "filelock": "3.20.3",
    "jinja2": "3.1.6",
    "pillow": "12.1.1",
    "pyarrow": "23.0.1",
    "requests": "2.32.4",
    "scikit-learn": "1.5.0",
    "skops": "0.13.0",
    "torch": "2.10.0",
}


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit_dependencies", ROOT / ".ci" / "audit_dependencies.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", MENDED)
def test_no_version_with_a_known_hole_is_admitted(name: str) -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    bounds = [Requirement(text).specifier for text in listed if Requirement(text).name == name]
    least = [spec.version for spec in bounds[0] if spec.operator == ">="]
    assert len(least) == 1
    assert Requirement(f"{name}>={MENDED[name]}").specifier.contains(least[0])


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        ("", 0, "skipped"),
        (json.dumps({"dependencies": [{"name": "a", "skip_reason": "not found"}]}), 0, "skipped"),
        (json.dumps({"dependencies": [{"name": "a", "version": "1", "vulns": []}]}), 0, "1 of 1 packages looked up"),
        (
            json.dumps(
                {"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}]}
            ),
            1,
            "a 1: CVE-1, mended in 2",
        ),
    ],
    ids=["no answer", "a mirror that knows nothing", "no hole", "a hole"],
)
def test_the_look_up_says_what_it_found_or_that_it_was_skipped(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    code: int,
    words: str,
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=answer))
    assert script.main() == code
    assert words in capsys.readouterr().out


def test_the_check_runs_the_look_up() -> None:
    assert "\t$(BIN)/python .ci/audit_dependencies.py\n" in (ROOT / "Makefile").read_text()
