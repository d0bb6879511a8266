"""The documentation site builds, every link of it leads somewhere, and it asks no other server for anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="the extra docs is not installed")
pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")

ROOT = Path(__file__).parents[2]


def build(goal: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(goal)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def test_it_builds_strictly_and_stands_alone(tmp_path: Path) -> None:
    done = build(tmp_path / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "site"
    first = (site / "index.html").read_text(encoding="utf-8")
    for name in ("concepts", "numbers", "guide/jobs", "guide/requests", "api/unlearn"):
        assert f'href="{name}.html"' in first, name
    assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?://(?!forsaken\.example)', first)
    assert "penalty_share" in (site / "api/unlearn.html").read_text(encoding="utf-8")
    assert (site / "repository/examples/pictures/forsaken.toml").is_file()  # linked from a page of the site
