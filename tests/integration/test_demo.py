"""The demonstration, as a newcomer runs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

KEYS = {
    "fr", "cfr", "accuracy_before", "accuracy_after", "seconds", "retrain", "mask_density", "schema", "provenance",
}  # fmt: skip


def forsaken(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forsaken.cli.main", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("demo")
    return folder, forsaken("demo", folder=folder)


def test_bars(ran) -> None:
    folder, done = ran
    assert done.returncode == 0, done.stderr
    result = json.loads((folder / "runs/demo/result.json").read_text())
    assert result.keys() >= KEYS
    assert result["fr"] >= 0.95
    assert result["cfr"] <= 0.15
    assert result["accuracy_before"] - result["accuracy_after"] <= 0.01
    assert result["retrain"]["fr"] is not None
    assert result["counts"]["forget"] == 40


def test_table_for_people(ran) -> None:
    _, done = ran
    for word in ("forgetting rate", "retrained", "test accuracy", "seconds", "share of weights changed"):
        assert word in done.stdout


def test_report_is_one_small_offline_page(ran) -> None:
    folder, _ = ran
    page = (folder / "runs/demo/report.html").read_text()
    assert len(page) < 3_000_000
    assert page.count("<svg") == 3
    # namespaces and the like are names, not requests
    fetched = re.findall(r'(?:src|href)\s*=\s*"(?!#)([^"]+)"', page)
    assert fetched == []
    assert "url(http" not in page
    assert "@import" not in page


def test_writes_only_into_its_folder(ran) -> None:
    folder, _ = ran
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert written == {f"runs/demo/{name}" for name in ("result.json", "report.html", "posteriors.npz")}


def test_json_is_the_result(tmp_path: Path) -> None:
    done = forsaken("demo", "--json", "--seed", "3", "--out", "here", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((tmp_path / "here/result.json").read_text())


def test_an_output_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    start = time.perf_counter()
    done = forsaken("demo", "--out", "file/sub", folder=tmp_path)
    assert done.returncode == 2
    assert "cannot make the folder" in done.stderr
    assert "Traceback" not in done.stderr
    assert time.perf_counter() - start < 60, "told before the work, not after it"


def test_unknown_verb_is_helped(tmp_path: Path) -> None:
    done = forsaken("dmo", folder=tmp_path)
    assert done.returncode == 2
    assert "demo" in done.stderr


def test_version(tmp_path: Path) -> None:
    import importlib.metadata

    assert forsaken("--version", folder=tmp_path).stdout.strip() == importlib.metadata.version("forsaken")
