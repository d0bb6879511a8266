"""The guide's tables of the audit are those of the committed result files."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from forsaken import Audit

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tables() -> Iterator[ModuleType]:
    names = ("common", "baselines", "tables", "audit_tables")
    known = {name: sys.modules.pop(name, None) for name in names}
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield importlib.import_module("audit_tables")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
        for name, module in known.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


def test_the_guide_shows_the_tables_of_the_files(tables: ModuleType) -> None:
    guide = (ROOT / "docs/guide/audit.md").read_text()
    assert tables.oracle_table() in guide
    for name in tables.AUDITS:
        assert tables.audit_table(name) in guide


def test_committed_audits_can_be_read(tables: ModuleType) -> None:
    for name in tables.AUDITS.values():
        saved = tables.json.loads((tables.RESULTS / f"audit-{name}.json").read_bytes())
        assert Audit.from_dict(saved["audit"])["u_lira_auc"].before > 0.8
