"""What the files of a run tell somebody who guesses: which of many candidates were forgotten."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from job_folders import RECIPE, WIDTH, build, fitted, forsaken, result_of, run, table, world, write_job, write_world
from report_runs import make_audit, make_result, typed

from forsaken.auditing.result import Audit
from forsaken.jobs.certificate import Certificate
from forsaken.jobs.disclosure import audit_without_records, pooled, rounded, without_records
from forsaken.verdict import LEAST_RECORDS

FORGOTTEN, CANDIDATES = 30, 20_600
# Thirty guesses among 20,600 hit 0.04 of the thirty forgotten ones on average, and more than two less than once in
# 80,000 times.
BY_CHANCE = 2


class Attacker:
    """Somebody with candidates and both models; the forgotten ones are the first of the candidates."""

    def __init__(self, folder: Path, forgotten: Any) -> None:
        draw = np.random.default_rng(11)
        others = (2.5 * draw.standard_normal((CANDIDATES - FORGOTTEN, WIDTH))).astype(np.float32)
        self.inputs = torch.from_numpy(np.concatenate([forgotten, others]))
        self.sure = {name: self._sure(folder / path) for name, path in MODELS.items()}

    def _sure(self, path: Path) -> Any:
        model = build()
        model.load_state_dict(safetensors.torch.load_file(path))
        with torch.no_grad():
            return model(self.inputs).softmax(1).max(1).values.double().numpy()

    def hits(self, score: Any) -> int:
        """How many of the thirty candidates with the highest scores were forgotten; equal scores in random order."""
        order = np.random.default_rng(3).permutation(CANDIDATES)
        return int((order[np.argsort(-score[order], kind="stable")[:FORGOTTEN]] < FORGOTTEN).sum())

    def by_rows(self, arrays: dict[str, Any], models: tuple[str, ...]) -> int:
        """Guess the candidates whose confidences are nearest to those of one row of posteriors.npz."""
        apart = [np.abs(self.sure[name][:, None] - arrays[f"{name}_forget"][None, :, 0]) for name in models]
        return self.hits(-np.max(apart, axis=0).min(1))

    def by_pictures(self, arrays: dict[str, Any], models: tuple[str, ...]) -> int:
        """Guess by how much likelier each confidence is among the forgotten records than among all candidates."""
        score, bars = np.zeros(CANDIDATES), np.linspace(0, 1, 21)
        for name in models:
            told = np.histogram(arrays[f"{name}_forget"][:, 0].clip(0, 1), bars)[0] + 0.5
            usual = np.histogram(self.sure[name], bars)[0] + 0.5
            at = np.minimum((self.sure[name] * 20).astype(int), 19)
            score += np.log(told / told.sum() / (usual / usual.sum()))[at]
        return self.hits(score)

    def by_models(self) -> int:
        """Guess without any file: those whose confidence fell the most between the models."""
        return self.hits(self.sure["before"] - self.sure["after"])


MODELS = {"before": "model.safetensors", "after": "forgotten/model.safetensors"}


def every_number(folder: Path) -> Any:
    """Every number from 0 to 1 that the files of a run hold, but for the weights themselves."""
    texts = [(folder / name).read_text(encoding="utf-8") for name in ("result.json", "report.html")]
    texts.append(base64.b64decode(json.loads((folder / "certificate.json").read_bytes())["payload"]).decode())
    found = [float(text) for text in re.findall(r"(?<![\w.])(?:0\.\d+|1\.0)(?:e-?\d+)?(?![\w.])", " ".join(texts))]
    with np.load(folder / "posteriors.npz") as file:
        found += [value for name in file.files for value in file[name].ravel().tolist()]
    return np.unique(found)


def asked(folder: Path, **output: Any) -> Attacker:
    """A request to forget thirty records that the model knows by heart."""
    write_world(folder)
    draw = np.random.default_rng(7)
    inputs = (2.5 * draw.standard_normal((FORGOTTEN, WIDTH))).astype(np.float32)
    labels = draw.integers(4, size=FORGOTTEN)
    kept = world().sets["kept"]
    everything = [np.concatenate(pair) for pair in zip(kept, (inputs, labels), strict=True)]
    pq.write_table(table(inputs, labels), folder / "forget.parquet")
    pq.write_table(table(*everything), folder / "train.parquet")
    safetensors.torch.save_file(fitted(*everything, seed=4), folder / "model.safetensors")
    assert forsaken("unlearn", write_job(folder, output=output)).code == 0
    return Attacker(folder, inputs)


def arrays_of(folder: Path) -> dict[str, Any]:
    with np.load(folder / "posteriors.npz") as file:
        return {name: file[name] for name in file.files}


def test_the_files_do_not_tell_which_candidates_were_forgotten(tmp_path: Path) -> None:
    both, old = ("before", "after"), ("before",)
    told = asked(tmp_path / "told", per_record=True)  # what the attack finds where each record's numbers are kept
    arrays = arrays_of(tmp_path / "told" / "forgotten")
    assert told.by_rows(arrays, both) == FORGOTTEN
    assert told.by_rows(arrays, old) >= FORGOTTEN / 2  # float32 tells some confidences near 1 no more apart
    kept = asked(tmp_path / "kept", per_record=None)
    out = tmp_path / "kept" / "forgotten"
    arrays = arrays_of(out)
    assert kept.by_rows(arrays, both) <= BY_CHANCE
    assert kept.by_rows(arrays, old) <= BY_CHANCE
    assert kept.by_pictures(arrays, old) <= BY_CHANCE
    # Whoever has both models can compare them without any file of ours; the files must not add to that.
    assert kept.by_pictures(arrays, both) <= kept.by_models() + BY_CHANCE
    found = result_of(out)
    assert found["samples"] is None
    precise = [number for number in every_number(out) if len(f"{number:.12g}") > len("0.000123456")]
    assert not np.isin(precise, np.concatenate(list(kept.sure.values()))).any()
    assert "one by one" not in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("count", [1, LEAST_RECORDS - 1])
def test_no_file_holds_a_mean_over_few_records(tmp_path: Path, count: int) -> None:
    folder = write_world(tmp_path / "job")
    inputs, labels = world().sets["forget"]
    pq.write_table(table(inputs[:count], labels[:count], first=1120), folder / "forget.parquet")
    assert forsaken("unlearn", write_job(folder, output={"per_record": None})).code == 0
    out = folder / "forgotten"
    model = build()
    sure = {}
    for name, path in MODELS.items():
        model.load_state_dict(safetensors.torch.load_file(folder / path))
        with torch.no_grad():
            sure[name] = float(model(torch.from_numpy(inputs[:count])).softmax(1).max(1).values.mean())
    numbers = every_number(out)
    assert np.abs(sure["before"] - numbers).min() > 1e-6
    assert np.abs(sure["after"] - numbers).min() > 1e-6
    found = result_of(out)
    assert (found["forget_confidence"], found["separation"], found["history"]) == (None, None, [])
    stated = json.loads(base64.b64decode(json.loads((out / "certificate.json").read_bytes())["payload"]))
    assert stated["predicate"]["measured"]["forget_confidence"] is None
    assert f"not kept for fewer than {LEAST_RECORDS} records" in (out / "report.html").read_text(encoding="utf-8")


def test_neighbours_of_few_records_have_no_mean_either(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    data = {"id": "id", "forget": {"of": "train", "ids": [1121]}}
    job = write_job(folder, data=data, output={"per_record": None}, audit={"neighbours": "word-dropout"})
    assert forsaken("unlearn", job).code in (0, 4)
    assert forsaken("audit", job).code in (0, 4)
    found = Audit.read(folder / "forgotten" / "audit-quick.json")
    for name in ("forget_confidence", "neighbour_confidence"):
        assert (found[name].value, found[name].before, found[name].interval) == (None, None, None)
    # Beside the numbers of other samples, no number has more than two digits.
    assert len(f"{found['accuracy'].value:.12g}") > len("0.12")


@pytest.mark.parametrize("profile", ["quick", "standard", "full"])
@pytest.mark.parametrize("count", [1, LEAST_RECORDS - 1])
def test_no_audit_tells_a_mean_over_few_records(tmp_path: Path, count: int, profile: str) -> None:
    """Neither as a number nor in a sentence: three digits of one confidence are enough to find the record."""
    folder = write_world(tmp_path / "job")
    inputs, labels = (part[:count] for part in world().sets["forget"])
    pq.write_table(table(inputs, labels, first=1120), folder / "forget.parquet")
    oracle, asked = {"retrained": "retrained.safetensors"}, {"recipe": RECIPE, "models": 4}
    job = write_job(folder, output={"per_record": None}, oracle=oracle, audit=asked)
    assert forsaken("unlearn", job).code in (0, 4)
    ended = forsaken("audit", job, "--profile", profile)
    assert ended.code in (0, 4), ended.err
    out = folder / "forgotten"
    found = json.loads((out / f"audit-{profile}.json").read_bytes())
    assert found["roc"] == []
    lines = [line for line in ended.out.splitlines() if "AUC" not in line]  # an AUC may equal a mean to three digits
    told = json.dumps([found[name] for name in ("claim", "alarms", "numbers", "verdict", "warnings")])
    told = "\n".join([told, *lines])
    page = (out / "report.html").read_text(encoding="utf-8")
    model = build()
    for path in (*MODELS.values(), "retrained.safetensors"):
        model.load_state_dict(safetensors.torch.load_file(folder / path))
        with torch.no_grad():
            shares = model(torch.from_numpy(inputs)).softmax(1).double().numpy()
        learnt = shares[np.arange(count), labels]
        sure, margin = shares.max(1).mean(), np.log(learnt / (1 - learnt)).mean()
        loss = -np.log(learnt).mean()
        for number in (f"{sure:.3f}", f"{margin:.3f}", f"{margin:.2f}", f"{loss:.4g}", f"{loss:.3g}"):
            assert not re.search(rf"(?<!\d){re.escape(number)}(?!\d)", told), (path, number)
        assert f"{margin:.3f}" not in page


def test_the_certificate_is_rounded_whatever_the_folder_keeps(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    found = run(write_job(folder, output={"per_record": True}))
    stated = Certificate.read(folder / "forgotten" / "certificate.json").measured
    assert stated.forget_confidence is not None
    assert stated.forget_confidence.before == rounded(found["forget_confidence"]["before"])
    assert stated.forget_confidence.before != found["forget_confidence"]["before"]


def test_a_result_without_records_keeps_what_many_records_have_in_common() -> None:
    result = typed(make_result(40))
    public = without_records(result)
    assert public.samples is None
    assert public.fr == result.fr
    assert public.forget_confidence is not None
    assert public.forget_confidence.before == pytest.approx(result.forget_confidence.before, abs=5e-4)
    assert len(public.history) == len(result.history)
    assert without_records(public) == public


def floats(value: Any) -> list[float]:
    """Every float in plain values."""
    if isinstance(value, dict | list | tuple):
        return [one for part in (value.values() if isinstance(value, dict) else value) for one in floats(part)]
    return [value] if isinstance(value, float) else []


@pytest.mark.parametrize("count", [LEAST_RECORDS - 1, LEAST_RECORDS])
def test_numbers_over_the_records_are_rounded_or_left_out(count: int) -> None:
    long = 0.1234567
    pair = {"before": long, "after": long, "retrained": long}
    check = {"name": "margin", "label": "mean margin", "before": long, "after": long, "usual": long, "n": count}
    whole = make_result(count) | {
        "forget_confidence": pair,
        "separation": {"against": "test", "n": 20, **pair, "spread": pair, "spread_of_others": long},
        "history": [dict.fromkeys(make_result(1)["history"][0], long) | {"iteration": 1}],
        "facts": {"distance_before": long, "drift": long, "target": "uniform"},
        "verdict": {"word": "failed", "line": "", "checks": [check]},
    }
    whole["counts"]["forget"] = count
    public = without_records(typed(whole)).to_dict()
    assert public["facts"].pop("drift") == long  # of the weights, not of the records
    about = [public[name] for name in ("forget_confidence", "separation", "history", "facts", "verdict")]
    assert set(floats(about)) == (set() if count < LEAST_RECORDS else {0.123})
    audit = Audit.model_validate_json(json.dumps(make_audit() | {"schema": None}))
    klom = audit.klom[0].model_copy(update={"value": (long, long)})
    found = audit_without_records(audit.model_copy(update={"klom": (klom,)}), count)
    assert found.klom[0].value == ((0.12, 0.12) if count < LEAST_RECORDS else (0.123, 0.123))


def test_pictures_keep_the_bars_and_the_mean() -> None:
    largest = np.random.default_rng(0).beta(8, 1, size=500)
    drawn = pooled(largest)
    assert drawn is not None
    assert np.array_equal(np.histogram(drawn, 20, (0, 1))[0], np.histogram(largest, 20, (0, 1))[0])
    assert drawn.mean() == pytest.approx(rounded(float(largest.mean())), abs=1e-9)
    assert (np.diff(drawn) >= 0).all()
    assert len(np.unique(drawn)) <= 20
    assert pooled(largest[: LEAST_RECORDS - 1]) is None
    assert pooled(np.ones(LEAST_RECORDS)).max() <= 1


@pytest.mark.parametrize("count", [LEAST_RECORDS - 1, LEAST_RECORDS])
def test_an_audit_keeps_no_margins_of_single_records(count: int) -> None:
    whole = Audit.model_validate_json(json.dumps(make_audit() | {"schema": None}))
    number = whole.numbers[0].model_copy(update={"name": "neighbour_confidence", "value": 0.123456})
    others = number.model_copy(update={"name": "accuracy"})
    noted = number.model_copy(update={"name": "noted", "note": "with AUC 0.9876 before"})
    claim = whole.claim.model_copy(update={"shown": "With AUC 0.562."})
    audit = whole.model_copy(
        update={"numbers": (number, others, noted), "claim": claim, "warnings": ("of AUC 0.9876",)}
    )
    public = audit_without_records(audit, count)
    assert public.margins == ()
    few = count < LEAST_RECORDS
    assert public["neighbour_confidence"].value == (None if few else 0.123)
    assert public["accuracy"].value == 0.123456  # what --require decides on
    assert public["noted"].value == (0.12 if few else 0.123)
    assert public["noted"].note == ("with AUC 0.99 before" if few else "with AUC 0.9876 before")
    assert public.warnings == (("of AUC 0.99",) if few else ("of AUC 0.9876",))
    assert [alarm.raised for alarm in public.alarms] == [alarm.raised for alarm in audit.alarms]
    assert bool(public.roc) is (count >= LEAST_RECORDS)
    assert public.claim.shown == ("With AUC 0.56." if count < LEAST_RECORDS else "With AUC 0.562.")
