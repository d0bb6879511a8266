"""References of the originals of an ensemble: which rows they learn, what is asked of them, and that they are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from audit_case import RECIPE, Small, build

import forsaken
from forsaken import Curvature, Forsaken, References, Training
from forsaken.auditing.audit import audit
from forsaken.auditing.ensembles import Ensembles
from forsaken.auditing.held_out import HeldOut
from forsaken.auditing.inputs import AuditInputs
from forsaken.data.samples import Samples, join
from forsaken.errors import InputError, SettingsError
from forsaken.metrics import margins
from forsaken.references.rows import ReferenceRows
from forsaken.sets import Sets

FAST = replace(RECIPE, epochs=3)
OURS = Forsaken.out_of_fold()


def case(trained: Small, **changes: object) -> AuditInputs:
    given = {"training": Training(build, FAST), "seed": 3} | changes
    return AuditInputs(trained.before, trained.after, Sets(trained.forget, **trained.sets), **given)


def ensembles(trained: Small, folder: Path | None = None, **changes: object) -> Ensembles:
    given = {"methods": {"ours": OURS}, "originals": 3, "retrained": 2, "folder": folder, "watched": 20}
    return Ensembles(case(trained), **{**given, **changes})


def test_the_ideal_reference_lacks_the_forgotten_samples_alone(trained):
    sets = case(trained).sets
    ((learnt, asked),) = HeldOut(by="all").parts(sets, seed=0)
    assert learnt.tolist() == list(range(132))
    assert asked.tolist() == list(range(20))


@pytest.mark.parametrize("folds", [2, 4])
def test_one_reference_serves_a_forgotten_group(trained, folds):
    sets = case(trained).sets
    ((learnt, asked),) = HeldOut(folds, "forgotten").parts(sets, seed=5)
    assert asked.tolist() == list(range(20)), "all of them lie in one fold"
    assert learnt.max() < 132, "and none is learnt"
    assert len(learnt) == 152 - 152 // folds


def test_folds_by_row_ask_each_sample_of_the_one_reference_that_lacks_it(trained):
    sets = case(trained).sets
    parts = HeldOut(4).parts(sets, seed=5)
    assert sorted(np.concatenate([asked for _, asked in parts]).tolist()) == list(range(20))
    for learnt, asked in parts:
        assert not set((asked + 132).tolist()) & set(learnt.tolist())
        assert set(learnt.tolist()) & set(range(132, 152)), "other forgotten samples are learnt"


def test_originals_have_folds_of_their_own(trained):
    sets = case(trained).sets
    one, other = (HeldOut(4, "forgotten").parts(sets, seed=seed)[0][0].tolist() for seed in (1, 2))
    assert one != other


def test_groups_keep_together(trained):
    sets = case(trained).sets
    groups = (*range(132), *([-1] * 10), *([-2] * 10))
    parts = HeldOut(4, "group", groups).parts(sets, seed=0)
    halves = {tuple(asked.tolist()) for _, asked in parts}
    assert halves <= {tuple(range(10)), tuple(range(10, 20)), tuple(range(20))}


@pytest.mark.parametrize("plan", [HeldOut(by="all"), HeldOut(2, "forgotten"), HeldOut(2)])
def test_the_logits_are_those_of_models_trained_by_hand(trained, plan):
    here = case(trained)
    found = plan.tables(here, [7, 8], [trained.before] * 2, [None] * 2, device="cpu", tell=lambda _: None)
    steps = FAST.epochs * -(-152 // FAST.batch_size)
    for seed, table in zip((7, 8), found, strict=True):
        logits, parts, seeds = (
            table.logits(trained.forget.inputs),
            plan.parts(here.sets, seed),
            plan.seeds(here.sets, seed),
        )
        assert len(table) == 20
        assert table.curvature is None
        for (learnt, asked), own in zip(parts, seeds, strict=True):
            model = forsaken.models.train.train(build, here.sets.train.rows(learnt), FAST, seed=int(own), steps=steps)
            expected = model(trained.forget.inputs[asked]).detach()
            assert torch.allclose(logits[torch.from_numpy(asked)], expected, atol=1e-3)


def test_tables_have_the_views_the_spread_and_the_curvature_of_their_original(trained):
    here, plan = case(trained), HeldOut(by="all", views=2, view="word-dropout")
    curvature = Curvature.fit(trained.before, here.sets.train.inputs)
    (found,) = plan.tables(here, [7], [trained.before], [curvature], device="cpu", tell=lambda _: None)
    ((learnt, _),), (own,) = plan.parts(here.sets, 7), plan.seeds(here.sets, 7)
    steps = FAST.epochs * -(-152 // FAST.batch_size)
    model = forsaken.models.train.train(build, here.sets.train.rows(learnt), FAST, seed=int(own), steps=steps)
    seen, said = found.views_of(trained.forget.inputs)
    assert seen.inputs.shape == (40, 20)
    assert torch.allclose(said, model(seen.inputs).detach(), atol=1e-3)
    strangers = here.sets.reference.inputs
    with torch.no_grad():
        before, other = (
            logits - logits.mean(1, keepdim=True) for logits in (trained.before(strangers), model(strangers))
        )
    expected = ((before - other).square().mean() / other.square().mean()).sqrt()
    assert found.spread == pytest.approx(float(expected), rel=1e-3)
    assert found.curvature is curvature


def test_targets_are_what_the_method_goes_to(trained):
    plan = HeldOut(by="all")
    ours = ensembles(trained, references={"ours": plan})
    found = ours.measure()
    targets, before, after = (
        found.facts["ours"]["targets"],
        *(found.margins[who]["forget"] for who in ("before", "ours")),
    )
    assert np.abs(after - targets).mean() < 0.1 * np.abs(before - targets).mean()
    seeds = [seed for role, seed in ours.models if role == "before"]
    tables = plan.tables(ours.inputs, seeds, [trained.before] * 3, [None] * 3, device="cpu", tell=print)
    logits = [table.logits(trained.forget.inputs).double().numpy() for table in tables]
    assert np.allclose(targets, [margins(one, trained.forget.labels.numpy()) for one in logits])
    passes = found.facts["ours"]["passes"]
    assert passes.shape == (3,)
    assert (passes > 20).all(), "each original goes by its curvature, which counts what it passes"


def test_what_decides_the_references_decides_the_cache(trained, tmp_path):
    def files(**changes: object) -> int:
        ensembles(trained, tmp_path, **changes).measure()
        return len(list(tmp_path.rglob("*.npz")))

    first = files(references={"ours": HeldOut(2, "forgotten")})
    assert files(references={"ours": HeldOut(2, "forgotten")}) == first
    assert files(references={"ours": HeldOut(3, "forgotten")}) == first + 3
    assert files(references={"ours": HeldOut(2)}) == first + 6
    retains = {"ours": trained.kept.rows(range(5))}
    assert files(references={"ours": HeldOut(2)}, retains=retains) == first + 9
    assert files(references={"ours": HeldOut(2)}, besides={"near": trained.forget}) > first + 9


def test_a_method_more_runs_that_method_alone(trained, tmp_path, monkeypatch):
    ensembles(trained, tmp_path, references={"ours": HeldOut(2, "forgotten")}).measure()
    asked: list[str] = []
    real = Ensembles._unlearned
    monkeypatch.setattr(
        Ensembles, "_unlearned", lambda self, name, *rest: (asked.append(name), real(self, name, *rest))[1]
    )
    methods = {"ours": OURS, "other": replace(OURS, rounds=4)}
    plans = dict.fromkeys(methods, HeldOut(2, "forgotten"))
    found = ensembles(trained, tmp_path, methods=methods, references=plans).measure()
    assert asked == ["other"] * 3
    assert found.margins["ours"]["forget"].shape == found.margins["other"]["forget"].shape


def table(trained: Small, **named: object) -> References:
    data = join([trained.kept, trained.retain, trained.forget])
    return References.fit(Training(build, FAST), data, folds=2, **named)


def test_a_full_audit_repeats_how_the_table_was_made(trained):
    references = table(trained, groups=[*range(132), *["person"] * 20])
    method = Forsaken.out_of_fold()
    after = method(trained.before, trained.forget, retain=trained.retain, references=references).model
    found = audit(
        trained.before,
        after,
        trained.forget,
        profile="full",
        training=Training(build, FAST),
        method="forsaken",  # goes by the references, as the run did
        references=references,
        models=4,
        **trained.sets,
    )
    assert found.cost["references"] == 4, "one for each original: the person lies in one fold"
    assert found.cost["models"] == 12


def test_a_plan_asks_about_the_views_of_the_table(trained):
    sets = Sets(trained.forget, **trained.sets)
    for groups in (None, range(152)):
        named = HeldOut.of(table(trained, groups=groups, views=2, view="word-dropout"), sets)
        assert (named.views, named.view, named.to_dict()["view"]) == (2, "word-dropout", "word-dropout")
        own = HeldOut.of(table(trained, groups=groups, views=1, view=halved), sets)
        assert (own.views, own.view, own.to_dict()["view"]) == (1, halved, f"{__name__}.halved")
        none = HeldOut.of(table(trained, groups=groups), sets)
        assert (none.views, none.view, none.to_dict()["view"]) == (0, None, None)


def halved(inputs, generator):
    return inputs / 2


def test_a_full_audit_without_the_table_says_what_is_missing(trained):
    named = {"profile": "full", "training": Training(build, FAST), "models": 4, **trained.sets}
    with pytest.raises(SettingsError, match="give references="):
        audit(trained.before, trained.after, trained.forget, method=Forsaken.out_of_fold(), **named)
    handed = References.claimed(trained.forget.inputs, torch.zeros(20, 3))
    with pytest.raises(SettingsError, match="does not go by them"):
        audit(trained.before, trained.after, trained.forget, method=Forsaken(), references=table(trained), **named)
    with pytest.raises(SettingsError, match="handed in"):
        audit(trained.before, trained.after, trained.forget, method=Forsaken.out_of_fold(), references=handed, **named)


def test_rows_that_the_table_does_not_know_are_groups_of_their_own(trained):
    references = table(trained, groups=["one"] * 76 + ["two"] * 76)
    more = Sets(
        trained.forget,
        **(trained.sets | {"kept": join([trained.kept, Samples(torch.ones(1, 20), torch.zeros(1).long())])}),
    )
    plan = HeldOut.of(references, more)
    assert len(plan.groups) == 153
    assert len(set(plan.groups)) == 3


def test_what_an_oracle_sees_is_noted_of_every_model(trained):
    found = ensembles(trained, references={"ours": HeldOut(2, "forgotten")}).measure()
    views = ensembles(trained).views
    assert found.facts["before"]["forget.top"].shape == (3, 20, 3)
    assert found.facts["ours"]["retain.top"].shape == (3, len(views["retain"]), 3)
    seed = next(seed for role, seed in ensembles(trained).models if role == "before")
    model = Training(build, FAST).run(case(trained).sets.train, seed=seed)
    expected = trained.oracle.score(model, views["retain"])
    assert np.allclose(trained.oracle.score_top(found.facts["before"]["retain.top"][0]), expected, atol=1e-3)
    assert found.facts["ours"]["density"].shape == (3,)


def test_a_table_that_forgot_does_not_know_the_groups_any_more(trained):
    references = table(trained, groups=["one"] * 76 + ["two"] * 76)
    references.forget(trained.forget.inputs)
    with pytest.raises(InputError, match=r"20 of 20 forgotten samples are not in the table .* before references"):
        HeldOut.of(references, Sets(trained.forget, **trained.sets))


def test_groups_that_share_a_row_are_one(trained):
    references = table(trained, groups=range(152))
    known = references.entries
    # the content of row 0 under the group of row 1
    copy = ReferenceRows(known.content[[0]], known.groups[[1]], known.fold[[0]], known.logits[[0]])
    references.entries = known.joined(copy)
    plan = HeldOut.of(references, Sets(trained.forget, **trained.sets))
    assert len(set(plan.groups)) == 151
