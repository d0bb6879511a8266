"""The page, from saved results alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from forsaken.errors import OutputError
from forsaken.report.demo import write_report


def test_a_folder_without_a_result_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="run the demonstration again"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_arrays_with_code_are_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self):
            return Path.write_text, (tmp_path / "pwned", "x")

    (tmp_path / "result.json").write_text(json.dumps({"history": []}))
    np.savez(tmp_path / "posteriors.npz", before_forget=np.array([Evil()], dtype=object))
    (tmp_path / "pwned").unlink(missing_ok=True)
    with pytest.raises(OutputError):
        write_report(tmp_path)
    assert not (tmp_path / "pwned").exists()
    assert not (tmp_path / "report.html").exists()


def test_the_same_figure_gives_the_same_text() -> None:
    from forsaken.report.figures import confidence_figure, svg

    values = {"a": np.linspace(0, 1, 9), "b": np.linspace(0, 1, 9), "c": np.linspace(0, 1, 9)}
    first, again = (svg(confidence_figure(values), "title") for _ in range(2))
    assert first == again
