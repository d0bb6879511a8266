"""Whole jobs: what is in the folder afterwards, what hangs together, and what never gets there."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from job_folders import (
    MARKER,
    NUMBER,
    SHADOW,
    build,
    digests,
    forsaken,
    result_of,
    run,
    table,
    world,
    write_job,
    write_texts,
    write_world,
)
from sklearn.metrics import roc_auc_score

from forsaken._keys import key_id, read_public_key, read_record_key, write_record_key, write_signing_keys
from forsaken.cli.exits import Exit
from forsaken.data.readers import read_records
from forsaken.data.record_hashes import record_hashes
from forsaken.errors import CertificateError, ForsakenError, OracleError, OutputError, SettingsError
from forsaken.jobs import audit as audit_place
from forsaken.jobs.certificate import Certificate, file_hash
from forsaken.oracles.shadow import ShadowOracle
from forsaken.unlearning.forsaken.mask import Mask

SETS = world().sets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_world(tmp_path / "job")


def certificate(folder: Path) -> Certificate:
    return Certificate.read(folder / "certificate.json")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_everything_the_folder_holds_and_nothing_else_is_touched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    job = write_job(folder)
    before = digests(folder.parent)
    run(job)
    found = digests(folder.parent)
    assert {name: found[name] for name in before} == before
    assert set(found) - set(before) == {
        f"job/forgotten/{name}"
        for name in (
            "certificate.json",
            "cleaned.parquet",
            "model.safetensors",
            "posteriors.npz",
            "records.key",
            "result.json",
        )
    }
    assert stat.S_IMODE((folder / "forgotten" / "records.key").stat().st_mode) == 0o600


def test_the_same_seed_gives_the_same_weights(folder: Path) -> None:
    for at, seed in enumerate((0, 0, 1)):
        run(write_job(folder, method={"seed": seed}), out=folder / f"out{at}")
    found = [file_hash(folder / f"out{at}" / "model.safetensors") for at in range(3)]
    assert found[0] == found[1] != found[2]


USUAL = {"iterations": None}  # the default settings: the world's own jobs take fewer iterations


NORMED = """
import torch
from torch import nn


def wide():
    return nn.Sequential(nn.Linear(12, 800), nn.ReLU(), nn.Linear(800, 4))


def net():
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside, self.last = nn.LSTM(3, 64, batch_first=True), nn.Linear(64, 4)

    def forward(self, rows):
        return self.last(self.inside(rows.reshape(-1, 4, 3))[0][:, -1])

"""


def learn(folder: Path, factory: str) -> None:
    """Put another network in the place of the world's, and let it learn the same."""
    (folder / "model.py").write_text(NORMED)
    names: dict[str, Any] = {}
    exec(NORMED, names)
    torch.manual_seed(0)
    network = names[factory]()
    x, y = (torch.from_numpy(part) for part in SETS["train"])
    optimiser = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(250):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(network(x), y).backward()
        optimiser.step()
    safetensors.torch.save_file(network.state_dict(), folder / "model.safetensors")


def test_without_references_the_curvature_of_the_training_data_holds_the_other_answers(folder: Path) -> None:
    learn(folder, "wide")
    found = run(write_job(folder, method=USUAL, model={"factory": "model:wide"}))
    assert found["facts"]["optimiser"] == "gauss-newton"
    assert found["facts"]["target"] == "class-mean"
    assert not [note for note in found["notes"] if "not measured" in note]
    told = forsaken("unlearn", folder / "forsaken.toml", "--dry-run", "--json")
    assert told.code == 0, told.out
    assert json.loads(told.out)["memorised"] is True


@pytest.mark.parametrize(
    "changes",
    [
        {"method": {"iterations": 12}},  # a setting of the method with samples asks for it
        {"method": USUAL | {"penalty": 1e-4}},
        {"method": USUAL | {"optimiser": "owlqn"}},
        {"method": USUAL | {"target": "uniform"}},
        {"method": USUAL, "data": {"train": None, "retain": "kept.parquet"}},  # nothing to measure it on
    ],
)
def test_samples_hold_the_other_answers_where_the_job_asks_for_it_or_has_no_training_data(
    folder: Path, changes: dict[str, Any]
) -> None:
    learn(folder, "wide")
    found = run(write_job(folder, **changes, model={"factory": "model:wide"}))
    assert "penalty" in found["facts"]


@pytest.mark.parametrize(
    ("factory", "method", "why"),
    [
        ("net", {}, "the model has few weights for what it has learnt"),
        ("wide", {"parameters": ["2.*"]}, "the model has few weights for what it has learnt"),  # that may change
        ("Recurrent", {}, "it would take a pass for each row"),
    ],
)
def test_where_no_curvature_can_be_had_samples_hold_the_answers_and_a_note_says_so(
    folder: Path, factory: str, method: dict[str, Any], why: str
) -> None:
    learn(folder, factory)
    job = write_job(
        folder, model={"factory": f"model:{factory}"}, method=USUAL | method, output={"allow": ["accuracy-loss"]}
    )
    found = run(job)
    assert "penalty" in found["facts"]
    assert any(f"was not measured ({why})" in note for note in found["notes"])


def test_a_full_audit_repeats_what_the_run_did_and_not_what_the_job_would_do_now(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn(folder, "wide")
    recipe = {"epochs": 2, "batch_size": 32, "learning_rate": 1e-2}
    job = write_job(
        folder,
        model={"factory": "model:wide"},
        method=USUAL,
        output={"allow": ["accuracy-loss"]},
        audit={"profile": "full", "models": 4, "recipe": recipe},
    )
    found, out, told = run(job), folder / "forgotten", list[bool]()
    assert found["facts"]["optimiser"] == "gauss-newton"

    def watched(*args: Any, **keywords: Any) -> Any:
        told.append(keywords["curvature"])
        return plain(*args, **keywords)

    plain = audit_place.audit
    monkeypatch.setattr(audit_place, "audit", watched)
    assert forsaken("audit", job).code in (0, 4)
    content = json.loads((out / "result.json").read_bytes())
    del content["facts"]["optimiser"]  # as a run without a curvature writes it
    (out / "result.json").write_text(json.dumps(content))
    forsaken("audit", job)
    (out / "result.json").unlink()
    forsaken("audit", job)
    assert told == [True, False, True]


def test_a_small_network_goes_by_the_curvature_where_the_job_says_so(folder: Path) -> None:
    found = run(write_job(folder, method=USUAL | {"optimiser": "gauss-newton"}))
    assert found["facts"]["optimiser"] == "gauss-newton"
    assert found["seconds"] > 0


def test_a_curvature_that_is_asked_for_needs_training_data(folder: Path) -> None:
    job = write_job(
        folder, method=USUAL | {"optimiser": "gauss-newton"}, data={"train": None, "retain": "kept.parquet"}
    )
    ended = forsaken("unlearn", job)
    assert ended.code == 2
    assert "name all training data in [data] train" in " ".join(ended.err.split())
    assert not (folder / "forgotten").exists()


def test_the_certificate_speaks_of_these_weights_and_records(folder: Path) -> None:
    found = run(write_job(folder))
    out, told = folder / "forgotten", certificate(folder / "forgotten")
    assert told.weights.old.sha256 == file_hash(folder / "model.safetensors")
    assert told.weights.new.sha256 == file_hash(out / "model.safetensors")
    assert told.weights.new.format == "safetensors"
    assert told.records.count == 12
    key = read_record_key(out / "records.key")
    hashes = record_hashes(read_records(folder / "forget.parquet"), key)
    assert sorted(told.records.hmac_sha256) == sorted(hashes)
    assert found["samples"]["hash"] == [text[:12] for text in hashes]
    assert result_of(out) == found
    assert told.signature is None
    checked = forsaken(
        "verify", out / "certificate.json", "--weights", out / "model.safetensors",
        "--records", folder / "forget.parquet", "--record-key", out / "records.key", "--any-signer",
    )  # fmt: skip
    assert checked.code == Exit.NOT_SHOWN, checked.out
    old = world().states["model"]
    new = safetensors.torch.load_file(folder / "forgotten" / "model.safetensors")
    changed = {name: int((new[name] != old[name]).sum()) for name in old}
    assert {layer["name"]: layer["changed"] for layer in found["layers"]} == changed
    assert {layer["name"]: layer["total"] for layer in found["layers"]} == {name: old[name].numel() for name in old}
    total = sum(tensor.numel() for tensor in old.values())
    assert found["mask_density"] == pytest.approx(sum(changed.values()) / total)


def test_a_key_of_the_user_is_used_and_not_copied(folder: Path) -> None:
    write_record_key(folder / "own.key", bytes(range(32)))
    found = run(write_job(folder, output={"record_key": "own.key"}))
    assert "records.key" not in names(folder / "forgotten")
    hashes = record_hashes(read_records(folder / "forget.parquet"), bytes(range(32)))
    assert found["samples"]["hash"] == [text[:12] for text in hashes]
    (folder / "own.key").chmod(0o644)
    found = run(write_job(folder, output={"record_key": "own.key"}), force=True)
    assert any("own.key" in warning for warning in found["warnings"])


def test_a_signature(folder: Path) -> None:
    private, public = write_signing_keys(folder / "signing.pem", Ed25519PrivateKey.generate())
    run(write_job(folder, output={"signing_key": "signing.pem"}))
    out = folder / "forgotten"
    assert certificate(out).check_signature(read_public_key(public)) == "valid"
    told = forsaken("verify", out / "certificate.json", "--weights", out / "model.safetensors", "--public-key", public)
    assert told.code == Exit.NOT_SHOWN, told.err
    assert private.read_bytes().splitlines()[1] not in (out / "certificate.json").read_bytes()


def unseen(folder: Path) -> dict[str, Any]:
    """Strangers that the model never saw, and of which it is less sure than of other strangers."""
    inputs, _ = SETS["reference"]
    model = build()
    model.load_state_dict(world().states["model"])
    order = np.argsort(model(torch.from_numpy(inputs)).softmax(1).max(1).values.detach().numpy())
    for name, rows in (("forget", order[:20]), ("reference", order[20:])):
        np.savez(folder / f"{name}.npz", inputs=inputs[rows])
    return {"forget": "forget.npz", "reference": "reference.npz", "train": None}


HARDLY = {"penalty_share": 0.99, "iterations": 1}
IDLE = {"name": "do-nothing", "iterations": None}
RETRAINED = {"retrained": "retrained.safetensors"}


@pytest.mark.parametrize(
    ("job", "code", "says"),
    [
        ({"method": IDLE}, Exit.NOT_SHOWN, "not shown: The method do-nothing changed no weight"),
        ({"method": IDLE, "oracle": RETRAINED}, Exit.FAILED, "failed: The method do-nothing changed no weight"),
        ({"data": unseen}, Exit.NOT_SHOWN, "not shown: The method forsaken changed no weight"),
        (
            {"method": HARDLY},
            Exit.NOT_SHOWN,
            "not shown: The samples hardly came nearer to the method's own targets: 100% of the distance is left",
        ),
        (
            {"method": HARDLY, "oracle": RETRAINED},
            Exit.FAILED,
            "failed: The model does not answer like a retrained model",
        ),
    ],
    ids=["do-nothing", "do-nothing beside a retrained model", "nothing to forget", "hardly", "hardly, beside one"],
)
def test_forgetting_that_did_not_happen_is_not_certified(
    folder: Path, job: dict[str, Any], code: Exit, says: str
) -> None:
    """The certificate says so in its first line, verify repeats it, and its exit code tells it apart."""
    _, public = write_signing_keys(folder / "signing.pem", Ed25519PrivateKey.generate())
    changes = job | ({"data": job["data"](folder)} if "data" in job else {})
    run(write_job(folder, **changes, output={"signing_key": "signing.pem"}))
    out = folder / "forgotten"
    told = certificate(out)
    assert told.verdict is not None
    assert f"{told.verdict.word}: {told.verdict.line}".startswith(says)
    assert ("how a model that never saw the records" in told.not_measured[0]) is ("oracle" not in job)
    assert told.not_measured[-1].startswith("whether attacks can tell the records")
    if "no weight" in says:
        assert told.weights.new.sha256 == told.weights.old.sha256
    words = ("verify", out / "certificate.json", "--weights", out / "model.safetensors", "--public-key", public)
    ended = forsaken(*words)
    assert ended.code == code
    assert ended.out.startswith(f"The certificate says: {says}")
    assert "had to be" not in ended.out
    found = forsaken(*words, "--json")
    assert (found.code, found.json["forgetting"], found.json["line"]) == (code, told.verdict.word, told.verdict.line)


def test_a_bad_key_is_found_before_the_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forsaken.jobs.run.unlearn_prepared", lambda *_: pytest.fail("the work began"))
    for name, key in (("signing_key", "signing.pem"), ("record_key", "records.key")):
        (folder / key).write_text("no key")
        with pytest.raises(SettingsError, match=key.replace(".", r"\.")):
            run(write_job(folder, output={name: key}))
        assert not (folder / "forgotten").exists()


def test_a_mask_is_written_only_when_it_is_asked_for(folder: Path) -> None:
    run(write_job(folder))
    assert "mask.safetensors" not in names(folder / "forgotten")
    assert certificate(folder / "forgotten").mask.kept is False
    run(write_job(folder, output={"mask": True}), force=True)
    mask = Mask.load(folder / "forgotten" / "mask.safetensors")
    assert certificate(folder / "forgotten").mask.kept is True
    assert mask.revertible
    run(write_job(folder), force=True)
    assert "mask.safetensors" not in names(folder / "forgotten"), "the mask of the run before can restore the memory"


def test_a_mask_and_weights_of_one_name(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "mask.safetensors")
    with pytest.raises(OutputError, match=r"mask\.safetensors"):
        run(write_job(folder, model={"weights": "mask.safetensors"}, output={"mask": True}))


def test_the_key_of_an_earlier_run_is_not_lost(folder: Path) -> None:
    """Without it the hashes of a certificate that was handed out could never be checked again."""
    job = write_job(folder)
    assert forsaken("unlearn", job).code == 0
    key = (folder / "forgotten" / "records.key").read_bytes()
    assert forsaken("unlearn", job, "--force").code == 0
    assert (folder / "forgotten" / "records.key").read_bytes() == key


# --- the numbers, each against a computation of its own on the models as they lie on the disk ------------------------


def answers(path: Path, inputs: Any) -> Any:
    """Posteriors of the weights in a file, computed without the package."""
    model = build().double()
    model.load_state_dict(safetensors.torch.load_file(path))
    with torch.no_grad():
        values = model(torch.from_numpy(inputs).double()).numpy()
    powers = np.exp(values - values.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def seen_by(folder: Path, seed: int = 0) -> ShadowOracle:
    inside, outside = (answers(folder / "shadow.safetensors", SETS[name][0]) for name in ("members", "nonmembers"))
    return ShadowOracle.fit_posteriors(inside, outside, seed=seed)


def files(folder: Path) -> dict[str, Path]:
    return {
        "before": folder / "model.safetensors",
        "after": folder / "forgotten" / "model.safetensors",
        "retrained": folder / "retrained.safetensors",
    }


def test_every_number_is_what_the_models_on_the_disk_say(folder: Path) -> None:
    found = run(write_job(folder, oracle=SHADOW | {"retrained": "retrained.safetensors"}, data={"retain": None}))
    oracle = seen_by(folder)
    rows = {name: answers(path, SETS["forget"][0]) for name, path in files(folder).items()}
    others = {name: answers(path, SETS["reference"][0]) for name, path in files(folder).items()}
    tests = {name: answers(path, SETS["test"][0]) for name, path in files(folder).items()}
    truth = SETS["test"][1]
    member = {name: oracle.score_posteriors(part) > 0.5 for name, part in rows.items()}

    for name in files(folder):
        assert found["forget_confidence"][name] == pytest.approx(rows[name].max(1).mean(), abs=1e-5)
        scores = np.concatenate([rows[name].max(1), others[name].max(1)])
        area = roc_auc_score(np.repeat([1, 0], [len(rows[name]), len(others[name])]), scores)
        assert found["separation"][name] == pytest.approx(area, abs=1e-3)
    assert (found["separation"]["against"], found["separation"]["n"]) == ("reference", 60)

    known = member["before"].sum()
    assert found["counts"]["memorised_before"] == known > 0
    for name, told in (("after", found["fr"]), ("retrained", found["retrain"]["fr"])):
        assert told == pytest.approx((known - member[name].sum()) / known)
    right = {name: float(np.mean(part.argmax(1) == truth)) for name, part in tests.items()}
    assert found["accuracy_before"] == right["before"]
    assert found["accuracy_after"] == right["after"]
    assert found["retrain"]["accuracy"] == right["retrained"]
    assert found["by_class"]["support"] == np.bincount(truth, minlength=4).tolist()
    for number in range(4):
        here = truth == number
        for name in ("before", "after"):
            share = float(np.mean(tests[name][here].argmax(1) == number))
            assert found["by_class"][name][number] == pytest.approx(share)

    samples = found["samples"]
    assert samples["score"] == "oracle"
    assert samples["class_after"] == rows["after"].argmax(1).tolist()
    assert samples["confidence_before"] == pytest.approx(rows["before"].max(1).tolist(), abs=1e-5)
    assert [score > 0.5 for score in samples["score_after"]] == member["after"].tolist()


def test_the_posteriors_behind_the_pictures(folder: Path) -> None:
    run(write_job(folder, oracle={"retrained": "retrained.safetensors"}))
    with np.load(folder / "forgotten" / "posteriors.npz") as arrays:
        names = {f"{when}_{part}" for when in files(folder) for part in ("forget", "kept", "test", "reference")}
        assert set(arrays.files) == names
        for when, path in files(folder).items():
            largest = -np.sort(-answers(path, SETS["test"][0]), axis=1)[:, :3]
            np.testing.assert_allclose(arrays[f"{when}_test"], largest, atol=1e-5)


def test_what_is_kept_and_how_far_the_oracle_can_be_trusted(folder: Path) -> None:
    """Both go by what was neither forgotten nor retained."""
    data = {"retain": {"of": "train", "ids": list(range(30))}}
    found = run(write_job(folder, oracle=SHADOW, data=data))
    oracle, kept = seen_by(folder), SETS["train"][0][30:120]
    was, now = (oracle.score_posteriors(answers(files(folder)[name], kept)) > 0.5 for name in ("before", "after"))
    assert found["counts"]["kept_judged"] == 90
    assert found["cfr"] == pytest.approx((was.sum() - now.sum()) / was.sum())
    outside = oracle.score_posteriors(answers(files(folder)["before"], SETS["test"][0])) > 0.5
    told = found["oracle"]
    assert (told["members"], told["nonmembers"]) == (90, 80)
    assert told["recall"] == pytest.approx(was.mean())
    assert told["balanced_accuracy"] == pytest.approx((was.mean() + (~outside).mean()) / 2)
    oracle.save(folder / "oracle.json")
    again = run(write_job(folder, oracle={"file": "oracle.json"}, data=data), force=True)
    for name in ("fr", "cfr", "oracle"):
        assert found[name] == again[name], "an oracle from a file says what its shadow said"


def test_what_is_not_given_is_not_known(folder: Path) -> None:
    found = run(write_job(folder))
    assert (found["fr"], found["cfr"], found["oracle"], found["retrain"]) == (None, None, None, None)
    assert found["counts"]["memorised_before"] is None
    assert found["samples"]["score"] == "confidence"
    assert found["samples"]["score_before"] == found["samples"]["confidence_before"]
    method = {"target": "uniform", "iterations": 5}
    pq.write_table(table(SETS["test"][0]), folder / "unlabelled.parquet")
    found = run(write_job(folder, data={"reference": None, "test": "unlabelled.parquet"}, method=method), force=True)
    assert (found["separation"]["against"], found["separation"]["n"]) == ("test", 80), "the test set stands in"
    assert (found["accuracy_before"], found["by_class"], found["counts"]["test"]) == (None, None, 80)
    data = {"reference": None, "test": None, "train": None}
    found = run(write_job(folder, data=data, method=method), force=True)
    for name in ("separation", "accuracy_before", "accuracy_after", "by_class"):
        assert found[name] is None
    known = {"forget": 12, "reference": 0, "retain": 0, "test": 0, "kept_judged": 0}
    assert found["counts"] == dict.fromkeys(found["counts"]) | known


def test_oracles_that_cannot_judge(folder: Path) -> None:
    draw = np.random.default_rng(0)
    ShadowOracle.fit_posteriors(*(draw.dirichlet(np.ones(7), size=30) for _ in range(2))).save(folder / "oracle.json")
    with pytest.raises(SettingsError, match="shadow model had 7 classes, the model has 4"):
        run(write_job(folder, oracle={"file": "oracle.json"}))
    for content in (b"", b"[1]", b'{"format": "forsaken.shadow-oracle"}', b"\xff"):
        (folder / "oracle.json").write_bytes(content)
        with pytest.raises(OracleError, match=r"oracle\.json"):
            run(write_job(folder, oracle={"file": "oracle.json"}))
    assert not (folder / "forgotten").exists()


# --- one request after another ---------------------------------------------------------------------------------------


def three(folder: Path, **limits: float) -> list[dict[str, Any]]:
    found, weights, train = [], "model.safetensors", "train.parquet"
    for at, ids in enumerate((range(1120, 1124), range(1124, 1128), range(1128, 1132)), start=1):
        data = {"id": "id", "train": train, "forget": {"of": "train", "ids": list(ids)}}
        output = {"folder": f"request{at}"}
        found.append(run(write_job(folder, data=data, model={"weights": weights}, output=output, chain=limits)))
        weights, train = f"request{at}/model.safetensors", f"request{at}/cleaned.parquet"
    return found


def test_a_chain_of_three_requests(folder: Path) -> None:
    found = three(folder)
    last = found[-1]["chain"]
    assert [link["number"] for link in last["links"]] == [1, 2, 3]
    assert [link["forgotten"] for link in last["links"]] == [4, 4, 4]
    assert [link["certificate"] for link in last["links"]] == [
        certificate(folder / "request1").sha256,
        certificate(folder / "request2").sha256,
        None,
    ]
    assert last["drift"] == pytest.approx(sum(each["facts"]["drift"] for each in found))
    assert last["accuracy_loss"] == pytest.approx(found[0]["accuracy_before"] - found[2]["accuracy_after"])
    assert last["advice"] == []
    assert not any("nobody checked who signed" in warning for warning in found[0]["warnings"])
    assert all(any("nobody checked who signed" in warning for warning in each["warnings"]) for each in found[1:])
    out = folder / "request3"
    previous = [word for at in (2, 1) for word in ("--previous", folder / f"request{at}" / "certificate.json")]
    told = forsaken(
        "verify", out / "certificate.json", "--weights", out / "model.safetensors", *previous, "--any-signer"
    )
    assert told.code == Exit.NOT_SHOWN, told.out


def test_the_own_file_of_records_verifies_whatever_the_order_of_its_columns(folder: Path) -> None:
    records = pq.read_table(folder / "forget.parquet")
    pq.write_table(records.select(records.column_names[::-1]), folder / "forget.parquet")
    run(write_job(folder, data={"id": "id"}))
    out = folder / "forgotten"
    words = ("--any-signer", "--records", folder / "forget.parquet", "--record-key", out / "records.key")
    told = forsaken("verify", out / "certificate.json", "--weights", out / "model.safetensors", *words)
    assert "all 12 are among the 12 forgotten" in told.out


def test_a_planted_certificate_is_not_signed_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, public = write_signing_keys(folder / "signing.pem", Ed25519PrivateKey.generate())
    run(write_job(folder, output={"folder": "request1"}))  # not signed: whoever can write there could have written it
    second: dict[str, Any] = {
        "model": {"weights": "request1/model.safetensors"},
        "output": {"folder": "request2", "signing_key": "signing.pem"},
    }
    with monkeypatch.context() as patch:
        patch.setattr("forsaken.jobs.run.prepare_job", lambda *_: pytest.fail("the work began"))
        with pytest.raises(CertificateError, match=r"request1/certificate.json of the request before is not signed"):
            run(write_job(folder, **second))
    assert forsaken("unlearn", write_job(folder, **second), "--dry-run").code == 2
    found = run(write_job(folder, **second, chain={"signers": "anyone"}))
    assert any("nobody checked who signed" in warning for warning in found["warnings"])
    assert certificate(folder / "request2").chain.links[0].signer is None
    third = write_job(
        folder,
        model={"weights": "request2/model.safetensors"},
        output={"folder": "request3", "signing_key": "other.pem"},
        chain={"signers": ["signing.pem.pub"]},
    )
    write_signing_keys(folder / "other.pem", Ed25519PrivateKey.generate())
    found = run(third)
    assert not any("nobody checked who signed" in warning for warning in found["warnings"])
    assert [link["signer"] for link in found["chain"]["links"]] == [None, key_id(read_public_key(public)), None]


def test_advice_to_retrain(folder: Path) -> None:
    found = three(folder, max_drift=1e-6)
    for each in found:
        assert len(each["chain"]["advice"]) == 1
        assert "retrain the model" in each["chain"]["advice"][0]


def test_a_certificate_of_other_weights_is_refused(folder: Path) -> None:
    three(folder)
    with pytest.raises(SettingsError, match="speaks of weights"):
        run(write_job(folder, chain={"previous": "request2/certificate.json"}))
    assert not (folder / "forgotten").exists()


# --- what never gets out ---------------------------------------------------------------------------------------------


def written(folder: Path) -> bytes:
    own = ("certificate.json", "result.json", "report.html", "posteriors.npz")
    return b"".join((folder / name).read_bytes() for name in own) + certificate(folder).payload


def test_no_text_of_a_forgotten_record_is_written_or_shown(tmp_path: Path) -> None:
    import skops.io
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    words, labels = write_texts(tmp_path)
    skops.io.dump(make_pipeline(TfidfVectorizer(), LogisticRegression(C=100)).fit(words, labels), tmp_path / "m.skops")
    model = {"weights": "m.skops", "factory": None}
    data = {"forget": {"of": "train", "ids": list(range(40, 46))}}
    job = write_job(tmp_path, model=model, data=data, method={"target": "uniform", "iterations": 5})
    for flags in ([], ["--json"]):
        ended = forsaken("unlearn", job, "--force", *flags)
        assert ended.code == 0
        for word in (MARKER, "Ingrid", words[41]):
            assert word not in ended.out + ended.err
            assert word.encode() not in written(tmp_path / "forgotten")
    assert MARKER in words[40], "or the test shows nothing"
    cleaned = pq.read_table(tmp_path / "forgotten" / "cleaned.parquet")["text"].to_pylist()
    assert not any(MARKER in text for text in cleaned)


def test_no_number_of_a_forgotten_record_is_written_or_shown(folder: Path) -> None:
    ended = forsaken("unlearn", write_job(folder), "--json")
    assert ended.code == 0
    number = np.float32(NUMBER)
    assert number in world().sets["forget"][0], "or the test shows nothing"
    for text in (str(NUMBER), str(float(number)), repr(float(number))[:8]):
        assert text not in ended.out + ended.err
        assert text.encode() not in written(folder / "forgotten")
    with np.load(folder / "forgotten" / "posteriors.npz") as arrays:
        assert all(array.max() <= 1 for array in arrays.values())
    state = safetensors.torch.load_file(folder / "forgotten" / "model.safetensors")
    assert not any(torch.any(tensor == float(number)) for tensor in state.values())


def test_ids_are_counted_and_not_kept(folder: Path) -> None:
    table = pq.read_table(folder / "train.parquet")
    who = [f"{MARKER} {at}" for at in range(table.num_rows)]
    pq.write_table(table.set_column(table.column_names.index("id"), "id", pa.array(who)), folder / "train.parquet")
    data = {"id": "id", "forget": {"of": "train", "ids": who[120:]}}
    ended = forsaken("unlearn", write_job(folder, data=data, output={"cleaned": "none"}), "--json")
    assert ended.code == 0
    assert MARKER not in ended.out + ended.err
    assert MARKER.encode() not in written(folder / "forgotten")
    assert result_of(folder / "forgotten")["job"]["data"]["forget"]["ids"] == 12


# --- settings and errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [{"iterations": 3, "stop": "none"}, {"iterations": None, "schedule": {"iterations": 3, "stop": "none"}}]
)
def test_settings_of_the_method_reach_it(folder: Path, given: dict[str, Any]) -> None:
    found = run(write_job(folder, method={**given, "parameters": ["2.*"]}))
    assert found["iterations"] == 3
    assert {layer["name"] for layer in found["layers"] if layer["changed"]} <= {"2.weight", "2.bias"}
    assert found["settings"]["iterations"] == 3
    assert found["target"]["target"] == "class-mean"
    assert len(found["history"]) == 3


def test_references_are_needed_and_the_dry_run_says_which(folder: Path) -> None:
    with pytest.raises(SettingsError, match=r"needs reference samples.*--dry-run"):
        run(write_job(folder, data={"reference": None}))
    assert not (folder / "forgotten").exists()


def test_a_retrained_model_of_other_classes(folder: Path) -> None:
    torch.manual_seed(0)
    (folder / "model.py").write_text(
        "from torch import nn\ncount = iter([4, 3])\n"
        "def net():\n    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))\n"
        "def forward(model, inputs):\n    return model(inputs)[:, : 3 if float(model[0].bias[0]) == 9.0 else 4]\n"
    )
    state = dict(world().states["retrained"])
    state["0.bias"] = torch.full_like(state["0.bias"], 9.0)
    safetensors.torch.save_file(state, folder / "retrained.safetensors")
    job = write_job(folder, model={"forward": "model:forward"}, oracle={"retrained": "retrained.safetensors"})
    with pytest.raises(SettingsError, match="retrained has other classes"):
        run(job)
    assert not (folder / "forgotten").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"data": {"forget": "none.parquet"}},
        {"data": {"reference": "none.parquet"}},
        {"model": {"weights": "none.safetensors"}},
        {"oracle": {"file": "none.json"}},
        {"oracle": {"retrained": "none.safetensors"}},
        {"output": {"record_key": "none.key"}},
        {"output": {"signing_key": "none.pem"}},
        {"chain": {"previous": "none.json"}},
        {"model": {"factory": "none:net"}},
        {"model": {"forward": "model:none"}},
        {"data": {"prepare": "none:prepare"}},
    ],
    ids=str,
)
def test_whatever_is_not_there_is_named(folder: Path, change: dict[str, Any]) -> None:
    before = digests(folder)
    with pytest.raises(ForsakenError, match="none"):
        run(write_job(folder, **change))
    after = digests(folder)
    assert {name for name in after if after[name] != before.get(name)} == {"forsaken.toml"}


def test_the_output_folder_among_the_data(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    (folder / "bert").mkdir()
    (folder / "bert" / "config.json").write_text("{}")
    with pytest.raises(OutputError, match="which the job reads"):
        run(write_job(folder, model={"weights": "bert", "factory": None}, output={"folder": "bert/out"}))
    assert names(folder / "bert") == {"config.json"}


@pytest.mark.parametrize("reads", ["model.safetensors", "forget.parquet", "cleaned.parquet", "result.json"])
def test_what_a_job_reads_is_not_overwritten_even_by_force(folder: Path, reads: str) -> None:
    """An output folder in which inputs lie under the names of results."""
    out = folder / "mixed"
    out.mkdir()
    source = {"model.safetensors": "model.safetensors"}.get(reads, "forget.parquet")
    (folder / source).rename(out / reads)
    changes: dict[str, Any] = {"data": {"forget": f"mixed/{reads}"}}
    if reads == "model.safetensors":
        changes = {"model": {"weights": f"mixed/{reads}"}}
    elif reads == "result.json":
        changes = {"data": {"forget": {"of": "train", "ids": f"mixed/{reads}"}}}
        (out / reads).write_text("\n".join(map(str, range(120, 132))))
    elif reads == "forget.parquet":
        changes |= {"output": {"cleaned": "none"}}
    content = (out / reads).read_bytes()
    try:
        run(write_job(folder, **changes), out=out, force=True)
    except OutputError as error:
        assert "is read by this job" in str(error)  # noqa: PT017 (only forget.parquet is no name of a result)
        assert names(out) == {reads}
    else:
        assert reads == "forget.parquet"
    assert (out / reads).read_bytes() == content


def test_the_result_is_plain_json(folder: Path) -> None:
    run(write_job(folder))
    text = (folder / "forgotten" / "result.json").read_text()

    def refuse(name: str) -> None:
        pytest.fail(f"{name} is no JSON")

    found = json.loads(text, parse_constant=refuse)
    assert (found["schema"], found["kind"], found["task"]) == (2, "forsaken.result", "job")
