"""What a model carries of forgotten records outside its weights leaves it, or is listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import skops.io
import torch
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfTransformer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from torch import nn

from forsaken.data.samples import Samples
from forsaken.errors import SettingsError
from forsaken.jobs.audit import plan_audit, read_inputs
from forsaken.jobs.certificate import Certificate
from forsaken.jobs.configuration import read_job
from forsaken.models.logits import posteriors
from forsaken.report.words import left_to_do
from forsaken.result import Result
from tests.job_folders import CLASSES, WIDTH, forsaken, run, world, write_bert, write_job, write_world

SECRET = "zanzibarov"  # a word of a forgotten document alone
SKOPS = {"weights": "model.skops", "factory": None}
TOPICS = ("river bank water boat fish stream", "engine wheel motor brake road fuel")


def documents(count: int, seed: int, *more: str) -> tuple[list[str], list[int]]:
    draw = np.random.default_rng(seed)
    labels = draw.integers(2, size=count)
    return [" ".join([*draw.choice(TOPICS[label].split(), size=6), *more]) for label in labels], labels.tolist()


def write_documents(folder: Path, pipeline: Pipeline) -> Pipeline:
    """Texts of two topics; those to forget are mislabelled, and one has a word that no other document has."""
    folder.mkdir(exist_ok=True)
    kept, labels = documents(120, 1)
    gone, wrong = documents(8, 2, "meeting", SECRET)
    kept = [*kept, "a meeting on the river bank"]
    labels, wrong = [*labels, 0], [1 - label for label in wrong]
    sets = {
        "train": ([*kept, *gone], [*labels, *wrong]),
        "forget": (gone, wrong),
        "test": documents(60, 3),
        "reference": documents(60, 4, "letter"),
    }
    for name, (texts, numbers) in sets.items():
        pq.write_table(pa.table({"text": texts, "label": numbers}), folder / f"{name}.parquet")
    skops.io.dump(pipeline.fit(*sets["train"]), folder / "model.skops")
    return pipeline


def logistic() -> LogisticRegression:
    return LogisticRegression(C=100.0, max_iter=2000)


def outcome(folder: Path, **changes: Any) -> tuple[Any, Pipeline]:
    changes["output"] = {"allow": ["accuracy-loss"], **changes.get("output", {})}  # small models lose a few points
    found = run(write_job(folder, model=SKOPS, **changes))
    written = folder / "forgotten" / "model.skops"
    return found, skops.io.load(written, trusted=skops.io.get_untrusted_types(file=written))


@pytest.mark.parametrize(
    "steps",
    [
        (TfidfVectorizer(),),
        (CountVectorizer(ngram_range=(1, 2)),),
        (CountVectorizer(), TfidfTransformer(), Normalizer()),
        (CountVectorizer(analyzer="char_wb", ngram_range=(2, 4)),),
    ],
    ids=["tf-idf", "bigrams", "counts, tf-idf", "letters"],
)
def test_words_of_forgotten_documents_alone_leave_the_pipeline(tmp_path: Path, steps: tuple[Any, ...]) -> None:
    old = write_documents(tmp_path, make_pipeline(*steps, logistic()))
    found, new = outcome(tmp_path)
    assert any(SECRET[:4] in word for word in old[0].vocabulary_)
    forgotten = pq.read_table(tmp_path / "forget.parquet")["text"].to_pylist()
    kept = pq.read_table(tmp_path / "train.parquet")["text"].to_pylist()[: -len(forgotten)]
    # By another way than the tool's: fit the same vectoriser on the two parts and compare the words.
    theirs, others = (set(type(old[0])(**old[0].get_params()).fit(part).vocabulary_) for part in (forgotten, kept))
    alone = theirs - others
    assert alone
    assert alone.isdisjoint(new[0].vocabulary_)
    assert set(old[0].vocabulary_) - set(new[0].vocabulary_) == alone
    assert new[0].transform([SECRET.upper(), SECRET]).nnz == 0 or steps[0].analyzer != "word"
    columns = [old[0].vocabulary_[word] for word in alone]
    assert np.all(new[-1].coef_[:, columns] == 0)
    assert np.any(old[-1].coef_[:, columns] != 0)
    assert new[:-1].transform(forgotten).shape == old[:-1].transform(forgotten).shape
    entries = f"{len(alone):,} vocabulary entr"
    assert any(note.startswith(entries) for note in found["notes"])
    everything = b"".join(path.read_bytes() for path in (tmp_path / "forgotten").glob("*.json"))
    assert SECRET.encode() not in everything
    assert SECRET.encode() not in (tmp_path / "forgotten" / "model.skops").read_bytes()


def test_the_numbers_after_are_those_of_the_new_pipeline(tmp_path: Path) -> None:
    old = write_documents(tmp_path, make_pipeline(TfidfVectorizer(), logistic()))
    found, new = outcome(tmp_path)
    texts = pq.read_table(tmp_path / "forget.parquet")["text"].to_pylist()
    assert found["forget_confidence"]["before"] == pytest.approx(old.predict_proba(texts).max(1).mean())
    assert found["forget_confidence"]["after"] == pytest.approx(new.predict_proba(texts).max(1).mean())
    assert found["stopped"] != "not-memorised"
    test = pq.read_table(tmp_path / "test.parquet")
    assert found["accuracy_after"] == new.score(test["text"].to_pylist(), test["label"].to_pylist())


def test_the_audit_asks_the_new_pipeline(tmp_path: Path) -> None:
    write_documents(tmp_path, make_pipeline(TfidfVectorizer(), logistic()))
    _, new = outcome(tmp_path)
    read = read_inputs(plan_audit(read_job(tmp_path / "forsaken.toml"), tmp_path / "forgotten"))
    texts = pq.read_table(tmp_path / "forget.parquet")["text"].to_pylist()
    answers = posteriors(read.after, Samples(read.sets.forget.inputs))
    np.testing.assert_allclose(answers, new.predict_proba(texts), atol=1e-12)
    assert forsaken("audit", tmp_path / "forsaken.toml").code != 1


def write_own_words(folder: Path) -> None:
    """Texts to forget that the model knows by words of their own alone: without these nothing is left to forget."""
    draw = np.random.default_rng(4)
    words = [f"w{at}" for at in range(40)]

    def text(label: int, count: int = 12) -> str:
        return " ".join(draw.choice(words[:25] if label else words[15:], count))

    labels = draw.integers(2, size=200)
    texts = [text(label) for label in labels]
    for at in range(12):
        texts[at] = f"{text(labels[at], 3)} {' '.join(f'own{labels[at]}word{each}' for each in range(6))}"
    test, other = draw.integers(2, size=100), draw.integers(2, size=60)
    sets = {
        "train": (texts, labels),
        "forget": (texts[:12], labels[:12]),
        "test": ([text(label) for label in test], test),
        "reference": ([text(label, 3) for label in other], other),
    }
    for name, (content, numbers) in sets.items():
        pq.write_table(pa.table({"text": content, "label": numbers}), folder / f"{name}.parquet")
    pipeline = make_pipeline(CountVectorizer(token_pattern=r"\S+"), LogisticRegression(max_iter=500))
    skops.io.dump(pipeline.fit(texts, labels), folder / "model.skops")


def test_a_removal_that_was_enough_is_told_as_such(tmp_path: Path) -> None:
    write_own_words(tmp_path)
    found, _ = outcome(tmp_path)
    assert (found["stopped"], found["mask_density"]) == ("calibrated", 0)
    line = found["verdict"]["line"]
    assert "changed no weight" not in line
    assert line.startswith("Once their vocabulary entries were gone, the samples are not memorised by the method's own")


def test_the_audit_asks_the_old_pipeline_what_was_before(tmp_path: Path) -> None:
    write_own_words(tmp_path)
    found, _ = outcome(tmp_path)
    ended = forsaken("audit", tmp_path / "forsaken.toml", "--json")
    assert ended.code == 0, ended.out
    audit = ended.json
    sure = next(each for each in audit["numbers"] if each["name"] == "forget_confidence")
    assert (sure["before"], sure["value"]) == pytest.approx(
        (found["forget_confidence"]["before"], found["forget_confidence"]["after"]), abs=1e-6
    )
    assert sure["before"] - sure["value"] > 0.1
    accuracy = next(each for each in audit["numbers"] if each["name"] == "accuracy")
    assert accuracy["before"] == found["accuracy_before"]
    assert not [alarm["name"] for alarm in audit["alarms"] if alarm["raised"]]


def test_what_stays_is_listed_in_the_result_the_report_and_the_certificate(tmp_path: Path) -> None:
    write_documents(tmp_path, make_pipeline(TfidfVectorizer(), logistic()))
    found, _ = outcome(tmp_path)
    (listed,) = found["stays"]
    assert "tfidfvectorizer (TfidfVectorizer)" in listed
    assert "idf_ stays as fitted" in listed
    result = Result.read(tmp_path / "forgotten" / "result.json")
    certificate = Certificate.read(tmp_path / "forgotten" / "certificate.json")
    assert listed in left_to_do(result, certificate)
    assert certificate.stays == (listed,)


def test_without_training_data_the_vocabulary_is_listed(tmp_path: Path) -> None:
    old = write_documents(tmp_path, make_pipeline(TfidfVectorizer(), logistic()))
    found, new = outcome(tmp_path, data={"train": None})
    assert new[0].vocabulary_ == old[0].vocabulary_
    assert "idf_, vocabulary_ stay as fitted" in found["stays"][0]


@pytest.mark.parametrize("changes", [{"output": {"mask": True}}], ids=["mask"])
def test_words_that_must_stay_are_counted(tmp_path: Path, changes: Any) -> None:
    old = write_documents(tmp_path, make_pipeline(CountVectorizer(), logistic()))
    found, new = outcome(tmp_path, **changes)
    assert new[0].vocabulary_ == old[0].vocabulary_
    assert found["stays"][0].startswith("1 vocabulary entry that occurs in forgotten documents alone stays")


def test_a_part_of_the_training_data_does_not_tell_which_words_are_whose(tmp_path: Path) -> None:
    old = write_documents(tmp_path, make_pipeline(CountVectorizer(), logistic()))
    _, new = outcome(
        tmp_path,
        data={"train": {"path": "train.parquet", "count": 60}},
        output={"allow": ["accuracy-loss", "unknown-records"]},
    )
    assert new[0].vocabulary_ == old[0].vocabulary_


def test_a_step_that_mixes_columns_loses_the_word_all_the_same(tmp_path: Path) -> None:
    steps = (TfidfVectorizer(), TruncatedSVD(8, random_state=0))
    write_documents(tmp_path, make_pipeline(*steps, logistic()))
    found, new = outcome(tmp_path)
    assert SECRET not in new[0].vocabulary_
    assert any("truncatedsvd (TruncatedSVD)" in text and "components_" in text for text in found["stays"])


def test_scalers_are_listed_and_steps_that_learn_nothing_are_not(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    inputs, labels = world().sets["train"]
    skops.io.dump(make_pipeline(StandardScaler(), logistic()).fit(inputs, labels), folder / "model.skops")
    found, _ = outcome(folder)
    assert "standardscaler (StandardScaler)" in found["stays"][0]
    assert "mean_, scale_, var_ stay as fitted" in found["stays"][0]
    texts = tmp_path / "texts"
    write_documents(texts, make_pipeline(HashingVectorizer(n_features=64), logistic()))
    assert outcome(texts)[0]["stays"] == []


def test_a_tokenizer_is_listed(tmp_path: Path) -> None:
    found = run(write_bert(tmp_path))
    assert [text for text in found["stays"] if "tokenizer" in text]


# --- batch-norm ------------------------------------------------------------------------------------------------------

NORMED = """
from torch import nn


def net():
    return nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
"""


def write_normed(folder: Path) -> dict[str, torch.Tensor]:
    """The tests' network with batch-norm, trained in the order of the file: what is to be forgotten comes last."""
    write_world(folder)
    (folder / "normed.py").write_text(NORMED)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, CLASSES))
    inputs, labels = (torch.from_numpy(each) for each in world().sets["train"])
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(200):
        for rows in torch.arange(len(inputs)).split(44):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimiser.step()
    safetensors.torch.save_file(model.state_dict(), folder / "normed.safetensors")
    return {name: value.clone() for name, value in model.state_dict().items()}


NETWORK = {"weights": "normed.safetensors", "factory": "normed:net"}


def test_statistics_that_saw_the_records_are_listed(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    before = write_normed(folder)
    found = run(write_job(folder, model=NETWORK))
    (listed,) = found["stays"]
    assert listed.startswith("The running statistics of 1 batch-norm layer were measured on batches with the forgotten")
    assert 'batch_norm = "recompute"' in listed
    after = safetensors.torch.load_file(folder / "forgotten" / "normed.safetensors")
    assert torch.equal(after["1.running_mean"], before["1.running_mean"])


def test_statistics_are_measured_on_the_kept_rows(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    before = write_normed(folder)
    found = run(write_job(folder, model=NETWORK, output={"batch_norm": "recompute"}))
    assert found["stays"] == []
    words = "the running statistics of 1 batch-norm layer were measured anew on 120 kept training rows"
    assert words in found["notes"]
    after = safetensors.torch.load_file(folder / "forgotten" / "normed.safetensors")
    kept = torch.from_numpy(world().sets["kept"][0])
    inside = nn.functional.linear(kept, after["0.weight"], after["0.bias"]).double()
    torch.testing.assert_close(after["1.running_mean"], inside.mean(0).float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(after["1.running_var"], inside.var(0).float(), rtol=1e-4, atol=1e-5)
    assert not torch.equal(after["1.running_mean"], before["1.running_mean"])
    assert found["accuracy_after"] > found["accuracy_before"] - 0.1


def test_what_recompute_cannot_go_with(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    write_normed(folder)
    with pytest.raises(SettingsError, match="measures on the kept rows of train"):
        run(write_job(folder, model=NETWORK, data={"train": None}, output={"batch_norm": "recompute"}))
    with pytest.raises(SettingsError, match="no mask leads back"):
        run(write_job(folder, model=NETWORK, output={"batch_norm": "recompute", "mask": True}))


def test_the_terminal_tells_what_is_left_to_do(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    write_normed(folder)
    ended = forsaken("unlearn", write_job(folder, model=NETWORK))
    assert "left to do: The running statistics of 1 batch-norm layer" in ended.out
    page = (folder / "forgotten" / "report.html").read_text()
    assert "The running statistics of 1 batch-norm layer" in page
    assert json.loads((folder / "forgotten" / "result.json").read_bytes())["stays"]
