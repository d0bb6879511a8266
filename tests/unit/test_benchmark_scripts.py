"""Every script of benchmarks/ can be imported; benchmarks/README.md names all of them, and every result file."""

from __future__ import annotations

import re
from fnmatch import fnmatch

import benchmark_scripts
import pytest

PARTS = {"common", "out_of_fold_rows"}  # what scripts import


def told() -> str:
    return (benchmark_scripts.ROOT / "benchmarks" / "README.md").read_text()


@pytest.mark.parametrize("name", sorted(path.stem for path in (benchmark_scripts.ROOT / "benchmarks").glob("*.py")))
def test_every_script_of_the_benchmarks_can_be_imported(name: str) -> None:
    with benchmark_scripts.script(name) as found:
        assert found.__doc__


def test_every_script_is_in_the_table() -> None:
    scripts = {path.stem for path in (benchmark_scripts.ROOT / "benchmarks").glob("*.py")} - PARTS
    assert scripts == set(re.findall(r"python benchmarks/(\w+)\.py", told()))


def test_every_result_is_in_the_table() -> None:
    patterns = re.findall(r"`([\w*-]+\.json)`", told())
    for path in (benchmark_scripts.ROOT / "benchmarks" / "results").glob("*.json"):
        assert any(fnmatch(path.name, pattern) for pattern in patterns), f"{path.name} is a file that no row writes"
