"""What a careful person would say of more than thirty requests, each run by the command from the data to the verdict.

`PYTHONPATH=tests python tests/integration/test_situations.py` writes the table of docs/guide/verdict.md.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from job_folders import Ended, forsaken, toml
from sklearn.datasets import load_digits
from torch import nn

from forsaken.data.samples import Samples
from forsaken.models.train import Training
from forsaken.recipe import Recipe
from forsaken.references.table import References

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "verdict.md"
MODEL = """
from torch import nn

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
"""
RECIPE = {"epochs": 60, "batch_size": 50, "learning_rate": 1e-2}
TRAIN, TEST, LIKE, NEVER = slice(0, 600), slice(600, 1300), slice(1300, 1550), slice(1550, 1797)
WRONG, ORDINARY = list(range(24)), list(range(24, 64))  # rows of train: of the first contributor, and of the second

# --- what differs between the jobs -----------------------------------------------------------------------------------

RETRAINED = {"oracle": {"retrained": "retrained.safetensors"}}
RETRAINED_2 = {"oracle": {"retrained": "retrained-2.safetensors"}}
NOTHING = {"method": {"name": "do-nothing"}}
RETRAIN = {"method": {"name": "retrain", "seed": 7}, "data": {"retain": None}}
ASCENT = {"method": {"name": "gradient-ascent", "learning_rate": 0.1, "epochs": 10}}
ORDINARY_ROWS = {"data": {"forget": {"of": "train", "ids": ORDINARY}}}
TABLE = {"data": {"train": "people.parquet"}, "references": {"folds": 4, "group": "person"}}
MANY = {"data": {"train": "people.parquet"}, "references": {"folds": 32, "group": "person", "file": "many.safetensors"}}
HANDED_IN = {"references": {"file": "claimed.safetensors"}}
ALLOW = ("--allow", "accuracy-loss")


def forget(source: Any) -> dict[str, Any]:
    return {"data": {"forget": source}}


@dataclass(frozen=True)
class Situation:
    """A request and what it must come to; `word` is None where nothing may be written.

    Attributes
    ----------
    job : tuple of dict
        Changes to the job file.
    words : tuple of str
        Of the command `unlearn`.
    word, code : str or None, int
        The verdict, and the exit code of `unlearn`.
    alarms : str
        The alarms of the audit, with the exit code of `audit`.
    verify : int
        The exit code of `verify`, after the audit.
    audit : tuple of str
        Words of the command `audit`.
    audited : str or None
        The verdict after the audit, where it is another one.
    says : str
        What must be told: in the verdict's line, in a warning, or in the error.
    """

    job: tuple[dict[str, Any], ...]
    word: str | None
    code: int
    alarms: str = ""
    audit_code: int = 0
    verify: int = 0
    words: tuple[str, ...] = ()
    audit: tuple[str, ...] = ("--profile", "quick")
    audited: str | None = None
    says: str = ""
    slow: bool = field(default=False, kw_only=True)


FULL = ("--profile", "full")
NO_OP, UNDER, OVER = "no-op", "under-forgetting", "over-forgetting"
SITUATIONS = {
    # 24 mislabelled rows
    "mislabelled rows, nothing done": Situation((NOTHING,), "not shown", 0, NO_OP, 4, 5),
    "mislabelled rows, nothing done, a retrained model": Situation(
        (NOTHING, RETRAINED), "failed", 4, f"{NO_OP}, {UNDER}", 4, 4, says="1.00 (1.00 before, 0.04 for"
    ),
    "mislabelled rows, default target: the accuracy falls": Situation(
        (), None, 7, says="training samples would fall by 2.8 points"
    ),
    "mislabelled rows, default target, loss allowed": Situation(
        (), "not shown", 0, "", 0, 5, ALLOW, says="forsaken audit --profile full"
    ),
    "mislabelled rows, default target, loss allowed, a retrained model": Situation(
        (RETRAINED,), "failed", 4, UNDER, 4, 4, ALLOW, says="learnt label: 1.00"
    ),
    "mislabelled rows, references": Situation((TABLE,), "forgotten", 0, says="0.04 (1.00 before, 0.04 for reference"),
    "mislabelled rows, references, a retrained model": Situation((TABLE, RETRAINED), "forgotten", 0),
    "mislabelled rows, references, stopped after one round": Situation(
        (TABLE, {"method": {"rounds": 1}}), "failed", 4, "", 4, 4, says="does not answer like reference models"
    ),
    "mislabelled rows, references that somebody handed in": Situation((HANDED_IN,), "not shown", 0, "", 0, 5),
    "mislabelled rows, retrained": Situation((RETRAIN,), "not shown", 0, "", 0, 5),
    "mislabelled rows, retrained, another retrained model": Situation((RETRAIN, RETRAINED), "forgotten", 0),
    "mislabelled rows, one iteration with penalty_share 0.99": Situation(
        ({"method": {"iterations": 1, "penalty_share": 0.99}},), "not shown", 0, NO_OP, 4, 5, says="hardly came nearer"
    ),
    "mislabelled rows, one such iteration, a retrained model": Situation(
        ({"method": {"iterations": 1, "penalty_share": 0.99}}, RETRAINED), "failed", 4, f"{NO_OP}, {UNDER}", 4, 4
    ),
    "mislabelled rows, three reference samples": Situation(
        ({"data": {"reference": {"path": "reference.parquet", "count": 3}}},), "not shown", 0, NO_OP, 4, 5
    ),
    "mislabelled rows, gradient ascent": Situation((ASCENT,), None, 7, says="allow"),
    "mislabelled rows, gradient ascent, loss allowed, a retrained model": Situation(
        (ASCENT, RETRAINED), "failed", 4, OVER, 4, 4, ALLOW
    ),
    # 40 ordinary rows
    "ordinary rows, nothing done": Situation((ORDINARY_ROWS, NOTHING), "not shown", 0, NO_OP, 4, 5),
    "ordinary rows, nothing done, a retrained model": Situation(
        (ORDINARY_ROWS, NOTHING, RETRAINED_2), "failed", 4, f"{NO_OP}, {UNDER}", 4, 4
    ),
    "ordinary rows, default target, loss allowed": Situation(
        (ORDINARY_ROWS,), "failed", 4, UNDER, 4, 4, ALLOW, says="easier to tell"
    ),
    "ordinary rows, default target, loss allowed, a retrained model": Situation(
        (ORDINARY_ROWS, RETRAINED_2), "failed", 4, f"{OVER}, {UNDER}", 4, 4, ALLOW
    ),
    "ordinary rows, references": Situation((ORDINARY_ROWS, TABLE), "forgotten", 0),
    "ordinary rows, references, a retrained model": Situation((ORDINARY_ROWS, TABLE, RETRAINED_2), "forgotten", 0),
    "ordinary rows, retrained, another retrained model": Situation(
        (ORDINARY_ROWS, RETRAIN, RETRAINED_2), "forgotten", 0
    ),
    # one record, other labels, other inputs
    "one mislabelled row, references": Situation(
        (TABLE, forget({"of": "train", "ids": [0]})), "forgotten", 0, says="so few records"
    ),
    "one mislabelled row, nothing done, a retrained model": Situation(
        (NOTHING, RETRAINED, forget({"of": "train", "ids": [0]})), "failed", 4, f"{NO_OP}, {UNDER}", 4, 4
    ),
    "rows without labels, nothing done, a retrained model": Situation(
        (NOTHING, RETRAINED, forget("unlabelled.parquet")), "failed", 4, f"{NO_OP}, {UNDER}", 4, 4, says="confidence"
    ),
    "labels that were not learnt, references, a retrained model": Situation(
        (TABLE, RETRAINED, forget("true.parquet")), "forgotten", 0, says="gives only 0 of the 24 records"
    ),
    "labels that were not learnt, nothing done, a retrained model": Situation(
        (NOTHING, RETRAINED, forget("true.parquet")), "failed", 4, f"{NO_OP}, {UNDER}", 4, 4, says="confidence"
    ),
    "labels outside the classes": Situation((forget("outside.parquet"),), None, 2, says="unknown-labels"),
    "rows scaled by 255": Situation((forget("scaled.parquet"),), None, 2, says="times as large"),
    "rows in another layout (channels last)": Situation(
        (forget("last.npz"), {"data": {"train": "train.npz", "retain": None}}), None, 2, says="another order"
    ),
    "rows of another type (uint8 from 0 to 255)": Situation(
        (forget("bytes.npz"), {"data": {"train": "train.npz", "retain": None}}), None, 2, says="uint8 are read as"
    ),
    "rows that the model was not trained on": Situation((forget("others.parquet"),), None, 2, says="unknown-records"),
    "rows that the model was not trained on, dry run": Situation(
        (forget("others.parquet"),), None, 2, words=("--dry-run",), says="unknown-records"
    ),
    "rows that the model was not trained on, allowed": Situation(
        (forget("others.parquet"),), "failed", 4, UNDER, 4, 4, ("--allow", "unknown-records"), says="easier to tell"
    ),
    "nothing to forget: the model never learnt the rows": Situation(
        ({"model": {"weights": "innocent/model.safetensors"}},), "not shown", 0, NO_OP, 4, 5, says="not memorised"
    ),
    "the retrained model is the model itself": Situation(
        (NOTHING, {"oracle": {"retrained": "model.safetensors"}}), None, 2, says="trained in the same way without"
    ),
    # requirements
    "nothing shown, forgotten is required": Situation(
        (RETRAIN,), "not shown", 6, "", 0, 5, ("--require", "forgotten"), says="Required was forgotten"
    ),
    "forgotten, and half a point of accuracy is too much": Situation(
        (ORDINARY_ROWS, TABLE), "forgotten", 6, words=("--require", "accuracy-loss=0.5"), says="accuracy fell by"
    ),
    # full audits
    "mislabelled rows, nothing done, full audit": Situation(
        (NOTHING,), "not shown", 0, f"{NO_OP}, {UNDER}", 4, 4, audit=FULL, audited="failed", slow=True
    ),
    "mislabelled rows, default target, loss allowed, full audit": Situation(
        (), "not shown", 0, UNDER, 4, 4, ALLOW, FULL, "failed", slow=True
    ),
    "mislabelled rows, references of 4 folds, full audit": Situation(
        (TABLE,), "forgotten", 0, UNDER, 4, 4, audit=FULL, audited="failed", slow=True
    ),
    "mislabelled rows, references of 32 folds, full audit": Situation(
        (MANY,), "forgotten", 0, "", 0, 0, audit=FULL, slow=True
    ),
    "mislabelled rows, retrained, full audit": Situation(
        (RETRAIN,), "not shown", 0, "", 0, 5, audit=FULL, audited="forgotten", slow=True
    ),
}  # fmt: skip


# --- the data, the models and the jobs -------------------------------------------------------------------------------


def features(inputs: Any, labels: Any | None = None, **others: Any) -> pa.Table:
    columns: dict[str, Any] = {f"f{at}": inputs[:, at] for at in range(inputs.shape[1])}
    return pa.table(columns | ({} if labels is None else {"label": labels}) | others)


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits as a table of numbers, of which 24 are mislabelled; a model of all, and one without each contributor's."""
    goal = tmp_path_factory.mktemp("situations")
    inputs, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(digits))
    inputs, digits = (inputs[order] / 16).astype(np.float32), digits[order]
    labels = digits.copy()
    labels[WRONG] = (digits[WRONG] + np.random.default_rng(1).integers(1, 10, len(WRONG))) % 10
    (goal / "model.py").write_text(MODEL, encoding="utf-8")
    people = ["first" if at in WRONG else "second" if at in ORDINARY else f"other {at}" for at in range(600)]
    tables = {
        "train": features(inputs[TRAIN], labels[TRAIN]),
        "people": features(inputs[TRAIN], labels[TRAIN], person=people),
        "test": features(inputs[TEST], digits[TEST]),
        "reference": features(inputs[LIKE], digits[LIKE]),
        "nonmembers": features(inputs[NEVER], digits[NEVER]),
        "unlabelled": features(inputs[WRONG]),
        "true": features(inputs[WRONG], digits[WRONG]),
        "outside": features(inputs[WRONG], labels[WRONG] + 10),
        "scaled": features(255 * inputs[WRONG], labels[WRONG]),
        "others": features(inputs[NEVER][:24], digits[NEVER][:24]),
    }
    for name, table in tables.items():
        pq.write_table(table, goal / f"{name}.parquet")
    pictures = inputs.reshape(-1, 1, 8, 8)
    np.savez(goal / "train.npz", inputs=pictures[TRAIN], labels=labels[TRAIN])
    np.savez(goal / "last.npz", inputs=pictures[WRONG].transpose(0, 2, 3, 1), labels=labels[WRONG])
    np.savez(goal / "bytes.npz", inputs=np.round(255 * pictures[WRONG]).astype(np.uint8), labels=labels[WRONG])
    rows, training = np.arange(600), Training(network, Recipe(**RECIPE))
    lacking = {"model": [], "retrained": WRONG, "retrained-2": ORDINARY}
    models = {}
    for seed, (name, gone) in enumerate(lacking.items(), 1):
        kept = np.setdiff1d(rows, gone)
        models[name] = training.run(Samples(torch.from_numpy(inputs[kept]), torch.from_numpy(labels[kept])), seed=seed)
        safetensors.torch.save_file(models[name].state_dict(), goal / f"{name}.safetensors")
    (goal / "innocent").mkdir()
    shutil.copy(goal / "retrained.safetensors", goal / "innocent" / "model.safetensors")
    with torch.no_grad():
        logits = models["retrained"](torch.from_numpy(inputs[TRAIN]))
    References.claimed(torch.from_numpy(inputs[TRAIN]), logits).save(goal / "claimed.safetensors")
    ended = forsaken("references", "fit", job_of(goal, "table", (TABLE,)))
    assert ended.code == 0, ended.err
    return goal


def job_of(folder: Path, name: str, changes: tuple[dict[str, Any], ...]) -> Path:
    job: dict[str, dict[str, Any]] = {
        "model": {"weights": "model.safetensors", "factory": "model:net"},
        "data": {
            "forget": {"of": "train", "ids": WRONG},
            "train": "train.parquet",
            "test": "test.parquet",
            "reference": "reference.parquet",
            "retain": {"of": "train", "ids": list(range(100, 250))},
        },
        "audit": {"recipe": RECIPE, "nonmembers": "nonmembers.parquet"},
        "output": {"folder": name},
    }
    for change in changes:
        for table, keys in change.items():
            merged = job.get(table, {}) | keys
            job[table] = {key: value for key, value in merged.items() if value is not None}
    path = folder / f"{name}.toml"
    path.write_text(toml(job), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("number", "name"),
    [
        pytest.param(at, name, id=name, marks=[pytest.mark.slow] if situation.slow else [])
        for at, (name, situation) in enumerate(SITUATIONS.items())
    ],
)
def test_what_a_careful_person_would_say(folder: Path, number: int, name: str) -> None:
    wanted, out = SITUATIONS[name], folder / f"run-{number}"
    job = job_of(folder, out.name, wanted.job)
    if MANY in wanted.job:
        assert forsaken("references", "fit", job).code == 0
    ended = forsaken("unlearn", job, "--json", *wanted.words)
    assert ended.code == wanted.code, ended.out + ended.err
    if wanted.word is None:
        assert wanted.says in ended.json["error"]
        assert not out.exists(), "something was written"
        return
    result = ended.json["result"]
    assert result["verdict"]["word"] == wanted.word, result["verdict"]["line"]
    told = [result["verdict"]["line"], *result["warnings"], *ended.json["unmet"]]
    assert any(wanted.says in each for each in told), told
    audit = forsaken("audit", job, "--json", *wanted.audit)
    assert audit.code == wanted.audit_code, audit.out + audit.err
    assert ", ".join(each["name"] for each in audit.json["alarms"] if each["raised"]) == wanted.alarms, audit.json
    final = audit.json["verdict_of_the_run"]
    assert final["word"] == (wanted.audited or wanted.word), final["line"]
    check = forsaken("verify", out / "certificate.json", "--weights", out / "model.safetensors", "--any-signer")
    assert check.code == wanted.verify, check.out + check.err
    same_everywhere(out, result["verdict"], final, check)


def same_everywhere(out: Path, own: dict[str, Any], final: dict[str, Any], check: Ended) -> None:
    """The word and the line of a run are those of its files, of verify's first line, and of the report."""
    assert json.loads((out / "result.json").read_bytes())["verdict"]["line"] == own["line"]
    assert check.out.startswith(f"The certificate says: {own['word']}: {own['line']}")
    shown = (out / "report.html").read_text(encoding="utf-8")
    assert re.search(rf'class="verdict[^"]*"[^>]*>\s*<[^>]+>\s*{final["word"]}', shown, re.IGNORECASE), final["word"]


# --- the table of the guide ------------------------------------------------------------------------------------------

BEGIN, END = "<!-- table: situations -->\n", "\n<!-- end -->"


def table() -> str:
    """Return the situations as a table of the guide."""
    lines = [
        "| situation | verdict | alarms of the audit | `unlearn` | `audit` | `verify` |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, each in SITUATIONS.items():
        word = "*stopped*" if each.word is None else each.word
        word += f", then {each.audited}" if each.audited else ""
        after = ["", "", ""] if each.word is None else [each.alarms or "none", str(each.audit_code), str(each.verify)]
        lines.append(f"| {name} | {word} | {after[0]} | {each.code} | {after[1]} | {after[2]} |")
    return "\n" + "\n".join(lines) + "\n"


def written(page: str) -> str:
    head, rest = page.split(BEGIN)
    return f"{head}{BEGIN}{table()}{END}{rest.split(END, 1)[1]}"


def test_the_guide_has_these_situations() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == page, f"run: python {Path(__file__).name}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
