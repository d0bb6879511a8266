"""`forsaken audit`, as people type it: words, JSON, exit codes, and what it leaves in the run's folder."""

from __future__ import annotations

import html
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from job_folders import RECIPE, SHADOW, digests, finished, forsaken, write_job, write_world
from report_runs import make_audit
from rich.console import Console

from forsaken.auditing.result import Audit
from forsaken.cli.audit import _table
from forsaken.jobs.output import held
from forsaken.report.saved import read_run


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the page, which takes a second."""
    monkeypatch.setattr(
        "forsaken.report.page.write_report", lambda place, *_: (place / "report.html").write_text("page")
    )


def saved(job: Path) -> Any:
    return json.loads((job.parent / "forgotten" / "audit-quick.json").read_bytes())


def test_for_people(tmp_path: Path) -> None:
    job = finished(tmp_path / "job")
    ended = forsaken("audit", job)
    assert ended.code == 0, ended.err
    found, out = saved(job), job.parent / "forgotten"
    for number in found["numbers"]:
        assert number["label"] in ended.out
        assert f"{number['value']:.3f}" in ended.out
        low, high = number["interval"]
        assert ("no spread" if low == high else f"{low:.3f} to {high:.3f}") in ended.out
    assert "1.000 to 1.000" not in ended.out
    for words in (
        f"Shown: {found['claim']['shown']}\n",
        f"Not shown: {found['claim']['not_shown']}\n",
        "no alarm (no-op)",
        "not known (over-forgetting): it takes a retrained model",
        f"note: {found['warnings'][0]}",
        f"report: {out / 'report.html'}",
        f"result: {out / 'audit-quick.json'}",
        "12 samples",
        "as retrained",
    ):
        assert words in ended.out
    assert found["claim"]["shown"] in html.unescape((out / "report.html").read_text(encoding="utf-8"))


def wide(audit: dict[str, Any], columns: int) -> str:
    text = io.StringIO()
    Console(file=text, width=columns).print(_table(Audit.model_validate_json(json.dumps(audit))))
    return text.getvalue()


@pytest.mark.parametrize("profile", ["quick", "standard", "full"])
def test_the_table_is_read_at_80_columns(profile: str) -> None:
    audit = make_audit(profile)
    label = "share of forgotten samples that still get the learnt label"
    audit["numbers"][0] |= {"label": label, "value": 12.3456, "interval": [11.5, 13.25], "before": 0.75}
    text = wide(audit, 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert {"12.346", "11.500 to 13.250", "0.750"} <= set(re.split(r"\s{2,}|\s*[│┃]\s*", text)), text
    longest = [line for line in text.splitlines() if "still get" in line]
    assert len(longest) == 1, text
    assert ("floor" in text) is (profile != "quick"), "no column for what no number has"
    assert "retrained" in text
    assert "before" in text


@pytest.mark.usefixtures("quick")
def test_json_is_the_audit_and_nothing_else(tmp_path: Path) -> None:
    job = finished(tmp_path / "job")
    (job.parent / "model.py").write_text(
        (job.parent / "model.py").read_text().replace("    return", "    print('building')\n    return")
    )
    ended = forsaken("audit", job, "--json")
    assert ended.code == 0
    assert ended.json | saved(job) == ended.json
    assert ended.json["verdict_of_the_run"]["word"] == "not shown"
    assert ended.json["unmet"] == []
    assert "building" in ended.err


@pytest.mark.usefixtures("quick")
def test_a_second_audit_replaces_the_first(tmp_path: Path) -> None:
    job = finished(tmp_path / "job")
    (job.parent / "forgotten" / "audit-quick.json").write_text("old")
    before = digests(job.parent)
    assert forsaken("audit", job).code == 0
    assert saved(job)["profile"] == "quick"
    after = digests(job.parent)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"forgotten/audit-quick.json", "forgotten/report.html"}


@pytest.mark.usefixtures("quick")
def test_an_alarm_is_an_exit_code(tmp_path: Path) -> None:
    job = write_job(write_world(tmp_path / "job"), method={"name": "do-nothing", "iterations": None})
    assert forsaken("unlearn", job).code == 0
    ended = forsaken("audit", job)
    assert ended.code == 4
    assert "ALARM (no-op): No weight has changed" in ended.out
    ended = forsaken("audit", job, "--json")
    assert ended.code == 4
    assert ended.json["alarms"][0]["raised"] is True


@pytest.mark.usefixtures("quick")
def test_the_run_s_folder_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = finished(tmp_path / "job")
    (job.parent / "forgotten").rename(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    ended = forsaken("audit", job)
    assert ended.code == 2
    assert "there is no finished run in" in ended.err
    assert f"run forsaken unlearn {job} first" in ended.err
    assert not (job.parent / "forgotten").exists()
    assert forsaken("audit", job, "--out", "elsewhere").code == 0
    assert (tmp_path / "elsewhere" / "audit-quick.json").is_file()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--profile", "fast"], "unknown profile 'fast'"),
        (["--profile", "standard"], "[audit] recipe is missing"),
        (["--models", "3"], "models is 3, expected a whole number from 4 to 4096"),
        (["--engine", "spark"], "unknown engine 'spark'"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_written(tmp_path: Path, words: list[str], told: str) -> None:
    job = finished(tmp_path / "job")
    before = digests(job.parent)
    ended = forsaken("audit", job, *words, "--json")
    assert ended.code == 2
    assert set(ended.json) == {"error", "kind"}
    assert told in ended.json["error"]
    assert digests(job.parent) == before


def test_tampered_weights_are_refused(tmp_path: Path) -> None:
    job = finished(tmp_path / "job")
    weights = job.parent / "forgotten" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    ended = forsaken("audit", job)
    assert ended.code == 2
    assert "is not what the run's certificate calls the weights after forgetting" in ended.err
    assert not (job.parent / "forgotten" / "audit-quick.json").exists()


def test_one_at_a_time(tmp_path: Path) -> None:
    job = finished(tmp_path / "job")
    with held(job.parent / "forgotten"):
        ended = forsaken("audit", job)
        again = forsaken("unlearn", job, "--force")
    assert (ended.code, again.code) == (2, 2)
    assert "another run is writing to" in ended.err
    assert "another run is writing to" in again.err


def test_a_dry_run_tells_the_cost(tmp_path: Path) -> None:
    job = finished(tmp_path / "job", audit={"profile": "full", "models": 4, "recipe": RECIPE})
    before = digests(job.parent)
    ended = forsaken("audit", job, "--dry-run")
    assert ended.code == 0, ended.err
    for words in ("nothing was written", "full", "models to train", "12", "one after the other", "samples: kept",
                  "samples: nonmembers", "not counted", "the attacks and the page"):  # fmt: skip
        assert words in ended.out
    told = forsaken("audit", job, "--dry-run", "--json").json
    assert (told["trainings"], told["unlearnings"]) == (12, 4)
    assert digests(job.parent) == before


@pytest.mark.usefixtures("quick")
def test_unlearn_by_force_removes_the_audit(tmp_path: Path) -> None:
    job = finished(tmp_path / "job")
    assert forsaken("audit", job).code == 0
    assert forsaken("unlearn", job, "--force").code == 0
    assert not (job.parent / "forgotten" / "audit-quick.json").exists()


def test_what_the_model_itself_raises_is_told(tmp_path: Path) -> None:
    job = finished(tmp_path / "job", audit={"recipe": RECIPE})
    (job.parent / "model.py").write_text(
        "from torch import nn\nclass Odd(nn.Sequential):\n    def forward(self, x):\n"
        "        if self.training:\n            raise KeyError('odd')\n        return super().forward(x)\n"
        "def net():\n    return Odd(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))\n"
    )
    ended = forsaken("audit", job, "--profile", "standard", "--models", "4")
    assert ended.code == 2
    assert "the model failed while it was audited: KeyError" in ended.err
    assert "Traceback" not in ended.err


def test_a_missing_oracle_is_a_note(tmp_path: Path) -> None:
    job = finished(tmp_path / "job")
    write_job(job.parent, oracle={"retrained": "retrained.safetensors"})
    ended = forsaken("audit", job)
    assert "Traceback" not in ended.err
    assert "there is no oracle" in ended.out
    assert "the job file has changed since the run" in ended.out
    assert SHADOW["weights"] not in ended.out


def test_a_stop_that_was_overridden_on_the_command_line_is_no_other_job(tmp_path: Path, quick: None) -> None:
    job = write_job(write_world(tmp_path / "job"))
    assert forsaken("unlearn", job, "--allow", "accuracy-loss").code in (0, 4)
    assert not [told for told in forsaken("audit", job, "--json").json["warnings"] if "job file has changed" in told]
    job.write_text(job.read_text() + "\n[chain]\nmax_drift = 3.0\n")
    assert [told for told in forsaken("audit", job, "--json").json["warnings"] if "job file has changed" in told]


def test_the_help_promises_no_more_than_is_kept() -> None:
    told = " ".join(forsaken("audit", "--help").out.split())
    assert "A full audit of networks that was stopped goes on with the models that were finished." in told
    assert "Exit code 0: forgotten or not shown; 4: failed, or an alarm was raised" in told


@pytest.mark.usefixtures("quick")
def test_an_audit_of_another_run_is_not_shown_as_this_one_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = finished(tmp_path / "job")
    assert forsaken("audit", job).code == 0
    monkeypatch.undo()
    out = job.parent / "forgotten"
    assert forsaken("report", out).code == 0
    for name in ("certificate_sha256", "weights_sha256"):
        content = saved(job)
        content["settings"][name] = "0" * 64
        (out / "audit-quick.json").write_text(json.dumps(content))
        ended = forsaken("report", out)
        assert ended.code == 2
        assert f"audit-quick.json does not belong to this run: its {name} is not that of certificate.json" in ended.err
        assert "run forsaken audit again" in ended.err
        content["settings"].pop(name)
        (out / "audit-quick.json").write_text(json.dumps(content))
        assert forsaken("report", out).code == 2
        assert forsaken("audit", job).code == 0


@pytest.mark.usefixtures("quick")
def test_a_quick_audit_replaces_no_stronger_one(tmp_path: Path) -> None:
    job = finished(tmp_path / "job")
    out = job.parent / "forgotten"
    assert forsaken("audit", job).code == 0
    strong = saved(job) | {"profile": "full"}
    strong["verdict"] = {"word": "failed", "line": "U-LiRA tells them.", "yardstick": None, "checks": []}
    (out / "audit-full.json").write_text(json.dumps(strong))
    before = (out / "audit-full.json").read_bytes()
    ended = forsaken("audit", job, "--require", "not-failed")
    assert (out / "audit-full.json").read_bytes() == before
    assert ended.code == 4, "one failure is enough"
    assert "verdict: failed: U-LiRA tells them." in ended.out
    run = read_run(out)
    assert run.audit is not None
    assert run.audit.profile == "full", "the report shows the strongest"
    assert [audit.profile for audit in run.audits] == ["quick", "full"]


@pytest.mark.usefixtures("quick")
def test_what_is_required_of_an_audit(tmp_path: Path) -> None:
    job = finished(tmp_path / "job")
    ended = forsaken("audit", job, "--require", "forgotten")
    assert ended.code == 6
    assert "Required was forgotten, and the verdict is not shown." in ended.out
    assert forsaken("audit", job, "--require", "not-failed").code == 0
    assert forsaken("audit", job, "--require", "nothing").code == 2
