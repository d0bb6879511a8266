"""What benchmarks/out_of_fold.py compares: rows, neighbours, requests in turn; and the tables that come of it."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import benchmark_scripts
import numpy as np
import pytest
import torch

from forsaken import Forsaken, References
from forsaken.auditing.held_out import HeldOut
from forsaken.auditing.measurements import Matrices
from forsaken.data.samples import Samples
from forsaken.metrics import request_floor, request_u_lira, u_lira


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with benchmark_scripts.script("out_of_fold_rows") as found:
        yield found


@pytest.fixture(scope="module")
def tables() -> Iterator[ModuleType]:
    with benchmark_scripts.script("out_of_fold_tables") as found:
        yield found


def test_the_pages_show_the_tables_of_the_files(tables: ModuleType) -> None:
    found, pages = tables.blocks(), [page.read_text() for page in tables.PAGES]
    assert tables.TASKS
    assert all(tables.filled(page, found) == page for page in pages), "run benchmarks/out_of_fold_tables.py"
    assert all(any(f"<!-- table: {name} -->" in page for page in pages) for name in found)
    assert tables.PICTURE.read_text() == tables.picture_of(), "run benchmarks/out_of_fold_tables.py"


def test_a_table_takes_the_place_between_its_marks(tables: ModuleType) -> None:
    page = "a\n<!-- table: x -->\nold\n<!-- end -->\nb\n<!-- table: y -->\n<!-- end -->\n"
    once = tables.filled(page, {"x": "| new |", "y": "| other |"})
    assert "old" not in once
    assert once.index("| new |") < once.index("b\n") < once.index("| other |")
    assert tables.filled(once, {"x": "| new |", "y": "| other |"}) == once
    with pytest.raises(KeyError):
        tables.filled(page, {"x": "| new |"})


def test_a_peer_that_changed_nothing_is_not_the_best(tables: ModuleType) -> None:
    rows = {
        "scrub": {"auc": 0.64, "density": 0.06},  # 15 of 16 runs diverged
        "salun": {"auc": 0.9, "density": 0.5},
        "neggrad-plus, all kept": {"auc": 0.2, "density": 1.0},
        "class-mean": {"auc": 0.5, "density": 1.0},
    }
    assert tables.best_peer(rows) == "neggrad-plus, all kept"
    assert tables.best_peer({"scrub": rows["scrub"]}) is None


def test_attacks_are_those_of_the_saved_margins() -> None:
    with benchmark_scripts.script("out_of_fold_attacks") as script:
        paths = sorted((script.RESULTS / "margins").glob("*.npz"))
        assert paths
        for path in paths:
            groups, about = script.read(path)
            name = f"attacks-{path.stem.removeprefix('out-of-fold-')}.json"
            saved, models = json.loads((script.RESULTS / name).read_bytes()), about["options"]["models"]
            practical = next(row for row in saved["rows"] if row.startswith("K = 4"))
            row, retrained = saved["rows"][practical], groups["retrained"]["forget"]
            assert row["forget"]["request"] == request_u_lira(groups[practical]["forget"], retrained[:models])
            assert row["forget"]["auc"] == u_lira(groups[practical]["forget"], retrained[:models]).auc
            assert saved["rows"]["retrained"]["forget"]["request_floor"] == list(
                request_floor(retrained, seed=about["options"]["seed"])[:2]
            )
            for told in (saved["provenance"], saved["of_the_margins"]["provenance"]):
                assert {"commit", "source_sha256", "processor"} <= set(told)
            result = script.RESULTS / f"{path.stem}.json"
            if result.exists():
                earlier = json.loads(result.read_bytes())["rows"][practical]
                assert row["forget"]["auc"] == pytest.approx(earlier["auc"], abs=0.003), "float16 moves it by less"


def test_a_smaller_run_does_not_replace_a_result(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with benchmark_scripts.script("out_of_fold") as script:
        assert script.lesser(path, Namespace(models=2, only="")) == ""
        path.write_text(json.dumps({"options": {"models": 16}}))
        assert "16 models, and this run has 8" in script.lesser(path, Namespace(models=8, only=""))
        assert "--only" in script.lesser(path, Namespace(models=32, only="retrained"))
        assert script.lesser(path, Namespace(models=32, only="")) == ""


def test_saved_margins_are_read_back(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    margins = {group: {"forget": draw.normal(size=(4, 6))} for group in ("before", "retrained", "K = 4")}
    facts = {group: {"near": draw.normal(size=(4, 6)), "seconds": np.zeros(4)} for group in margins}
    with benchmark_scripts.script("out_of_fold") as script:
        script.save_margins(tmp_path / "margins" / "one.npz", Matrices(margins, {}, {}, facts), {"seed": 3})
    with benchmark_scripts.script("out_of_fold_attacks") as script:
        groups, about = script.read(tmp_path / "margins" / "one.npz")
    assert about == {"seed": 3}
    assert {group: set(parts) for group, parts in groups.items()} == {group: {"forget", "near"} for group in margins}
    assert groups["K = 4"]["near"] == pytest.approx(facts["K = 4"]["near"], abs=2e-3)


def test_settings_of_peers_are_those_nearest_to_retraining(script: ModuleType) -> None:
    rows = {
        "retrained": {"auc": 0.5, "accuracy": 0.9},
        "scrub: 1": {"auc": 0.95, "accuracy": 0.9, "density": 1.0, "settings": {"learning_rate": 1}},
        "scrub: 2": {"auc": 0.7, "accuracy": 0.89, "density": 1.0, "settings": {"learning_rate": 2}},
        "scrub: 3": {"auc": 0.5, "accuracy": 0.2, "density": 1.0, "settings": {"learning_rate": 3}},
        "scrub: 4": {"auc": 0.6, "accuracy": 0.9, "density": 0.06, "settings": {"learning_rate": 5}},  # it diverged
        "scrub, all kept: 1": {"auc": 0.1, "accuracy": 0.95, "density": 1.0, "settings": {"learning_rate": 4}},
        "salun: 1": {"auc": 0.5, "accuracy": 0.9, "density": 0.0, "settings": {"learning_rate": 6}},
    }
    assert script.chosen(rows) == {"scrub": {"learning_rate": 2}, "scrub, all kept": {"learning_rate": 4}}


def test_settings_that_diverge_change_nothing(script: ModuleType) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    x, y = torch.randn(60, 20), torch.randint(3, (60,))
    tried = {
        rate: script.OrNothing(method=script.build("salun", {"learning_rate": rate}))(
            model, (x[:5], y[:5]), retain=(x[10:], y[10:]), seed=0
        )
        for rate in (1e-2, 1e30)
    }
    assert tried[1e-2].density > 0
    assert (tried[1e30].density, tried[1e30].stopped) == (0, "diverged")


def test_every_preset_has_rows_for_texts_and_pictures(script: ModuleType) -> None:
    for preset in script.PRESETS.values():
        for task in ("digits", "reuters-35-11", "c10-t", "news-id"):
            rows = preset(task)
            assert rows
            assert all(row.told()["settings"] for row in rows.values())


def test_reported_rows_have_every_bar_of_comparison(script: ModuleType) -> None:
    rows = script.confirm("reuters-35-11")
    assert {"all but D", "all but D, 3 views", "K = 4 by group"} <= set(rows)
    plan = HeldOut(by="all", views=3, view="word-dropout")
    assert rows["all but D"].references == rows["all but D, 3 views"].references == plan, (
        "so that both are trained once"
    )
    assert rows["all but D, 3 views"].method == Forsaken.out_of_fold()
    assert rows["K = 4 by group"].references == HeldOut(4, "forgotten", views=3, view="word-dropout")
    assert rows["K = 4 by group"].method == Forsaken.out_of_fold(views=0)
    rivals = script.peers("reuters-35-11")
    assert {"class-mean", "paper", "salun", "neggrad-plus", "scrub"} <= set(rivals)
    assert rivals["salun, all kept"].retain == "all"


def test_models_that_learnt_from_augmented_pictures_forget_more_views(script: ModuleType) -> None:
    rows = script.confirm("c10-t-augmented")
    assert {row.references.view for row in rows.values()} == {None}, "that of the recipe"
    assert {row.references.views for row in rows.values()} == {8}
    assert {row.method.solver.views for name, row in rows.items() if "8 views" not in name} == {0, 3}


def test_near_ones_are_near(script: ModuleType) -> None:
    draw = torch.Generator().manual_seed(0)
    forget = Samples(torch.randn(5, 30, generator=draw))
    others = Samples(torch.cat([torch.randn(50, 30, generator=draw), forget.inputs + 0.01]))
    assert sorted(script.near(forget, others, 5).tolist()) == list(range(50, 55))


def test_groups_of_ten_requests(script: ModuleType) -> None:
    found = script.in_groups(3, 25)
    assert found[:3] == (0, 1, 2)
    assert len(found) == 28
    assert len(set(found)) == 13
    assert [found.count(-1 - at) for at in range(10)] == [3] * 5 + [2] * 5


@pytest.mark.parametrize("kind", ["words", "tokens", "pictures", "bytes", "numbers"])
def test_neighbours_are_near_and_other(script: ModuleType, kind: str) -> None:
    draw = np.random.default_rng(0)
    made = {
        "words": torch.from_numpy((draw.random((20, 200)) < 0.05) * draw.random((20, 200))).float(),
        "tokens": torch.from_numpy(draw.integers(1, 500, size=(20, 40))),
        "pictures": torch.from_numpy(draw.random((20, 3, 8, 8))).float(),
        "bytes": torch.from_numpy(draw.integers(0, 256, size=(20, 3, 8, 8), dtype=np.uint8)),
        "numbers": torch.from_numpy(draw.random((20, 64))).float(),
    }[kind]
    samples = Samples(made, torch.arange(20) % 3)
    all_of_them, again = (script.neighbours(samples, seed=1) for _ in range(2))
    assert set(all_of_them) == ({"mirrored", "shifted"} if made.dim() == 4 else {"near"})
    for name, each in all_of_them.items():
        assert torch.equal(each.inputs, again[name].inputs)
        assert each.inputs.dtype == made.dtype
        assert torch.equal(each.labels, samples.labels)
        assert not torch.equal(each.inputs, made)
    found = next(iter(all_of_them.values()))
    if made.dim() == 4:
        assert torch.equal(all_of_them["mirrored"].inputs, made.flip(-1))
        assert torch.equal(all_of_them["shifted"].inputs[..., 1:], made[..., :-1])
    if kind == "words":
        assert bool(((found.inputs == made) | (found.inputs == 0)).all())
        assert 0.6 < float((found.inputs != 0).sum() / (made != 0).sum()) < 0.95
    if kind == "tokens":
        assert 0.75 < float((found.inputs == made).double().mean()) < 0.95
        assert all(set(one.tolist()) <= set(other.tolist()) for one, other in zip(found.inputs, made, strict=True))


def test_requests_in_turn_forget_every_part(script: ModuleType) -> None:
    torch.manual_seed(0)
    model, x = torch.nn.Linear(8, 3, bias=False), torch.eye(8)  # no part moves another's answers
    targets = torch.zeros(8, 3)
    turns = script.InTurn(method=Forsaken(penalty=0.0, anchor=0.0, power=0.0), parts=4)
    found = turns(model, x, targets=targets)
    assert float(found.model(x).detach().softmax(1).amax(1).max()) < 0.35
    assert found.iterations > 4


def test_requests_in_turn_hand_the_table_on(script: ModuleType) -> None:
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3)), torch.randn(60, 8)
    others = torch.nn.Linear(8, 3)
    table = References.fit(lambda rows, steps, seed: others, x, folds=2, model=model)
    found = script.InTurn(method=Forsaken.out_of_fold(), parts=3)(model, x[:9], references=table)
    with torch.no_grad():
        before, after, wanted = (
            logits - logits.mean(1, keepdim=True) for logits in (model(x), found.model(x), others(x))
        )
    was, now = ((said[:9] - wanted[:9]).square().mean(1) for said in (before, after))
    assert float(now[6:].mean()) < 0.01 * float(was[6:].mean()), "the last part has been moved by no other since"
    assert float(now.mean()) < 0.3 * float(was.mean())
    assert len(table) == 60, "the table that was given stays as it was"
    assert table.curvature is not None
    table.curvature.check(model)
