"""What the README shows, runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import forsaken
from forsaken.bench.networks import mlp
from forsaken.cli.demo import summary_of
from forsaken.result import Result

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


def test_python_examples_run(problem, tmp_path, monkeypatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 3
    x, y = problem.forget
    names = {
        "model": problem.model,
        "x": x,
        "y": y,
        "x_n": problem.reference,
        "x_0": problem.retain[0],
        "y_0": problem.retain[1],
        "shadow_model": problem.model,
        "x_in": problem.kept[0],
        "x_out": problem.test[0],
        "training": forsaken.Training(lambda: mlp((20, 64, 32, 4)), forsaken.Recipe(10, 32, 3e-3)),
        "x_train": torch.cat([problem.kept[0], x]),
        "y_train": torch.cat([problem.kept[1], y]),
        "people": range(len(problem.kept[0]) + len(x)),
    }
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["result"].stopped != "not-memorised"
    assert (tmp_path / "mask.safetensors").exists()


def test_the_guide_s_examples_run(tmp_path, monkeypatch) -> None:
    (tmp_path / "reviews.csv").write_text("text,label\nfine,good\npoor,bad\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for page in ("scenarios", "datasets"):
        text = (ROOT / "docs" / "guide" / f"{page}.md").read_text(encoding="utf-8")
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(compile(block, page, "exec"), names)
    assert names["result"].mask.density > 0
    assert names["mine"].names == ("bad", "good")


def test_links_lead_somewhere() -> None:
    pages = [
        README,
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "benchmarks").rglob("*.md")),
    ]
    pages += sorted((ROOT / "examples").rglob("*.md"))
    for page in pages:
        prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_the_demonstration_s_table_is_that_of_its_saved_result() -> None:
    # To renew: make demo; runs/demo/result.json becomes demo.json, and summary.txt the block in the README.
    saved = summary_of(Result.read(ROOT / "benchmarks" / "results" / "demo.json"))
    block = README.read_text(encoding="utf-8").split("prints (the numbers come from")[1].split("    report:")[0]
    assert [line.strip() for line in block.split("\n\n", 1)[1].splitlines()] == [
        line.strip() for line in saved.splitlines()
    ]


def test_counts_and_sizes_are_those_of_their_files() -> None:
    page = (ROOT / "docs" / "numbers.md").read_text(encoding="utf-8")
    fuzz, faults = (
        json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_bytes()) for name in ("fuzz", "file-faults")
    )
    told = [fuzz["all"][key] for key in ("files", "refused", "accepted")] + [faults["operations"], faults["faults"]]
    assert not [number for number in told if f"{number:,}" not in page]
    assert f"{len(fuzz['kinds'])} kinds" in page
    assert fuzz["all"]["failures"] == 0
    memory = json.loads((ROOT / "benchmarks" / "results" / "memory.json").read_bytes())
    assert f"{memory['peak_bytes'] / 1e9:.1f} GB at most" in page
    assert f"{memory['seconds']:.0f} s on one thread" in page


@pytest.mark.parametrize("target", ["demo", "test"])
def test_make_knows_the_two_commands(target: str) -> None:
    assert f"\n{target}: " in (ROOT / "Makefile").read_text(encoding="utf-8")
