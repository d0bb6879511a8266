"""Runs as they lie in folders, made up for the tests of the report: every number hangs together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from forsaken.auditing.result import Alarm, Audit, Conclusion, Curve, Divergence, Number, Spread
from forsaken.jobs.certificate import BothWeights, Certificate, Weights, extend
from forsaken.jobs.certificate import make_certificate as certify
from forsaken.result import ChainRequest, Result

CLASSES = ["cat", "dog", "<script>alert(1)</script>", "ship </script>"]
SIZES = {"kept": 30, "test": 20, "reference": 20}


def make_result(count: int = 12, *, seed: int = 0, classes: list[str] | None = None) -> dict[str, Any]:
    """A result of schema 2 with every optional part; `count` samples were forgotten."""
    names = CLASSES if classes is None else classes
    draw = np.random.default_rng(seed)
    sure, unsure = 1 - draw.random(count) / 50, 0.3 + draw.random(count) / 2
    kinds = draw.integers(len(names), size=count)
    was, now = 0.52 + draw.random(count) / 2.2, 0.45 * draw.random(count)
    now[0] = 0.75  # one that still looks like a member
    support = np.bincount(np.arange(SIZES["test"]) % len(names), minlength=len(names))
    history = [
        {
            "iteration": step, "objective": 10 / step, "distance": 9 / step, "anchor": 0.5 * step / 10, "penalty": 0.1,
            "density": 0.5, "step": 1.0, "seconds": 0.01 * step,
        }
        for step in range(1, 21)
    ]  # fmt: skip
    return {
        "schema": 2,
        "kind": "forsaken.result",
        "task": "pets",
        "request": None,
        "seed": seed,
        "fr": float((count - 1) / count),
        "cfr": 0.04,
        "accuracy_before": 0.95,
        "accuracy_after": 0.9,
        "seconds": 1.25,
        "speedup": 4.0,
        "mask_density": 0.25,
        "iterations": 20,
        "evaluations": 22,
        "stopped": "iterations",
        "forget_confidence": {"before": float(sure.mean()), "after": float(unsure.mean()), "retrained": 0.6},
        "forget_accuracy": None,
        "separation": {
            "against": "test",
            "n": 20,
            "before": 0.97,
            "after": 0.52,
            "retrained": 0.5,
            "spread": {"before": 0.01, "after": 0.15, "retrained": 0.2},
            "spread_of_others": 0.2,
        },
        "retrain": {"fr": 0.9, "cfr": 0.01, "accuracy": 0.94, "seconds": 5.0},
        "counts": {
            "forget": count, "memorised_before": count, "reference": 20, "retain": 5, "train": 300, "test": 20,
            "kept_judged": 30, "kept_members_before": 15, "memorised_after": 1,
        },
        "classes": names,
        "by_class": {
            "support": support.tolist(),
            "before": [0.95] * len(names),
            "after": [0.9] * len(names),
        },
        "layers": [{"name": f"{n}.{kind}", "changed": 10, "total": 40} for n in (0, 2) for kind in ("weight", "bias")],
        "samples": {
            "score": "oracle",
            "row": list(range(100, 100 + count)),
            "hash": [f"{n:012x}" for n in range(count)],
            "class_before": kinds.tolist(),
            "class_after": kinds[::-1].tolist(),
            "confidence_before": sure.tolist(),
            "confidence_after": unsure.tolist(),
            "score_before": was.tolist(),
            "score_after": now.tolist(),
        },
        "oracle": {
            "accuracy": 0.7, "precision": 0.7, "recall": 0.8, "balanced_accuracy": 0.68, "members": 300,
            "nonmembers": 40,
        },
        "target": {"target": "class-mean", "shown": "They look alike.", "not_shown": "An attacker can tell."},
        "chain": {
            "links": [
                {
                    "number": n, "time": f"2026-01-0{n}T00:00:00Z", "forgotten": 5 * n, "drift": 0.03,
                    "certificate": None, "signer": None,
                    "accuracy_before": 0.96 - n / 100, "accuracy_after": 0.95 - n / 100,
                }
                for n in (1, 2, 3)
            ],
            "drift": 0.09,
            "accuracy_loss": 0.03,
            "max_drift": 0.08,
            "max_accuracy_loss": 0.05,
            "advice": ["The drift passed 0.08: retrain without the forgotten records."],
        },
        "cleaning": {"rows": count, "exact": 2, "near": 1, "not_found": 0, "file": "cleaned.parquet"},
        "facts": {"target": "class-mean", "anchors": 25},
        "notes": ["the importance came from the reference samples"],
        "warnings": ["the key file can be read by others"],
        "stays": ["The running statistics of 2 batch-norm layers stay as they were."],
        "settings": {"name": "forsaken", "target": "class-mean", "penalty": 0.001, "parameters": None},
        "job": {"model": {"factory": "pets:net"}, "output": {"mask": False}},
        "history": history,
        "provenance": {"time": "2026-01-03T00:00:00+00:00", "versions": {"forsaken": "0.1.0"}},
    }  # fmt: skip


def typed(table: dict[str, Any]) -> Result:
    """The same result as the code reads it."""
    return Result.model_validate_json(json.dumps(table))


def make_certificate(*, signed: bool = True, time: str = "2026-01-03T00:00:00+00:00") -> Certificate:
    """The certificate of a run."""
    old, new = (Weights(sha256=digit * 64, format="safetensors", name="model.safetensors") for digit in "ab")
    own = ChainRequest(
        number=1, time=time, forgotten=12, drift=0.03, accuracy_before=0.95, accuracy_after=0.92, certificate=None
    )
    made = certify(
        Result.model_validate_json(json.dumps(make_result())),
        BothWeights(old=old, new=new),
        ["d" * 64] * 12,
        extend(None, own),
        read_as=None,
        total_seconds=2.0,
        mask_kept=False,
    )
    return made.sign(Ed25519PrivateKey.from_private_bytes(b"k" * 32)) if signed else made


def make_arrays(result: dict[str, Any]) -> dict[str, Any]:
    """The arrays that belong to a result."""
    draw = np.random.default_rng(1)
    width = min(3, max(len(result["classes"]), 1))

    def largest(first: Any) -> Any:
        rest = (1 - np.asarray(first))[:, None] * np.array([0.7, 0.3])
        return np.column_stack([first, rest])[:, :width]

    table = result["samples"]
    arrays = {f"{when}_forget": largest(table[f"confidence_{when}"]) for when in ("before", "after")}
    arrays["retrained_forget"] = largest(0.4 + draw.random(len(table["row"])) / 2)
    for part, size in SIZES.items():
        for when in ("before", "after", "retrained"):
            arrays[f"{when}_{part}"] = largest(0.4 + 0.6 * draw.random(size))
    return arrays


def make_audit(profile: str = "full", *, alarmed: bool = True) -> dict[str, Any]:
    """An audit with every part that its profile has, as audit.json holds it."""
    draw = np.random.default_rng(2)
    numbers = [
        Number(
            name="fr",
            label="Forgetting rate (FR)",
            value=0.917,
            direction="retrained",
            n=12,
            unit="samples",
            interval=(0.75, 1.0),
            retrained=0.9,
            before=0.0,
        ),
        Number(
            name="accuracy",
            label="Test accuracy",
            value=0.9,
            direction="retrained",
            n=2000,
            unit="samples",
            interval=(0.85, 0.95),
            retrained=0.94,
            before=0.95,
        ),
        Number(
            name="cfr",
            label="Collateral forgetting rate (CFR)",
            value=None,
            direction="lower",
            n=0,
            unit="samples",
            note="nothing to keep",
        ),
    ]
    roc, margins, klom = [], [], []
    if profile != "quick":
        numbers.insert(
            0,
            Number(
                name="rmia_auc",
                label="RMIA, AUC",
                value=0.52,
                direction="half",
                n=12,
                unit="samples",
                interval=(0.4, 0.64),
                retrained=0.51,
                before=0.93,
                floor=(0.47, 0.53),
            ),
        )
        rates = np.linspace(0, 1, 101)
        for name, power in (("unlearned", 0.7), ("doing nothing", 0.05), ("retrained", 0.98)):
            roc.append(Curve(name=name, fpr=tuple(rates.tolist()), tpr=tuple((rates**power).tolist())))
    if profile == "full":
        numbers.insert(
            0,
            Number(
                name="u_lira_auc",
                label="U-LiRA, AUC",
                value=0.61,
                direction="half",
                n=384,
                unit="pairs",
                interval=(0.58, 0.64),
                retrained=0.5,
                before=0.98,
                floor=(0.47, 0.53),
            ),
        )
        for row in (3, 0, 7):
            drawn = draw.normal((1.5, 0.0, 8.0), 1.0, (32, 3)).T.tolist()
            margins.append(
                Spread(row=row, unlearned=tuple(drawn[0]), retrained=tuple(drawn[1]), before=tuple(drawn[2]))
            )
        for part, n in (("forget", 12), ("retain", 30), ("test", 20)):
            klom.append(Divergence(part=part, n=n, value=(1.4, 4.2), floor=(0.9, 2.1), ceiling=(9.5, 11.4)))
    over = "4 of 12 samples lie further out than the retrained models' 95 % band."
    audit = Audit(
        profile=profile,  # type: ignore[arg-type]
        claim=Conclusion(
            shown="No test here can tell that the records were there.", not_shown="What a stronger attack tells."
        ),
        numbers=tuple(numbers),
        alarms=(
            Alarm(name="over-forgetting", raised=alarmed, told=over),
            Alarm(name="no-op", raised=None, told="There were no weights to compare."),
        ),
        warnings=("16 models are few: the interval is wide.",),
        cost={"told": "trains models", "models": 48, "seconds_by_part": {"ensemble": 75.0, "attacks": 0.5}},
        roc=tuple(roc),
        margins=tuple(margins),
        klom=tuple(klom),
        settings={"references": 4},
        provenance={"time": "2026-01-04T00:00:00+00:00"},
    )
    return audit.to_dict()


def save_run(
    folder: Path,
    result: Any,
    arrays: dict[str, Any] | None = None,
    certificate: Certificate | None = None,
    audit: Any = None,
) -> Path:
    """Write a run as a job does."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    np.savez(folder / "posteriors.npz", **(make_arrays(result) if arrays is None else arrays))
    if certificate is not None:
        certificate.write(folder / "certificate.json")
    if audit is not None:
        (folder / "audit.json").write_text(json.dumps(audit), encoding="utf-8")
    return folder


def without_oracle(result: dict[str, Any]) -> dict[str, Any]:
    """The same run where no oracle, no retrained model and no chain were there."""
    table = result["samples"]
    scores = {
        "score": "confidence",
        "score_before": table["confidence_before"],
        "score_after": table["confidence_after"],
    }
    sure, apart = result["forget_confidence"] | {"retrained": None}, result["separation"] | {"retrained": None}
    gone = dict.fromkeys(["fr", "cfr", "oracle", "retrain", "speedup", "chain", "cleaning", "job"])
    return result | gone | {
        "samples": table | scores | {"hash": None},
        "forget_confidence": sure,
        "separation": apart,
        "counts": result["counts"]
        | {"memorised_before": None, "memorised_after": None, "kept_judged": 0, "kept_members_before": 15},
    }  # fmt: skip


def bare(result: dict[str, Any]) -> dict[str, Any]:
    """The same run with nothing but the model and the samples to forget."""
    less = without_oracle(result) | dict.fromkeys(["separation", "accuracy_before", "accuracy_after", "by_class"])
    counts = less["counts"] | {"test": 0, "reference": 0, "retain": 0, "train": None}
    return less | {
        "counts": counts,
        "history": [],
        "layers": [],
        "notes": [],
        "warnings": [],
        "stays": [],
        "facts": {},
        "iterations": 0,
    }


def not_memorised(result: dict[str, Any]) -> dict[str, Any]:
    """The same run where there was nothing to forget."""
    table = result["samples"]
    same = {f"{name}_after": table[f"{name}_before"] for name in ("class", "confidence")}
    same |= {"score_before": [0.2] * len(table["row"]), "score_after": [0.2] * len(table["row"])}
    nothing = {
        "stopped": "not-memorised",
        "fr": None,
        "cfr": 0.0,
        "iterations": 0,
        "evaluations": 0,
        "mask_density": 0.0,
    }
    layers = [layer | {"changed": 0} for layer in result["layers"]]
    return result | nothing | {"history": [], "layers": layers, "samples": table | same, "chain": None}
