"""audit.json read from disk: a good one becomes a table, a broken one a clear error, whatever is broken."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from report_runs import make_arrays, make_audit, make_certificate, make_result, save_run

from forsaken.errors import OutputError
from forsaken.report.page import render, render_several
from forsaken.report.saved import read_run

AUDIT = make_audit()
RESULT = make_result(8)
ARRAYS = {name: part for name, part in make_arrays(RESULT).items() if name in ("before_forget", "after_forget")}


def test_an_audit_is_read_as_it_was_saved(tmp_path: Path) -> None:
    audit = make_audit()
    run = read_run(save_run(tmp_path, make_result(), audit=audit))
    assert run.audit == {name: part for name, part in audit.items() if name not in ("schema", "kind")}


def test_an_audit_belongs_to_the_certificate_beside_it(tmp_path: Path) -> None:
    certificate = make_certificate()
    ties = {"weights_sha256": "b" * 64, "certificate_sha256": hashlib.sha256(certificate.to_bytes()).hexdigest()}
    audit = make_audit()
    audit["settings"] |= ties
    run = read_run(save_run(tmp_path, make_result(), certificate=certificate, audit=audit))
    assert run.audit is not None
    for name in ties:
        for wrong in ("a" * 64, None, 3, ["b" * 64]):
            other = audit | {"settings": audit["settings"] | {name: wrong}}
            with pytest.raises(OutputError, match=f"does not belong to this run: its {name} is not .*forsaken audit"):
                read_run(save_run(tmp_path, make_result(), certificate=certificate, audit=other))
    later = make_certificate(time="2027-01-03T00:00:00+00:00")
    with pytest.raises(OutputError, match="its certificate_sha256 is not"):
        read_run(save_run(tmp_path, make_result(), certificate=later, audit=audit))


def test_a_run_without_an_audit_has_none(tmp_path: Path) -> None:
    assert read_run(save_run(tmp_path, make_result())).audit is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda a: a.update(kind="forsaken.result"),
            "is of kind 'forsaken.result' and schema 1, expected kind 'forsaken.a",
        ),
        (
            lambda a: a.update(schema=2),
            "schema 2, expected kind 'forsaken.audit' and schema 1; run forsaken audit again",
        ),
        (lambda a: a.pop("claim"), r"audit\.json is damaged: claim: Field required; run forsaken audit again"),
        (lambda a: a.update(profile="huge"), "profile: Input should be 'quick', 'standard' or 'full'"),
        (lambda a: a["numbers"][0].update(interval=[0.7, 0.6]), "lower end 0.7 lies above its upper end 0.6"),
        (lambda a: a["numbers"][0].update(interval=[0.7]), r"numbers\.0\.interval\.1: Field required"),
        (lambda a: a["numbers"][0].update(value="1"), r"numbers\.0\.value: Input should be a valid number"),
        (lambda a: a["numbers"][0].update(direction="up"), r"numbers\.0\.direction: Input should be 'lower'"),
        (lambda a: a["numbers"][0].update(n=-1), r"numbers\.0\.n: Input should be greater than or equal to 0"),
        (lambda a: a["alarms"][0].update(raised="no"), r"alarms\.0\.raised: Input should be a valid boolean"),
        (lambda a: a["roc"][0]["tpr"].pop(), "fpr has 101 points, but tpr has 100"),
        (lambda a: a["roc"][0]["tpr"].reverse(), "its rates fall somewhere"),
        (lambda a: a["roc"][0]["fpr"].__setitem__(-1, 1.5), r"fpr\.100: Input should be less than or equal to 1"),
        (lambda a: a["margins"][0].update(unlearned=[]), r"margins\.0\.unlearned: Tuple should have at least 1 item"),
        (
            lambda a: a["margins"][1].update(row=12),
            "does not belong to this run: .* place 12 .* holds 12; run forsaken",
        ),
        (lambda a: a["klom"][0].update(part="train"), r"klom\.0\.part: Input should be 'forget'"),
        (lambda a: a["klom"][1].update(part="forget"), "klom names forget more than once"),
        (lambda a: a["alarms"][1].update(name="over-forgetting"), "alarms names over-forgetting more than once"),
        (lambda a: a["claim"].update(shown="x" * 5001), r"claim\.shown: String should have at most 5000 characters"),
        (lambda a: a["warnings"].append("x" * 5001), r"warnings\.1: String should have at most 5000 characters"),
        (lambda a: a["alarms"][0].update(told="x" * 5001), r"alarms\.0\.told: String should have at most 5000"),
    ],
)
def test_a_damaged_audit_is_named(tmp_path: Path, change: Any, words: str) -> None:
    audit = make_audit()
    change(audit)
    with pytest.raises(OutputError, match=words):
        read_run(save_run(tmp_path, make_result(), audit=audit))


@pytest.mark.parametrize(("text", "words"), [("{", "it is not JSON"), ("[]", "holds a list"), ('{"a": NaN}', "NaN")])
def test_what_is_not_a_table(tmp_path: Path, text: str, words: str) -> None:
    folder = save_run(tmp_path, make_result())
    (folder / "audit.json").write_text(text, encoding="utf-8")
    with pytest.raises(OutputError, match=rf"audit\.json is damaged: .*{words}.*run forsaken audit again"):
        read_run(folder)


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([10**400, -1, 0, 1, 1e300, -1e300, 5e-324, "", "\ud800", "</script>", [], {}, [0.0], [0, 1e300]])
)


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = value.keys() if isinstance(value, dict) else range(min(len(value), 3)) if isinstance(value, list) else ()
    return [(*here, key) for key in keys] + [path for key in keys for path in places(value[key], (*here, key))]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_broken_it_is_a_page_or_an_error(tmp_path: Path, monkeypatch, data: st.DataObject) -> None:
    monkeypatch.setattr("forsaken.report.places._arranged", lambda points: (points[:, :2], True))
    audit = copy.deepcopy(AUDIT)
    for _ in range(data.draw(st.integers(1, 3))):
        *way, last = data.draw(st.sampled_from(places(AUDIT)))
        inner = audit
        try:
            for key in way:
                inner = inner[key]
            inner[last] = data.draw(VALUES)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took this place away
    save_run(tmp_path, RESULT, ARRAYS, audit=audit)
    try:
        run = read_run(tmp_path)
    except OutputError:
        return
    assert "</html>" in render(run)
    assert "</html>" in render_several([run, run])
