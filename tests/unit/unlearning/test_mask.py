"""A mask is exact: what it saves, applies and undoes is right to the last bit, or refused."""

from __future__ import annotations

import copy
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from conftest import Problem
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import forsaken
from forsaken import Mask
from forsaken.errors import ForsakenError, MaskError, OutputError
from forsaken.models.weights import fingerprint
from forsaken.unlearning.forsaken.mask import Entries

Change = Callable[[dict[str, str], dict[str, Tensor]], object]


@pytest.fixture(scope="module")
def result(problem: Problem) -> forsaken.Unlearned[nn.Module]:
    return forsaken.unlearn(
        problem.model, problem.forget[0], problem.reference, problem.retain, penalty_share=0.02, iterations=8
    )


@pytest.fixture
def mask(result: forsaken.Unlearned[nn.Module]) -> Mask:
    return result.mask


def same_tensors(ours: Tensor | None, theirs: Tensor | None) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and raw(ours) == raw(theirs)


def raw(tensor: Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


def same_masks(ours: Mask, theirs: Mask) -> bool:
    parts = [
        same_tensors(getattr(ours.entries[name], field), getattr(theirs.entries[name], field))
        for name in ours.entries
        for field in ("index", "mu", "original")
    ]
    about = [(mask.trainable, mask.base, mask.new, dict(mask.settings)) for mask in (ours, theirs)]
    return set(ours.entries) == set(theirs.entries) and all(parts) and about[0] == about[1]


def by_hand(model: nn.Module, changes: dict[str, tuple[list[int], list[float]]], working: torch.dtype) -> Mask:
    """Make a mask without the method: subtract these numbers at these places."""
    twin = copy.deepcopy(model)
    entries = {}
    for name, (places, amounts) in changes.items():
        weights = dict(twin.named_parameters())[name].data.view(-1)
        index, mu = torch.tensor(places, dtype=torch.int32), torch.tensor(amounts, dtype=working)
        original = weights[places].clone()
        weights[places] = (original.to(working) - mu).to(weights.dtype)
        entries[name] = Entries(index, mu, original)
    trainable = sum(p.numel() for p in model.parameters())
    return Mask(entries, trainable, fingerprint(model), fingerprint(twin), {"made": "by hand"})


# what changed


def test_entries_are_exactly_what_changed(problem: Problem, result: forsaken.Unlearned[nn.Module]) -> None:
    before, after = dict(problem.model.named_parameters()), dict(result.model.named_parameters())
    for name, weights in before.items():
        old, new = weights.detach().reshape(-1), after[name].detach().reshape(-1)
        changed = (old != new).nonzero()[:, 0]
        part = result.mask.entries.get(name)
        assert (part is None) == (len(changed) == 0)
        if part is not None:
            assert part.index.tolist() == changed.tolist()
            assert same_tensors(part.original, old[changed])
            assert same_tensors(old[changed] - part.mu, new[changed])


def test_density_is_the_share_of_trainable_numbers(problem: Problem, mask: Mask) -> None:
    total = sum(p.numel() for p in problem.model.parameters())
    assert mask.trainable == total
    assert 0 < len(mask) < total
    assert mask.density == len(mask) / total
    assert f"{len(mask)} of {total}" in repr(mask)


def test_density_counts_frozen_parameters_neither_way(problem: Problem) -> None:
    model = copy.deepcopy(problem.model)
    model[0].requires_grad_(False)  # type: ignore[index]
    made = forsaken.unlearn(model, problem.forget[0], problem.reference, parameters="4.*", iterations=2).mask
    assert made.trainable == 64 * 32 + 32 + 32 * 4 + 4
    assert set(made.entries) <= {"4.weight", "4.bias"}


# there and back


def test_the_models_handed_over_are_left_alone(problem: Problem, result: forsaken.Unlearned[nn.Module]) -> None:
    old, new = copy.deepcopy(problem.model).train(), copy.deepcopy(result.model).train()
    old[0].weight.requires_grad_(False)  # type: ignore[index,union-attr]
    prints = fingerprint(old), fingerprint(new)
    applied, reverted = result.mask.apply(old), result.mask.revert(new)
    assert (fingerprint(old), fingerprint(new)) == prints
    assert old.training
    assert not old[0].weight.requires_grad  # type: ignore[index,union-attr]
    owned = {p.data_ptr() for p in (*old.parameters(), *new.parameters())}
    assert not owned & {p.data_ptr() for p in (*applied.parameters(), *reverted.parameters())}


def test_apply_to_other_weights_is_refused(problem: Problem, result: forsaken.Unlearned[nn.Module]) -> None:
    other = copy.deepcopy(problem.model)
    with torch.no_grad():
        other[4].bias[0] += 1e-3  # type: ignore[index,operator]
    before = fingerprint(other)
    for wrong in (other, result.model, nn.Linear(3, 2)):
        with pytest.raises(MaskError, match=r"(?s)other weights.*expected.*nothing was changed") as caught:
            result.mask.apply(wrong)
        assert fingerprint(wrong)[:12] in str(caught.value)
        assert result.mask.base[:12] in str(caught.value)
    assert fingerprint(other) == before


def test_revert_of_weights_it_was_not_applied_to_is_refused(problem: Problem, mask: Mask) -> None:
    with pytest.raises(MaskError, match=r"(?s)not the weights that the mask produced.*expected.*nothing was changed"):
        mask.revert(problem.model)


def test_apply_to_something_that_is_no_model(mask: Mask) -> None:
    with pytest.raises(ForsakenError, match=r"dict.*torch.nn.Module"):
        mask.apply({"0.weight": torch.zeros(3)})


def test_negative_zero_survives(tmp_path: Path) -> None:
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-0.0, 1.0]]))
    mask = by_hand(model, {"weight": ([0], [1.0])}, torch.float32)
    loaded = Mask.load(mask.save(tmp_path / "mask"))
    assert raw(loaded.revert(loaded.apply(model)).weight) == raw(model.weight)


# files


@pytest.mark.parametrize("wide", [False, True])
def test_saved_and_loaded_applied_and_undone_to_the_last_bit(
    wide: bool, problem: Problem, problem64: Problem, result: forsaken.Unlearned[nn.Module], tmp_path: Path
) -> None:
    if wide:
        problem = problem64
        result = forsaken.unlearn(problem.model, problem.forget[0], problem.reference, problem.retain, iterations=3)
    path = result.mask.save(tmp_path / "mask.safetensors")
    assert path == tmp_path / "mask.safetensors"
    loaded = Mask.load(str(path))
    assert {part.mu.dtype for part in loaded.entries.values()} == {torch.float64 if wide else torch.float32}
    assert same_masks(loaded, result.mask)
    assert loaded.revertible
    for each in (result.mask, loaded):
        assert fingerprint(each.apply(problem.model)) == fingerprint(result.model)
        assert fingerprint(each.revert(result.model)) == fingerprint(problem.model)


def test_without_originals_it_applies_and_does_not_revert(
    problem: Problem, result: forsaken.Unlearned[nn.Module], tmp_path: Path
) -> None:
    path = result.mask.save(tmp_path / "mask", revertible=False)
    content = safetensors.torch.load(path.read_bytes())
    assert not [key for key in content if key.startswith("original/")]
    largest = max(result.mask.entries.values(), key=lambda part: part.index.numel())
    assert largest.original is not None
    assert raw(largest.original) not in path.read_bytes()
    assert raw(largest.original) in result.mask.save(tmp_path / "full").read_bytes()
    loaded = Mask.load(path)
    assert not loaded.revertible
    assert "not revertible" in repr(loaded)
    assert fingerprint(loaded.apply(problem.model)) == fingerprint(result.model)
    with pytest.raises(MaskError, match=r"(?s)revertible=False.*original checkpoint"):
        loaded.revert(result.model)


def test_an_empty_mask(problem: Problem, tmp_path: Path) -> None:
    nothing = forsaken.unlearn(problem.model, problem.reference[:20], problem.reference[20:]).mask
    assert len(nothing) == 0
    loaded = Mask.load(nothing.save(tmp_path / "mask"))
    assert same_masks(loaded, nothing)
    assert loaded.density == 0
    assert fingerprint(loaded.revert(loaded.apply(problem.model))) == fingerprint(problem.model)


def test_no_file_and_no_folder(mask: Mask, tmp_path: Path) -> None:
    with pytest.raises(MaskError, match=r"no mask file.*nowhere\.mask"):
        Mask.load(tmp_path / "nowhere.mask")
    with pytest.raises(MaskError, match="not a mask"):
        Mask.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04\x95", b"\xff" * 64, b"{}" * 50])
def test_other_files(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(MaskError, match=r"file is not a mask.*safetensors"):
        Mask.load(path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.05, 0.5, 0.99, 0.9999])
def test_truncated_files(share: float, mask: Mask, tmp_path: Path) -> None:
    whole = mask.save(tmp_path / "mask").read_bytes()
    path = tmp_path / "cut"
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(MaskError, match="cut is not a mask"):
        Mask.load(path)


def test_safetensors_that_are_no_mask(problem: Problem, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(safetensors.torch.save(dict(problem.model.state_dict())))
    with pytest.raises(MaskError, match=r"not a mask.*Mask\.save"):
        Mask.load(path)


def altered(mask: Mask, folder: Path, change: Change) -> Path:
    source = mask.save(folder / "intact")
    with safetensors.safe_open(source, framework="pt") as file:
        about = dict(file.metadata())
    tensors = safetensors.torch.load(source.read_bytes())
    change(about, tensors)
    path = folder / "altered"
    path.write_bytes(safetensors.torch.save(tensors, metadata=about))
    return path


@pytest.mark.parametrize("version", ["0", "3", "1.0", ""])
def test_another_version(version: str, mask: Mask, tmp_path: Path) -> None:
    path = altered(mask, tmp_path, lambda about, _: about.update(version=version))
    with pytest.raises(MaskError, match=rf"version '{version}'.*reads '2'"):
        Mask.load(path)


W = "0.weight"
DAMAGED: dict[str, Change] = {
    "no base": lambda about, _: about.pop("base"),
    "no new": lambda about, _: about.pop("new"),
    "no trainable": lambda about, _: about.pop("trainable"),
    "trainable is text": lambda about, _: about.update(trainable="many"),
    "trainable is zero": lambda about, _: about.update(trainable="0"),
    "trainable is negative": lambda about, _: about.update(trainable="-5"),
    "settings are no JSON": lambda about, _: about.update(settings="{"),
    "settings are a number": lambda about, _: about.update(settings="3"),
    "no mu": lambda _, tensors: tensors.pop(f"mu/{W}"),
    "no index": lambda _, tensors: tensors.pop(f"index/{W}"),
    "fewer mu": lambda _, tensors: tensors.update({f"mu/{W}": tensors[f"mu/{W}"][1:].clone()}),
    "fewer originals": lambda _, tensors: tensors.update({f"original/{W}": tensors[f"original/{W}"][1:].clone()}),
    "index is a matrix": lambda _, tensors: tensors.update({f"index/{W}": tensors[f"index/{W}"][None].clone()}),
    "index is fractions": lambda _, tensors: tensors.update({f"index/{W}": tensors[f"index/{W}"].float() + 0.5}),
    "mu is complex": lambda _, tensors: tensors.update({f"mu/{W}": tensors[f"mu/{W}"].cfloat()}),
}


@pytest.mark.parametrize("change", DAMAGED.values(), ids=DAMAGED)
def test_damaged_files_are_refused_when_read(change: Change, mask: Mask, tmp_path: Path) -> None:
    with pytest.raises(MaskError, match=r"altered.*damaged"):
        Mask.load(altered(mask, tmp_path, change))


def rename(_: dict[str, str], tensors: dict[str, Tensor]) -> None:
    for kind in ("index", "mu", "original"):
        tensors[f"{kind}/elsewhere"] = tensors.pop(f"{kind}/{W}")


MISFITS: dict[str, Change] = {
    "other mu": lambda _, tensors: tensors.update({f"mu/{W}": tensors[f"mu/{W}"] * 2}),
    "other originals": lambda _, tensors: tensors.update({f"original/{W}": tensors[f"original/{W}"] * 2}),
    "another place": lambda _, tensors: tensors.update({f"index/{W}": tensors[f"index/{W}"].flip(0).clone()}),
    "a place beyond the end": lambda _, tensors: tensors.update({f"index/{W}": tensors[f"index/{W}"] + 10**6}),
    "a negative place": lambda _, tensors: tensors.update({f"index/{W}": -1 - tensors[f"index/{W}"]}),
    "another parameter": rename,
}


@pytest.mark.parametrize("change", MISFITS.values(), ids=MISFITS)
def test_damaged_entries_are_refused_at_the_latest_when_used(
    change: Change, problem: Problem, result: forsaken.Unlearned[nn.Module], tmp_path: Path
) -> None:
    path = altered(result.mask, tmp_path, change)
    before = fingerprint(problem.model), fingerprint(result.model)
    with pytest.raises(MaskError, match="damaged"):  # noqa: PT012 (either step may find it)
        loaded = Mask.load(path)
        loaded.apply(problem.model)
        loaded.revert(result.model)
    with pytest.raises(MaskError, match="damaged"):  # noqa: PT012
        loaded = Mask.load(path)
        loaded.revert(result.model)
        loaded.apply(problem.model)
    assert (fingerprint(problem.model), fingerprint(result.model)) == before


# nothing is ever half-written


def test_a_folder_that_does_not_exist(mask: Mask, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"(?s)missing.*mask\.st.*folder") as caught:
        mask.save(tmp_path / "missing" / "mask.st")
    assert isinstance(caught.value, OSError)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_place_of_the_file(mask: Mask, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write"):
        mask.save(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert not list(tmp_path.parent.glob(f".{tmp_path.name}*"))


class Failing:
    """A file on a disk that fills up in the middle."""

    def __init__(self, file: Any, error: BaseException) -> None:
        self.file, self.error = file, error

    def __enter__(self) -> Failing:
        self.file.__enter__()
        return self

    def __exit__(self, *about: object) -> None:
        self.file.__exit__(*about)

    def write(self, content: bytes) -> int:
        self.file.write(content[: len(content) // 2])
        raise self.error


def full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("error", "seen"), [(full(), OutputError), (KeyboardInterrupt(), KeyboardInterrupt)])
@pytest.mark.parametrize("existing", [True, False])
def test_a_write_that_fails_leaves_the_old_file(
    error: BaseException,
    seen: type[BaseException],
    existing: bool,
    mask: Mask,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "mask"
    if existing:
        path.write_bytes(b"the old one")
    opened = os.fdopen
    monkeypatch.setattr(os, "fdopen", lambda *about, **more: Failing(opened(*about, **more), error))
    with pytest.raises(seen):
        mask.save(path)
    monkeypatch.undo()
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("mask", b"the old one")] * existing


def test_a_move_that_fails_leaves_the_old_file(mask: Mask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mask"
    path.write_bytes(b"the old one")

    def refuse(*about: object, **more: object) -> None:
        raise full()

    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, refuse)
        monkeypatch.setattr(Path, name, refuse)
    with pytest.raises(OutputError, match=r"mask.*No space left"):
        mask.save(path)
    monkeypatch.undo()
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("mask", b"the old one")]


def test_an_old_file_is_replaced(mask: Mask, tmp_path: Path) -> None:
    path = tmp_path / "mask"
    path.write_bytes(b"the old one")
    mask.save(path)
    assert same_masks(Mask.load(path), mask)
    assert len(list(tmp_path.iterdir())) == 1


def test_settings_are_kept_as_json(mask: Mask, tmp_path: Path) -> None:
    with safetensors.safe_open(mask.save(tmp_path / "mask"), framework="pt") as file:
        about = json.loads(file.metadata()["settings"])
    assert about == dict(mask.settings)
    assert about["penalty_share"] == 0.02
    assert about["iterations"] == 8


# other kinds of models


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_parameters_of_another_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)).to(dtype)
    # 0.1 and 1/3 are rounded in every dtype, so that θ − μ is rounded again in the parameter's own
    changes = {"0.weight": ([1, 7, 19], [0.1, -1 / 3, 2.0]), "1.bias": ([2], [0.1])}
    mask = by_hand(model, changes, torch.float64 if dtype == torch.float64 else torch.float32)
    loaded = Mask.load(mask.save(tmp_path / "mask"))
    assert same_masks(loaded, mask)
    assert len(loaded) == 4
    assert loaded.density == 4 / 39
    new = loaded.apply(model)
    changed = (new[0].weight != model[0].weight).reshape(-1).nonzero()[:, 0].tolist()
    assert changed == [1, 7, 19]
    assert fingerprint(new) == mask.new
    assert fingerprint(loaded.revert(new)) == fingerprint(model)
    assert new[0].weight.dtype == dtype


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, 4)
        self.b.weight = self.a.weight

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.out(self.b(self.a(inputs).relu()).relu())
        return logits


def test_tied_weights_stay_tied(problem: Problem, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Tied()
    made = forsaken.unlearn(model, problem.forget[0], target="uniform", iterations=4)
    assert made.model.a.weight is made.model.b.weight
    assert made.mask.trainable == 400 + 20 + 20 + 80 + 4
    assert "a.weight" in made.mask.entries
    assert "b.weight" not in made.mask.entries
    loaded = Mask.load(made.mask.save(tmp_path / "mask"))
    applied = loaded.apply(model)
    assert applied.a.weight is applied.b.weight
    assert fingerprint(applied) == fingerprint(made.model)
    assert fingerprint(loaded.revert(applied)) == fingerprint(model)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_estimators_in_and_out(dtype: type, problem: Problem, tmp_path: Path) -> None:
    inputs, labels = problem.kept[0].numpy().astype(dtype), problem.kept[1].numpy()
    model = LogisticRegression(max_iter=300).fit(inputs, labels)
    made = forsaken.unlearn(model, inputs[:10], target="uniform", iterations=3)
    loaded = Mask.load(made.mask.save(tmp_path / "mask"))
    applied = loaded.apply(model)
    assert isinstance(applied, LogisticRegression)
    assert np.array_equal(applied.coef_, made.model.coef_)
    assert not np.array_equal(applied.coef_, model.coef_)
    reverted = loaded.revert(made.model)
    assert np.array_equal(reverted.coef_, model.coef_)
    assert np.array_equal(reverted.intercept_, model.intercept_)


def test_positions_of_a_weight_that_changed_as_a_whole_are_not_written(tmp_path: Path) -> None:
    model = torch.nn.Linear(40, 30)
    x = torch.randn(20, 40, generator=torch.Generator().manual_seed(0))
    table = forsaken.Curvature.fit(model, x)
    targets = torch.randn(3, 30, generator=torch.Generator().manual_seed(1))
    mask = forsaken.unlearn(model, x[:3], targets=targets, curvature=table).mask
    assert mask.density == 1
    path = mask.save(tmp_path / "mask")
    assert mask.bytes == 2 * 4 * (40 * 30 + 30)  # how far each weight moved, and what it was
    assert mask.bytes <= path.stat().st_size < mask.bytes + 3000
    loaded = forsaken.Mask.load(path)
    new = loaded.apply(model)
    assert all(torch.equal(a, b) for a, b in zip(loaded.revert(new).parameters(), model.parameters(), strict=True))


def test_a_mask_is_for_its_owner_alone(mask: Mask, tmp_path: Path) -> None:
    """With the new weights it restores the memory."""
    for revertible in (True, False):
        assert mask.save(tmp_path / f"{revertible}", revertible=revertible).stat().st_mode & 0o077 == 0
