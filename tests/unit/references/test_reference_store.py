"""The table as a file: bit for bit, its owner's alone, its key apart, and refused in words when it is not whole."""

from __future__ import annotations

import io
import json
import os
import pickle
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from job_folders import Bomb
from reference_case import CLASSES, KEY, WIDTH, drawn, hebb, network
from torch import Tensor, nn

from forsaken import References
from forsaken._keys import read_record_key, write_record_key
from forsaken.errors import DataError, DataNotFoundError, ModelError, NotHeldOutError, OutputError, SettingsError
from forsaken.references.fitting import Costs, Origin
from forsaken.references.store import key_file, write_table

X, Y = drawn(20)
NEW, _ = drawn(4, seed=1)


def fitted(**more: Any) -> References:
    return References.fit(hebb(X, Y), (X, Y), key=KEY, **more)


def same(one: References, two: References) -> bool:
    """Whether two tables are equal bit for bit, models aside."""
    parts = [(one.entries.content, two.entries.content), (one.entries.fold, two.entries.fold)]
    parts += [(one.entries.groups, two.entries.groups)] if one.entries.groups is not None else []
    alike = all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in parts)
    rest = one.origin == two.origin and one.about() == two.about() and one.key == two.key
    return alike and rest and one.entries.logits.numpy().tobytes() == two.entries.logits.numpy().tobytes()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- there and back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [None, list(range(10)) * 2])
def test_there_and_back(tmp_path: Path, groups: Any) -> None:
    table = fitted(groups=groups, steps=9, seed=3).forget(X[:2])
    assert table.save(tmp_path / "table") == tmp_path / "table"
    again = References.load(str(tmp_path / "table"))
    assert same(table, again)
    assert torch.equal(table.logits(X[5:]), again.logits(X[5:]))
    assert (again.entries.groups is None) == (groups is None)
    assert again.forgotten == 2
    again.save(tmp_path / "table")
    assert same(table, References.load(tmp_path / "table"))


def test_claims_and_emptiness_there_and_back(tmp_path: Path) -> None:
    table = References.claimed(X, torch.randn(20, 4))
    table.save(tmp_path / "t")
    assert same(table, References.load(tmp_path / "t"))
    assert References.load(tmp_path / "t").claims == 20
    table.forget(X).save(tmp_path / "t")
    assert (len(References.load(tmp_path / "t")), References.load(tmp_path / "t").forgotten) == (0, 20)


@pytest.mark.parametrize(("schema", "absent"), [(1, ("views", "curvature", "spread", "worth")), (2, ("worth",))])
def test_a_table_of_an_older_schema_is_read(tmp_path: Path, schema: int, absent: tuple[str, ...]) -> None:
    table = fitted(keep_models=True)
    path = table.save(tmp_path / "table")

    def older(told: Told, tensors: Tensors) -> None:
        told["schema"] = schema
        for name in absent:
            assert told.pop(name) is None
        assert told["origin"].pop("budget") is None

    rewritten(path, older)
    again = References.load(path, build=network)
    assert same(table, again)
    assert (again.views, again.curvature, again.spread, again.worth) == (None, None, None, None)


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        fitted(keep_models=True).save(tmp_path / "table")
    finally:
        os.umask(old)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table", "table.key"]
    assert {mode_of(path) for path in tmp_path.iterdir()} == {0o600}


def test_the_key_lies_apart(tmp_path: Path) -> None:
    table = fitted(keep_models=True)
    path = table.save(tmp_path / "table")
    assert read_record_key(key_file(path)) == KEY
    content = path.read_bytes()
    assert KEY not in content
    assert KEY.hex().encode() not in content
    bare = fitted().save(tmp_path / "bare").read_bytes()
    assert not any(row.numpy().tobytes() in bare for row in X), "and no sample is in it"
    assert write_table(table, tmp_path / "other") == tmp_path / "other"
    assert not (tmp_path / "other.key").exists()
    with pytest.raises(SettingsError, match=r"no key file .*other\.key"):
        References.load(tmp_path / "other")
    assert same(References.load(tmp_path / "other", key=KEY), table)


def test_another_key_makes_every_row_a_stranger(tmp_path: Path) -> None:
    path = fitted().save(tmp_path / "table")
    table = References.load(path, key=bytes(32))
    with pytest.raises(NotHeldOutError, match=r"20 of 20 samples .*is its key the right one") as caught:
        table.logits(X)
    assert caught.value.rows == tuple(range(20))
    for key in (bytes(31), "00" * 32):
        with pytest.raises(SettingsError, match="expected 32 random bytes"):
            References.load(path, key=key)  # type: ignore[arg-type]


def test_the_key_of_another_table_is_not_replaced(tmp_path: Path) -> None:
    write_record_key(tmp_path / "table.key", bytes(32))
    with pytest.raises(SettingsError, match="holds another key than the table's; give another name, or move it away"):
        fitted().save(tmp_path / "table")
    assert read_record_key(tmp_path / "table.key") == bytes(32)
    assert not (tmp_path / "table").exists()
    with pytest.raises(OutputError, match="does its folder exist"):
        fitted().save(tmp_path / "nowhere" / "table")


# --- kept models -----------------------------------------------------------------------------------------------------


def test_kept_models_there_and_back(tmp_path: Path) -> None:
    table = fitted(keep_models=True, groups=range(20))
    path = table.forget(X[:3]).save(tmp_path / "table")
    state = torch.random.get_rng_state()
    again = References.load(path, build=network)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert same(table, again)
    assert (len(again.models), again.owed, again.forgotten) == (4, 3, 3)
    for one, two in zip(table.models, again.models, strict=True):
        assert torch.equal(one.weight, two.weight)
        assert not two.training
    for each in (table, again):
        each.extend(torch.cat([X[:2], NEW]), groups=[0, 1, 50, 51, 52, 53])
    assert same(table, again), "what the models learnt is known as before, forgotten rows and groups included"
    with torch.no_grad():
        expected = table.models[int(table.fold_models.fold[0])](X[[0]])  # type: ignore[union-attr]
    torch.testing.assert_close(again.logits(X[[0]]), expected)


def test_weights_without_a_network_are_kept_as_they_are(tmp_path: Path) -> None:
    """Who reads a table to forget has no network at hand; the models must not get lost by it, nor what they owe."""
    path = fitted(keep_models=True).save(tmp_path / "table")
    table = References.load(path)
    assert table.about()["models_kept"] == 4
    assert table.forget(X[:3]).owed == 3
    for act in (
        lambda: table.extend(NEW),
        lambda: table.forget(X[4:5], lambda model, samples, logits: model),
    ):
        before = table.entries
        with pytest.raises(SettingsError, match=r"load it with build=.*drop_models\(\)"):
            act()
        assert table.entries is before
    table.save(path)
    again = References.load(path, build=network)
    assert (again.owed, again.forgotten, len(again)) == (3, 3, 17)
    for one, two in zip(fitted(keep_models=True).models, again.models, strict=True):
        assert torch.equal(one.weight, two.weight)
    again.drop_models().save(path)
    assert References.load(path).about()["models_kept"] == References.load(path).owed == 0
    with safetensors.safe_open(path, framework="pt") as file:
        assert sorted(file.keys()) == ["content", "fold", "logits"], "nothing of the models or their rows is left"


def test_a_network_that_does_not_fit(tmp_path: Path) -> None:
    path = fitted(keep_models=True).save(tmp_path / "table")
    with pytest.raises(ModelError, match=r"the kept model 0 of .* does not fit the network that build returns"):
        References.load(path, build=lambda: nn.Linear(WIDTH, CLASSES))
    with pytest.raises(ModelError, match="of type NoneType"):
        References.load(path, build=lambda: None)  # type: ignore[arg-type, return-value]


# --- files that are not whole ----------------------------------------------------------------------------------------


def test_what_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match=r"there is no table of references .*forsaken references fit"):
        References.load(tmp_path / "nothing")
    with pytest.raises(DataError, match="cannot be read as a table"):
        References.load(tmp_path)
    path = tmp_path / "weights.safetensors"
    safetensors.torch.save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(DataError, match="no table of references; check the path"):
        References.load(path)


def torch_zip(bomb: Bomb) -> bytes:
    packed = io.BytesIO()
    torch.save({"content": bomb}, packed)
    return packed.getvalue()


@pytest.mark.parametrize("pack", [pickle.dumps, torch_zip])
def test_a_pickle_is_not_opened(tmp_path: Path, pack: Callable[[Bomb], bytes]) -> None:
    goal, path = tmp_path / "exploded", tmp_path / "table"
    write_record_key(tmp_path / "table.key", KEY)
    path.write_bytes(pack(Bomb(goal)))
    with pytest.raises(DataError, match=r"cannot be read as a table of references.*restore it, or fit anew"):
        References.load(path, build=network)
    assert not goal.exists()
    (tmp_path / "sure").write_bytes(pickle.dumps(Bomb(goal)))
    pickle.loads((tmp_path / "sure").read_bytes())
    assert goal.exists(), "the bomb is one"


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.999])
def test_a_file_that_was_cut_short(tmp_path: Path, share: float) -> None:
    path = fitted().save(tmp_path / "table")
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError, match=r"cannot be read as a table of references.*restore it, or fit anew"):
        References.load(path)


Told = dict[str, Any]
Tensors = dict[str, Tensor]


def put(*names: Any, value: Any) -> Callable[[Told, Tensors], None]:
    """Return a change of what the file says."""

    def change(told: Told, tensors: Tensors) -> None:
        *places, last = names
        for place in places:
            told = told[place]
        told[last] = value

    return change


def swap(name: str, make: Callable[[Tensor], Tensor] | None) -> Callable[[Told, Tensors], None]:
    """Return a change of one tensor; None takes it out."""

    def change(told: Told, tensors: Tensors) -> None:
        if make is None:
            del tensors[name]
        else:
            tensors[name] = make(tensors.get(name, torch.zeros(1))).contiguous()

    return change


def nan(logits: Tensor) -> Tensor:
    return logits.index_fill(0, torch.tensor([3]), torch.nan)


DAMAGES = {
    "another schema": put("schema", value=5),
    "no schema": lambda told, tensors: told.pop("schema"),
    "no origin": lambda told, tensors: told.pop("origin"),
    "an origin of words": put("origin", value="trust me"),
    "an origin with more": put("origin", "more", value=1),
    "no costs": put("origin", "costs", value=None),
    "costs of words": put("origin", "costs", "seconds", value="few"),
    "endless costs": put("origin", "costs", "seconds", value=float("inf")),
    "costs past counting": put("origin", "costs", "seconds", value=10**400),
    "trainings past counting": put("origin", "costs", "trainings", value=10**400),
    "no trainings": put("origin", "costs", "trainings", value=-1),
    "half a step": put("origin", "steps", value=0.5),
    "folds of words": put("origin", "folds", value="four"),
    "a single fold": put("origin", "folds", value=1),
    "folds of what was handed in": put("origin", "by", value="claim"),
    "more owed than forgotten": put("owed", value=1),
    "folds by magic": put("origin", "by", value="<script>"),
    "groups that are not there": put("origin", "by", value="group"),
    "less than nothing owed": put("owed", value=-3),
    "truly forgotten": put("forgotten", value=True),
    "endless models": put("models", value=10**9),
    "endless models and folds": lambda told, tensors: (
        put("models", value=10**9)(told, tensors),
        put("origin", "folds", value=10**9)(told, tensors),
    ),
    "no models": put("models", value=0),
    "no content": swap("content", None),
    "no folds": swap("fold", None),
    "no logits": swap("logits", None),
    "no record of what models learnt": swap("taught.content", None),
    "groups nobody told of": swap("groups", lambda _: torch.zeros(20, 32, dtype=torch.uint8)),
    "a row too few": swap("content", lambda old: old[1:]),
    "short hashes": swap("content", lambda old: old[:, :31]),
    "hashes of another kind": swap("content", lambda old: old.int()),
    "one fold for all": swap("fold", lambda old: old[0]),
    "broken folds": swap("fold", lambda old: old.float()),
    "a fold without a model": swap("fold", lambda old: old + 1),
    "a claim where models are kept": swap("fold", lambda old: old - 1),
    "a model without a fold": swap("taught.fold", lambda old: old + 1),
    "logits of NaN": swap("logits", nan),
    "coarse logits": swap("logits", lambda old: old.half()),
    "a single logit": swap("logits", lambda old: old[0, 0]),
    "one class": swap("logits", lambda old: old[:, :1]),
    "logits of fewer rows": swap("logits", lambda old: old[1:]),
    "a stowaway": swap("hook", lambda _: torch.zeros(3)),
    "a model too many": swap("model.4/weight", lambda _: torch.zeros(3)),
    "a model of no number": swap("model.x/weight", lambda _: torch.zeros(3)),
    "a spread of words": put("spread", value="little"),
    "a spread below nothing": put("spread", value=-0.5),
    "an endless spread": put("spread", value=float("inf")),
    "views that are not there": put("views", value={"count": 2, "seed": 0, "name": "word-dropout"}),
    "views nobody told of": swap("views", lambda _: torch.zeros(20, 2, 3)),
    "a curvature of words": put("curvature", value="<script>"),
    "a curvature nobody told of": swap("curvature/0.squares", lambda _: torch.zeros(3)),
}


def rewritten(path: Path, change: Callable[[Told, Tensors], None]) -> None:
    with safetensors.safe_open(path, framework="pt") as file:
        told, names = json.loads(file.metadata()["about"]), list(file.keys())
        tensors = {name: file.get_tensor(name) for name in names}
    change(told, tensors)
    about = {"format": "forsaken.references", "about": json.dumps(told)}
    path.write_bytes(safetensors.torch.save(tensors, metadata=about))


def test_rewriting_alone_does_no_damage(tmp_path: Path) -> None:
    table = fitted(keep_models=True)
    path = table.save(tmp_path / "table")
    rewritten(path, lambda told, tensors: None)
    assert same(References.load(path, build=network), table)


def test_a_table_of_folds_holds_no_claims(tmp_path: Path) -> None:
    path = fitted().save(tmp_path / "table")
    rewritten(path, swap("fold", lambda old: old.fill_(-1)))
    with pytest.raises(DataError, match="fold has numbers of no fold"):
        References.load(path)
    path = fitted().save(tmp_path / "long")
    rewritten(path, put("schema", value="x" * 500))
    with pytest.raises(DataError, match="is damaged") as caught:
        References.load(path)
    assert "x" * 21 not in str(caught.value)


@pytest.mark.parametrize("change", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_told(tmp_path: Path, change: Callable[[Told, Tensors], None]) -> None:
    path = fitted(keep_models=True).save(tmp_path / "table")
    rewritten(path, change)
    with pytest.raises(DataError, match=r"table is damaged \(\w+: .*\); restore it, or fit anew") as caught:
        References.load(path, build=network)
    assert "script" not in str(caught.value)


@pytest.mark.parametrize(
    "about", ["", "{", "[]", "7", "null", '{"schema": 1}', "[" * 100_000, '{"schema": ' + "9" * 5000 + "}"]
)
def test_what_a_file_says_is_not_to_be_read(tmp_path: Path, about: str) -> None:
    path = fitted().save(tmp_path / "table")
    tensors = safetensors.torch.load_file(path)
    path.write_bytes(safetensors.torch.save(tensors, metadata={"format": "forsaken.references", "about": about}))
    with pytest.raises(DataError, match="is damaged"):
        References.load(path)
    path.write_bytes(safetensors.torch.save(tensors, metadata={"format": "forsaken.references"}))
    with pytest.raises(DataError, match="is damaged"):
        References.load(path)


def test_where_it_came_from_survives(tmp_path: Path) -> None:
    table = fitted()
    table.origin = Origin(4, "row", None, 7, Costs(1 / 3, 4))
    assert References.load(table.save(tmp_path / "table")).origin == table.origin
