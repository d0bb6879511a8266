"""The guide's tables of the audit are those of the committed result files."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
from benchmark_scripts import ROOT, script

from forsaken import Audit


@pytest.fixture(scope="module")
def tables() -> Iterator[ModuleType]:
    with script("audit_tables") as found:
        yield found


def test_the_guide_shows_the_tables_of_the_files(tables: ModuleType) -> None:
    guide = (ROOT / "benchmarks/notes/audit.md").read_text()
    assert tables.oracle_table() in guide
    for name in tables.AUDITS:
        assert tables.audit_table(name) in guide


def test_committed_audits_can_be_read(tables: ModuleType) -> None:
    for name in tables.AUDITS.values():
        saved = tables.json.loads((tables.RESULTS / f"audit-{name}.json").read_bytes())
        assert Audit.model_validate_json(tables.json.dumps(saved["audit"]))["u_lira_auc"].before > 0.8
