"""Runs read from disk: good ones become values, broken ones one clear error, whatever is broken."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from report_runs import make_arrays, make_audit, make_certificate, make_result, save_run

from forsaken.errors import OutputError
from forsaken.report.page import render, render_several
from forsaken.report.saved import read_run

TINY = make_result(8)
AUDIT = make_audit()
TINY_ARRAYS = {name: part for name, part in make_arrays(TINY).items() if name in ("before_forget", "after_forget")}


def test_a_whole_run(tmp_path: Path) -> None:
    result = make_result()
    run = read_run(save_run(tmp_path / "mine", result, certificate=make_certificate()))
    assert run.name == "mine"
    assert run.result.to_dict() == result
    assert run.arrays["before_forget"].shape == (12, 3)
    assert run.certificate == make_certificate()


def test_what_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"is not a folder; give the output folder of a run"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(OutputError, match=r"there is no result\.json in .*forsaken demo"):
        read_run(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "holds a list, expected a table"),
        ('{"schema": NaN}', "holds NaN, which is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"schema": 1, "task": "digits"}', "schema 1, expected kind 'forsaken.result' and schema 2; run the request"),
        ('{"schema": 3, "kind": "forsaken.result"}', "and schema 3, expected"),
        ('{"schema": 2, "kind": "forsaken.certificate"}', "is of kind 'forsaken.certificate'"),
        ('{"schema": 2, "kind": "forsaken.result"}', "task is missing.* and 27 more; run the request again"),
    ],
)
def test_damaged_results_are_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "result.json").write_text(text, encoding="utf-8")
    with pytest.raises(OutputError, match=words):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r["samples"]["row"].pop(), "different lengths"),
        (lambda r: r["counts"].update(forget=13), r"samples holds 12 entries, but counts\.forget is 13"),
        (lambda r: r["samples"]["class_after"].__setitem__(0, 4), "a class beyond the 4 of classes"),
        (lambda r: r["by_class"]["after"].pop(), "one entry for each of the 4 classes"),
        (lambda r: r["layers"][0].update(changed=41), "41 entries changed of only 40"),
        (lambda r: r.update(fr=2.0), "fr is too large"),
        (lambda r: r.update(stopped="tired"), "stopped is not of the form that is expected"),
        (lambda r: r.update(seconds="1"), "seconds is of the wrong type"),
        (lambda r: r["counts"].update(test=True), "counts.test is of the wrong type"),
    ],
)
def test_a_result_that_does_not_hang_together(tmp_path: Path, change: Any, words: str) -> None:
    result = make_result()
    change(result)
    with pytest.raises(OutputError, match=words):
        read_run(save_run(tmp_path, result, arrays=make_arrays(make_result())))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"before_forget": None}, "it has no array before_forget"),
        ({"after_forget": np.ones((11, 3))}, "after_forget has 11 rows, expected 12"),
        ({"after_test": np.ones((3, 3))}, "after_test has 3 rows, expected 20"),
        ({"after_test": np.ones((20, 2))}, r"after_test has shape \(20, 2\)"),
        ({"after_kept": np.ones(20)}, r"after_kept has shape \(20,\)"),
        ({"after_kept": np.full((30, 3), 2.0)}, "after_kept holds values outside 0 to 1"),
        ({"after_kept": np.full((30, 3), np.nan)}, "after_kept holds values outside 0 to 1"),
        ({"after_kept": np.ones((30, 3), dtype=int)}, "dtype int64"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    arrays = {name: part for name, part in (make_arrays(make_result()) | change).items() if part is not None}
    with pytest.raises(OutputError, match=words):
        read_run(save_run(tmp_path, make_result(), arrays=arrays))


def test_missing_and_unreadable_arrays(tmp_path: Path) -> None:
    folder = save_run(tmp_path, make_result())
    whole = (folder / "posteriors.npz").read_bytes()
    (folder / "posteriors.npz").unlink()
    with pytest.raises(OutputError, match=r"there is no posteriors\.npz"):
        read_run(folder)
    np.save(folder / "one.npy", np.ones(3))
    for content in (b"", b"PK", whole[:-40], whole[: len(whole) // 2], (folder / "one.npy").read_bytes()):
        (folder / "posteriors.npz").write_bytes(content)
        with pytest.raises(OutputError, match="is damaged"):
            read_run(folder)


def test_arrays_with_code_are_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self):
            return Path.write_text, (tmp_path / "pwned", "x")

    save_run(tmp_path, make_result(), arrays={"before_forget": np.array([Evil()], dtype=object)})
    (tmp_path / "pwned").unlink(missing_ok=True)
    with pytest.raises(OutputError, match="its arrays cannot be read"):
        read_run(tmp_path)
    assert not (tmp_path / "pwned").exists()


def test_a_damaged_certificate_is_an_error(tmp_path: Path) -> None:
    folder = save_run(tmp_path, make_result(), certificate=make_certificate())
    (folder / "certificate.json").write_bytes(make_certificate().to_bytes()[:-100])
    with pytest.raises(OutputError, match=r"certificate\.json is damaged, or none of Forsaken's"):
        read_run(folder)


def test_an_audit_is_read_as_it_was_saved(tmp_path: Path) -> None:
    audit = make_audit()
    run = read_run(save_run(tmp_path, make_result(), audit=audit))
    assert run.audit is not None
    assert run.audit.to_dict() == audit


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
            "is of kind 'forsaken.result' and schema 1, expected",
        ),
        (lambda a: a.update(schema=2), "schema 2, expected kind 'forsaken.audit' and schema 1; run forsaken audit"),
        (lambda a: a.pop("claim"), r"audit\.json is damaged: claim is missing; run forsaken audit again"),
        (lambda a: a.update(profile="huge"), "profile is none of the values that are known"),
        (lambda a: a["numbers"][0].update(interval=[0.7, 0.6]), "lower end 0.7 lies above its upper end 0.6"),
        (lambda a: a["numbers"][0].update(interval=[0.7]), r"numbers\.0\.interval\.1 is missing"),
        (lambda a: a["numbers"][0].update(value="1"), r"numbers\.0\.value is of the wrong type"),
        (
            lambda a: a["numbers"][0].update(direction="up"),
            r"numbers\.0\.direction is none of the values that are known",
        ),
        (lambda a: a["numbers"][0].update(n=-1), r"numbers\.0\.n is too small"),
        (lambda a: a["alarms"][0].update(raised="no"), r"alarms\.0\.raised is of the wrong type"),
        (lambda a: a["roc"][0]["tpr"].pop(), "fpr has 101 points, but tpr has 100"),
        (lambda a: a["roc"][0]["tpr"].reverse(), "its rates fall somewhere"),
        (lambda a: a["roc"][0]["fpr"].__setitem__(-1, 1.5), r"fpr\.100 is too large"),
        (lambda a: a["margins"][0].update(unlearned=[]), r"margins\.0\.unlearned is too short"),
        (
            lambda a: a["margins"][1].update(row=12),
            "does not belong to this run: .* place 12 .* holds 12; run forsaken",
        ),
        (lambda a: a["klom"][0].update(part="train"), r"klom\.0\.part is none of the values that are known"),
        (lambda a: a["klom"][1].update(part="forget"), "klom names forget more than once"),
        (lambda a: a["alarms"][1].update(name="over-forgetting"), "alarms names over-forgetting more than once"),
        (lambda a: a["claim"].update(shown="x" * 5001), r"claim\.shown is too long"),
        (lambda a: a["warnings"].append("x" * 5001), r"warnings\.1 is too long"),
        (lambda a: a["alarms"][0].update(told="x" * 5001), r"alarms\.0\.told is too long"),
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


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([10**400, -1, 0, 1e308, -1e308, 5e-324, "", "\ud800", "</script>", [], {}])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = value.keys() if isinstance(value, dict) else range(min(len(value), 3)) if isinstance(value, list) else ()
    return [(*here, key) for key in keys] + [path for key in keys for path in paths(value[key], (*here, key))]


def broken(data: st.DataObject, table: dict[str, Any]) -> dict[str, Any]:
    table = copy.deepcopy(table)
    for _ in range(data.draw(st.integers(1, 3))):
        places = paths(table)
        if not places:
            break
        *way, last = data.draw(st.sampled_from(places))
        inner = table
        for key in way:
            inner = inner[key]
        if data.draw(st.booleans()):
            del inner[last]
        else:
            inner[last] = data.draw(VALUES)
    return table


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_broken_it_is_a_page_or_an_error(tmp_path: Path, monkeypatch, data: st.DataObject) -> None:
    monkeypatch.setattr("forsaken.report.figures._arranged", lambda points: (points[:, :2], True))
    files: dict[str, Any] = {"result": TINY, "audit": AUDIT}
    which = data.draw(st.sampled_from(["result", "audit"]))
    files[which] = broken(data, files[which])
    save_run(tmp_path, arrays=TINY_ARRAYS, **files)
    try:
        run = read_run(tmp_path)
    except OutputError:
        return
    assert "</html>" in render(run)
    assert "</html>" in render_several([run, run])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_broken_bytes_are_a_run_or_an_error(tmp_path: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["result.json", "posteriors.npz"]))
    whole = bytearray((save_run(tmp_path, TINY, TINY_ARRAYS) / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / name).write_bytes(bytes(whole[: data.draw(st.integers(len(whole) - 50, len(whole)))]))
    with contextlib.suppress(OutputError):
        assert len(read_run(tmp_path).arrays["before_forget"]) == 8


def test_json_of_a_result_is_not_changed_by_reading(tmp_path: Path) -> None:
    folder = save_run(tmp_path, make_result())
    before = (folder / "result.json").read_bytes()
    read_run(folder)
    assert (folder / "result.json").read_bytes() == before
    assert json.loads(before)["schema"] == 2
