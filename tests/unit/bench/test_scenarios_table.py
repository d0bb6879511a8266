"""Every scenario of the table, on small data of the same form as the real ones, and on the real ones where they are."""

from __future__ import annotations

import dataclasses
import io
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from forsaken.bench.datasets.registry import DATASETS
from forsaken.bench.networks import build
from forsaken.bench.scenarios import pictures
from forsaken.bench.scenarios.canaries import END, PHRASE
from forsaken.bench.scenarios.scenario import Scenario, Sizes
from forsaken.bench.scenarios.table import SCENARIOS, load_scenario
from forsaken.bench.scenarios.texts import borrowed_bodies, own_words
from forsaken.data.nest import row_keys
from forsaken.data.records import Records
from forsaken.errors import DataError, DataNotFoundError, InputError, UnknownNameError

SMALL = Sizes(forget=6, reference=20, shadow_in=6, shadow_out=6, retain_share=0.05)
PARTS = ("kept", "forget", "reference", "test", "shadow_members", "shadow_nonmembers")
TEXTS = ["i-c", "imdb-id", "news-15-5", "news-id", "reuters-35-11", "reuters-35-11-keras", "reuters-id"]
PICTURES = ["c10-s", "c10-t", "c100-t", "c10-m", "cifar10-id", "cifar100-id", "tiny-90", "t100-c", "poison-10"]


def png(draw: np.random.Generator, side: int) -> dict[str, object]:
    buffer = io.BytesIO()
    Image.fromarray(draw.integers(256, size=(side, side, 3), dtype=np.uint8)).save(buffer, format="PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def write_pictures(folder, stem: str, classes: int, each: int, side: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    labels = np.tile(np.arange(classes), each)
    names = [f"class {label}" for label in labels]
    columns = {"image": [png(draw, side) for _ in labels], "label": labels, "label_name": names}
    pq.write_table(pa.table(columns), folder / f"{stem}.parquet")


def write_texts(folder, stem: str, classes: int, each: int, seed: int, **more) -> None:
    draw = np.random.default_rng(seed)
    labels = np.tile(np.arange(classes), each)
    bodies = [" ".join(f"w{n}" for n in draw.integers(300, size=draw.integers(20, 60))) for _ in labels]
    names = [f"class {label}" for label in labels]
    columns = {"text": bodies, "label": labels, "label_name": names}
    pq.write_table(pa.table(columns | {key: make(bodies) for key, make in more.items()}), folder / f"{stem}.parquet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_pictures(folder, "cifar10_train", 10, 30, 32, 1)
    write_pictures(folder, "cifar10_test", 10, 12, 32, 2)
    write_pictures(folder, "cifar100_train", 100, 2, 32, 3)
    write_pictures(folder, "cifar100_test", 100, 1, 32, 4)
    write_pictures(folder, "stl10_train", 10, 5, 96, 5)
    write_pictures(folder, "stl10_test", 10, 5, 96, 6)
    write_pictures(folder, "tiny_imagenet_train", 200, 2, 64, 7)
    write_pictures(folder, "tiny_imagenet_val", 200, 1, 64, 8)
    write_texts(folder, "imdb_train", 2, 60, 9)
    write_texts(folder, "imdb_test", 2, 60, 10)
    write_texts(folder, "customer_review", 2, 40, 11, split=lambda texts: ["train"] * len(texts))
    write_texts(folder, "20newsgroups_train", 20, 16, 12)

    def titles(texts):
        return [text if at % 7 == 3 else f"title {at}" for at, text in enumerate(texts)]

    numbers = {"title": titles, "newid": lambda texts: np.arange(len(texts))[::-1]}
    write_texts(folder, "reuters46", 46, 8, 13, split=lambda texts: ["train"] * len(texts), **numbers)
    return folder


@pytest.fixture
def small(folder, monkeypatch):
    monkeypatch.setenv("FORSAKEN_DATA", str(folder))
    for name, plan in SCENARIOS.items():
        if plan.datasets and name != "ptb-canaries":
            monkeypatch.setitem(SCENARIOS, name, dataclasses.replace(plan, sizes=SMALL))
    return folder


@pytest.fixture
def seen(monkeypatch):
    """What the scenarios of pictures load, by dataset and split."""
    loaded = {}
    real = pictures.load_dataset

    def spy(name, split, **more):
        loaded[name, split] = real(name, split, **more)
        return loaded[name, split]

    monkeypatch.setattr(pictures, "load_dataset", spy)
    monkeypatch.setattr(pictures, "_DECODED", {})
    return loaded


def same(a: Scenario, b: Scenario) -> bool:
    return all(
        torch.equal(getattr(a, name).inputs, getattr(b, name).inputs)
        and (getattr(a, name).labels is None or torch.equal(getattr(a, name).labels, getattr(b, name).labels))
        for name in PARTS
    ) and np.array_equal(a.retain_rows, b.retain_rows)


@pytest.mark.parametrize("name", TEXTS + PICTURES)
def test_sets_are_disjoint_and_fixed_by_the_seed(name: str, small) -> None:
    found = load_scenario(name, seed=1)
    keys = {part: set(row_keys(getattr(found, part).inputs)) for part in PARTS}
    assert all(keys.values())
    assert not keys["reference"] & (keys["kept"] | keys["forget"])
    if "keras" not in name:  # there, articles share their texts
        assert sum(map(len, keys.values())) == len(set().union(*keys.values()))
    labels = found.train.labels
    assert 0 <= int(labels.min()) <= int(labels.max()) < found.classes == SCENARIOS[name].classes
    assert 0 <= int(found.test.labels.min()) <= int(found.test.labels.max()) < found.classes
    assert same(found, load_scenario(name, seed=1))
    assert not same(found, load_scenario(name, seed=2))


@pytest.mark.parametrize("name", ["i-c", "news-15-5", "reuters-id", "c10-t"])
def test_the_network_takes_the_samples(name: str, small) -> None:
    found = load_scenario(name, seed=0)
    network = build(found.network, found.given).eval()
    with torch.no_grad():
        assert network(found.forget.inputs).shape == (6, found.classes)


def test_every_plan_is_complete() -> None:
    for name, plan in SCENARIOS.items():
        assert plan.name == name
        assert plan.summary
        assert plan.classes == plan.network.settings.get("classes", plan.classes)


def test_strangers_of_tiny_are_never_of_a_shared_class(small, seen) -> None:
    for name, task in (("c10-t", "cifar10"), ("c100-t", "cifar100")):
        found = load_scenario(name, seed=0)
        tiny = seen["tiny-imagenet", "train"]
        label_of = dict(zip(row_keys(tiny.samples().inputs), tiny.labels.tolist(), strict=True))
        for part in (found.forget, found.reference):
            labels = {label_of[key] for key in row_keys(part.inputs)}
            assert not labels & pictures.SHARED[task]


def test_mislabelled_pictures_never_keep_their_label(small, seen) -> None:
    found = load_scenario("c10-m", seed=0)
    train = seen["cifar10", "train"]
    own = dict(zip(row_keys(train.samples().inputs), train.labels.tolist(), strict=True))
    assert all(own[key] != label for key, label in zip(row_keys(found.forget.inputs), found.forget.labels, strict=True))
    stl = load_scenario("c10-s", seed=0)
    cifar = DATASETS["cifar10"].class_names
    order = ["automobile" if name == "car" else name for name in DATASETS["stl10"].class_names]
    own = {}
    for split in ("train", "test"):
        part = seen["stl10", split]
        own |= dict(zip(row_keys(part.samples().inputs), part.labels.tolist(), strict=True))
    for key, label in zip(row_keys(stl.forget.inputs), stl.forget.labels.tolist(), strict=True):
        assert cifar[label] != order[own[key]]


def test_a_process_decodes_pictures_once(small, seen) -> None:
    first = load_scenario("c10-t", seed=0)
    seen.clear()
    assert same(load_scenario("c10-t", seed=0), first)
    load_scenario("cifar10-id", seed=1)
    assert not seen


def test_poison_turns_a_share_of_one_class_into_another(small) -> None:
    found = load_scenario("poison-10", seed=0)
    count = len(found.forget)
    assert set(found.forget.labels.tolist()) == {3}
    assert found.truth.tolist() == [5] * count
    left = int((found.kept.labels == 5).sum())
    assert count == round(0.1 * (count + left))
    assert found.reference.labels is not None
    assert not found.outsiders


def test_poisoned_digits_and_a_part_of_the_pictures(small) -> None:
    found = load_scenario("poison-digits", seed=0)
    count = len(found.forget)
    assert set(found.forget.labels.tolist()) == {3}
    assert found.truth.tolist() == [5] * count
    assert count == round(0.4 * (count + int((found.kept.labels == 5).sum())))
    assert len(found.reference) == 100
    whole = SCENARIOS["poison-10"]
    part = dataclasses.replace(whole, options={**whole.options, "pictures": 200, "share": 0.3})
    drawn = [part.build(part, seed, lambda _: None) for seed in (0, 0, 1)]
    assert len(drawn[0].train) == 100
    assert same(drawn[0], drawn[1])
    assert not same(drawn[0], drawn[2])


def test_too_few_pictures_to_poison_is_an_error(small, monkeypatch) -> None:
    monkeypatch.setitem(SCENARIOS, "poison-10", dataclasses.replace(SCENARIOS["poison-10"], sizes=Sizes(reference=60)))
    with pytest.raises(InputError, match="poison-10 has no test samples; the dataset is too small"):
        load_scenario("poison-10", seed=0)


def test_drawn_classes_follow_the_seed_and_leave_out_shared_ones(small) -> None:
    a, b = load_scenario("t100-c", seed=0), load_scenario("t100-c", seed=1)
    assert len(set(a.names)) == 100
    assert a.names != b.names
    assert not {f"class {label}" for label in pictures.SHARED["cifar10"]} & set(a.names)
    assert len(load_scenario("tiny-90", seed=0).names) == 90


def test_no_word_or_vector_comes_from_a_forgotten_text(small, monkeypatch) -> None:
    from forsaken.bench.scenarios import texts

    seen = {}

    def spied(name):
        real = getattr(texts, name)

        def spy(*arguments, **more):
            seen[name] = (arguments, real(*arguments, **more))
            return seen[name][1]

        monkeypatch.setattr(texts, name, spy)

    for name in ("split_words", "draw_members", "halve", "word_vectors"):
        spied(name)
    fitted = []
    fit = texts.Vocabulary.fit
    monkeypatch.setattr(texts.Vocabulary, "fit", lambda corpus, size: fitted.append(corpus) or fit(corpus, size))
    for name in ("i-c", "imdb-id", "news-15-5", "news-id"):
        load_scenario(name, seed=0)
        corpus = seen["split_words"][1]
        halves = seen["draw_members"][1].halves if name.endswith("-id") else seen["halve"][1][0]
        allowed = [corpus[at] for at in (*halves.train, *halves.shadow_train)]
        assert fitted[-1] == allowed
        if name.startswith("news"):
            assert seen["word_vectors"][0][0] == allowed


def test_bags_are_as_wide_as_the_network_reads(small) -> None:
    assert load_scenario("reuters-id", seed=0).kept.inputs.shape[1] == 10_000


def test_a_linear_model_reads_bags_of_words(small) -> None:
    found = load_scenario("i-c", seed=0, model="logistic-regression")
    assert set(found.kept.inputs.unique().tolist()) == {0.0, 1.0}
    assert found.given == {}


def test_borrowed_bodies_are_those_of_the_nearest_earlier_article() -> None:
    texts = np.array(["a", "T1", "T2", "b", "T4", "T0"], dtype=object)
    titles = np.array(["x", "T1", "T2", "y", "T4", "T0"], dtype=object)
    numbers = np.array([10, 11, 30, 20, 21, 1])
    records = Records(texts, None, (), {"title": titles, "newid": numbers})
    assert borrowed_bodies(records).tolist() == ["a", "a", "b", "b", "b", "T0"]
    assert texts.tolist()[1] == "T1", "the records stay as they are"


def test_messages_lose_headers_quotes_and_signatures() -> None:
    message = "From: x\nSubject: y\n\nme@here (Me) writes:\n> old\n | older\nnew -- here\nIn article 3\nend\n-- \nMe"
    assert own_words(message) == "new -- here\nend"
    assert own_words("no headers at all") == "no headers at all"


def test_an_unknown_scenario_and_a_missing_dataset_say_what_to_do(monkeypatch, tmp_path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'reuters-35-11'"):
        load_scenario("reuters-35")
    monkeypatch.setenv("FORSAKEN_DATA", str(tmp_path))
    with pytest.raises(DataNotFoundError, match="forsaken datasets get reuters46"):
        load_scenario("reuters-id")


def test_a_dataset_smaller_than_the_scenario_needs_is_an_error(folder, monkeypatch) -> None:
    monkeypatch.setenv("FORSAKEN_DATA", str(folder))
    with pytest.raises(InputError, match="needs 1600 out-of-distribution rows, found 80"):
        load_scenario("i-c")
    with pytest.raises(InputError, match=r"too few|only"):
        load_scenario("reuters-id")


def test_labels_out_of_range_and_empty_classes_are_errors(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("FORSAKEN_DATA", str(tmp_path))
    write_texts(tmp_path, "20newsgroups_train", 21, 3, 0)
    with pytest.raises(DataError, match="expected 0 to 19"):
        load_scenario("news-id")
    write_texts(tmp_path, "20newsgroups_train", 19, 3, 0)
    with pytest.raises(DataError, match="class 19 is empty"):
        load_scenario("news-id")


@pytest.mark.skipif(not os.environ.get("FORSAKEN_DATA"), reason="FORSAKEN_DATA does not name the datasets' folder")
class TestRealData:
    def test_canaries_are_a_phrase_with_digits_that_the_text_does_not_hold(self) -> None:
        found = load_scenario("ptb-canaries", seed=0)
        characters = found.names
        first = "".join(characters[at] for at in found.forget.inputs[0].tolist())
        used = len(END + PHRASE) + 9
        assert first[: used - 9] == END + PHRASE
        assert first[used - 9 : used].isdigit()
        after = found.forget.labels[0].tolist()
        assert "".join(characters[at] for at in after[: used - 1]) == first[1:used]
        assert characters[after[used - 1]] == END
        assert set(after[used:]) == {-100}
        text = "".join(characters[at] for at in found.kept.inputs.flatten().tolist())
        assert PHRASE not in text
        canaries = torch.cat([found.forget.inputs, found.reference.inputs])
        assert len(canaries.unique(dim=0)) == len(found.forget) + len(found.reference) == 1100

    def test_reuters_has_the_sizes_of_the_benchmark(self) -> None:
        found = load_scenario("reuters-35-11-keras", seed=0)
        assert (len(found.kept), len(found.forget), len(found.test), found.classes) == (3777, 200, 888, 35)
        inside = load_scenario("reuters-id", seed=0)
        assert inside.classes == 46
        assert 4480 <= len(inside.train) <= 4491
        assert 970 <= len(inside.reference) <= 1000

    def test_news_keeps_a_fifth_for_testing(self) -> None:
        found = load_scenario("news-id", seed=0)
        assert (len(found.train), len(found.test)) == (4524, 1122), "a fifth, less what repeats a training sample"
        assert found.given["vectors"].shape == (20_002, 100)

    def test_imdb_has_the_paper_s_vocabulary(self) -> None:
        found = load_scenario("i-c", seed=0)
        assert (len(found.train), len(found.test), len(found.reference)) == (12_700, 12_470, 1000)
        assert int(found.kept.inputs.max()) == 25_001
        assert found.kept.inputs.shape[1] == 200
