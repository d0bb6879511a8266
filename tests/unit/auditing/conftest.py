"""The small task, trained once for all tests of the audit."""

from __future__ import annotations

import pytest
from small_case import Small, small


@pytest.fixture(scope="session")
def trained() -> Small:
    return small()
