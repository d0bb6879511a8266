"""Hugging Face folders with a base: trained again, so that references and audits work; adapters as what may move."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from forsaken.errors import ModelError, SettingsError
from forsaken.jobs.audit import audit_job, plan_audit
from forsaken.jobs.code import user_code
from forsaken.jobs.configuration import read_job
from forsaken.jobs.formats import HuggingFaceFolder, load_model
from forsaken.jobs.references import fit_table, training_of
from forsaken.jobs.rows import Reader
from forsaken.jobs.run import prepare_job
from forsaken.jobs.sets import read_train
from forsaken.models.logits import called_plainly
from forsaken.models.train import Training, train
from forsaken.models.weights import fingerprint
from tests.job_folders import TOPICS, forsaken, run, write_bert, write_job, write_texts

transformers = pytest.importorskip("transformers")

RECIPE = {"epochs": 30, "batch_size": 8, "learning_rate": 3e-3}
MODEL = {"weights": "bert", "factory": None}
LOSSY = {"allow": ["accuracy-loss"]}  # a few samples, half of which two references never saw
BASED = {"weights": "bert", "factory": None, "base": "bert/config.json"}


def fitted(job: Path) -> Any:
    read = read_job(job)
    with user_code(read.folder):
        return fit_table(read)


def test_without_a_base_nothing_says_how_to_train(tmp_path: Path) -> None:
    job = write_bert(tmp_path, references={"folds": 2}, audit={"recipe": RECIPE})
    with pytest.raises(SettingsError, match="nothing says what it was trained from, expected base = "):
        fitted(job)


def test_references_of_a_bert_from_its_configuration(tmp_path: Path) -> None:
    job = write_bert(tmp_path, model=BASED, references={"folds": 2}, audit={"recipe": RECIPE}, output=LOSSY)
    learnt(job, tmp_path / "bert")
    facts = fitted(job)
    assert facts["trainings"] == 2
    found = run(job)
    assert found["facts"]["optimiser"] == "gauss-newton"
    assert found["target"]["target"] == "out-of-fold"
    assert found["forget_confidence"]["after"] != found["forget_confidence"]["before"]


@pytest.mark.parametrize(("profile", "models"), [("standard", 4), ("full", 4)])
def test_audits_of_a_bert(tmp_path: Path, profile: str, models: int) -> None:
    job = write_bert(tmp_path, model=BASED, audit={"recipe": RECIPE | {"epochs": 2}})
    run(job)
    read = read_job(job)
    with user_code(read.folder):
        found = audit_job(plan_audit(read, tmp_path / "forgotten", profile=profile, models=models))
    assert found.profile == profile


def test_a_base_with_weights_is_what_training_starts_from(tmp_path: Path) -> None:
    write_bert(tmp_path)
    base = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "bert")
    base.bert.save_pretrained(tmp_path / "base")  # the body alone, without the head
    loaded = HuggingFaceFolder(tmp_path / "bert", tmp_path / "base")
    torch.manual_seed(1)
    one = loaded.build().state_dict()
    torch.manual_seed(2)
    two = loaded.build().state_dict()
    own = loaded.model.state_dict()
    assert all(torch.equal(one[name], own[name]) for name in own if name.startswith("bert."))
    assert not torch.equal(one["classifier.weight"], two["classifier.weight"])  # a new head, by the seed
    assert loaded.build().config.id2label == dict(enumerate(TOPICS))


def test_a_base_of_another_shape(tmp_path: Path) -> None:
    write_bert(tmp_path)
    config = json.loads((tmp_path / "bert" / "config.json").read_bytes())
    (tmp_path / "other.json").write_text(json.dumps(config | {"hidden_size": 24, "num_attention_heads": 2}))
    with pytest.raises(ModelError, match="are not of one shape"):
        HuggingFaceFolder(tmp_path / "bert", tmp_path / "other.json").build()
    (tmp_path / "coded.json").write_text(json.dumps(config | {"auto_map": {"AutoConfig": "evil.Config"}}))
    with pytest.raises(ModelError, match="needs code of its own"):
        HuggingFaceFolder(tmp_path / "bert", tmp_path / "coded.json").build()


def test_a_base_belongs_to_a_folder(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"\[model\] base means nothing for weights that are no Hugging Face"):
        read_job(write_job(tmp_path, model={"base": "base"}))


# --- pictures --------------------------------------------------------------------------------------------------------


def write_vit(folder: Path, *, processor: bool = True) -> Path:
    """Bright and dark pictures in folders; a small ViT has learnt them, six of them under the wrong label."""
    draw, size = np.random.default_rng(0), 8
    for part, count in {"train": 30, "test": 20, "reference": 20}.items():
        for at in range(count):
            label = at % 2
            wrong = part == "train" and at < 6
            place = folder / part / ("bright" if label != wrong else "dark")
            place.mkdir(parents=True, exist_ok=True)
            shade = np.clip(draw.normal(180 if label else 70, 25, (size, size, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(shade).save(place / f"{at:02}.png")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=size,
        patch_size=4, id2label={0: "bright", 1: "dark"}, label2id={"bright": 0, "dark": 1},
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(config)
    model.save_pretrained(folder / "vit")
    if processor:
        made = transformers.ViTImageProcessor(size={"height": size, "width": size}, resample=2)
        made.save_pretrained(folder / "vit")
    return write_job(
        folder,
        model={"weights": "vit", "factory": None, "base": "vit/config.json"},
        data={
            "train": "train", "test": "test", "reference": "reference",
            "forget": {"of": "train", "ids": [f"{'dark' if at % 2 else 'bright'}/{at:02}.png" for at in range(6)]},
        },
        audit={"recipe": {"epochs": 60, "batch_size": 10, "learning_rate": 3e-3}},
        references={"folds": 2},
        output=LOSSY,
    )  # fmt: skip


def learnt(job: Path, folder: Path) -> None:
    """Train the model of a job as its recipe says, and put it in its folder."""
    read = read_job(job)
    loaded = load_model(read)
    samples, _, _ = read_train(read, loaded, Reader(read))
    training = training_of(read, loaded)
    assert isinstance(training, Training)
    build = called_plainly(training.build, samples, None)
    train(build, samples, training.recipe, seed=7).model.save_pretrained(folder)


@pytest.mark.parametrize("processor", [True, False], ids=["processor", "plain"])
def test_references_of_a_vit(tmp_path: Path, processor: bool) -> None:
    job = write_vit(tmp_path, processor=processor)
    learnt(job, tmp_path / "vit")
    ready = prepare_job(read_job(write_job_without_references(job)))
    inputs = ready.sets.forget.inputs
    assert inputs.shape == (6, 3, 8, 8)
    low, high = float(inputs.min()), float(inputs.max())
    assert (low < 0) == processor  # the processor's own range is -1 to 1, a plain picture's 0 to 1
    assert high <= 1
    fitted(job)
    found = run(job)
    assert found["classes"] == ["bright", "dark"]
    assert found["facts"]["optimiser"] == "gauss-newton"
    assert (tmp_path / "forgotten" / "vit" / "preprocessor_config.json").is_file() == processor
    before, after = (
        fingerprint(HuggingFaceFolder(each).model) for each in (tmp_path / "vit", tmp_path / "forgotten/vit")
    )
    assert before != after


def write_job_without_references(job: Path) -> Path:
    text = job.read_text().split("[references]")[0]
    other = job.with_name("plain.toml")
    other.write_text(text)
    return other


# --- LoRA ------------------------------------------------------------------------------------------------------------


def write_adapter(folder: Path, **changes: Any) -> Path:
    """The small BERT as a base, and an adapter of it that has learnt the texts."""
    peft = pytest.importorskip("peft", reason="the extra forsaken[peft] is not installed")
    words, labels = write_texts(folder)
    write_bert(folder / "made")
    shutil.move(folder / "made" / "bert", folder / "base")
    torch.manual_seed(3)
    config = transformers.BertConfig.from_pretrained(folder / "base")
    base = transformers.BertForSequenceClassification(config)  # a base that has not seen the texts
    base.save_pretrained(folder / "base")
    model = peft.get_peft_model(
        base, peft.LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=8, target_modules=["query", "value"])
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "base")
    batch = dict(tokenizer(words, padding=True, return_tensors="pt"))
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2)
    for _ in range(150):
        optimiser.zero_grad()
        model(**batch, labels=torch.tensor(labels)).loss.backward()
        optimiser.step()
    model.save_pretrained(folder / "adapter")
    tokenizer.save_pretrained(folder / "adapter")
    given = {"model": {"weights": "adapter", "factory": None, "base": "base"}} | changes
    return write_job(folder, **given)


def test_only_the_adapter_moves(tmp_path: Path) -> None:
    job = write_adapter(tmp_path)
    read = read_job(job)
    free = [name for name, p in load_model(read).model.named_parameters() if p.requires_grad]
    assert free
    assert all("lora_" in name or "classifier" in name for name in free)
    run(job)
    written = tmp_path / "forgotten" / "adapter"
    assert {path.name for path in written.glob("*.safetensors")} == {"adapter_model.safetensors"}
    old, new = (
        safetensors.torch.load_file(each / "adapter_model.safetensors") for each in (tmp_path / "adapter", written)
    )
    assert old.keys() == new.keys()
    assert any(not torch.equal(old[name], new[name]) for name in old)


def test_references_of_an_adapter(tmp_path: Path) -> None:
    job = write_adapter(tmp_path, references={"folds": 2}, audit={"recipe": RECIPE})
    fitted(job)
    found = run(job)
    assert found["facts"]["optimiser"] == "gauss-newton"
    assert all("lora_" in layer["name"] or "classifier" in layer["name"] for layer in found["layers"])


def test_an_adapter_without_its_base_or_of_another_kind(tmp_path: Path) -> None:
    job = write_adapter(tmp_path, model={"weights": "adapter", "factory": None})
    assert "holds an adapter alone; name the folder" in forsaken("unlearn", job).err
    settings = tmp_path / "adapter" / "adapter_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_bytes()) | {"peft_type": "PREFIX_TUNING"}))
    with pytest.raises(ModelError, match="expected a LoRA adapter"):
        HuggingFaceFolder(tmp_path / "adapter", tmp_path / "base")
