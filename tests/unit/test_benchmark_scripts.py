"""Every script of benchmarks/ can be imported, so that a renamed module does not break one unseen."""

from __future__ import annotations

import benchmark_scripts
import pytest


@pytest.mark.parametrize("name", sorted(path.stem for path in (benchmark_scripts.ROOT / "benchmarks").glob("*.py")))
def test_every_script_of_the_benchmarks_can_be_imported(name: str) -> None:
    with benchmark_scripts.script(name) as found:
        assert found.__doc__
