"""`forsaken bench`: lists, runs, tables and pages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from job_folders import forsaken


def test_the_list_names_every_benchmark(tmp_path: Path) -> None:
    found = forsaken("bench", "list", "--folder", tmp_path, "--json").json
    assert {"fr-ood", "poison", "truth"} <= {one["name"] for one in found}
    assert {one["done"] for one in found} == {0}
    assert all(one["trials"] > 0 for one in found)
    shown = forsaken("bench", "list", "--folder", tmp_path)
    assert "white-box" in shown.out


def test_a_run_measures_once_and_its_table_shows_it(tmp_path: Path) -> None:
    words = ("bench", "run", "membership", "--scenario", "digits", "--seeds", "1", "--folder", tmp_path / "results")
    store = ("--store", tmp_path / "store")
    told = forsaken(*words, *store, "--dry-run", "--json").json
    assert (told["trials"], told["to_do"]) == (1, 1)
    assert told["mebibytes"] > 1
    assert not (tmp_path / "results").exists(), "a dry run writes nothing"
    assert forsaken(*words, *store, "--json").json["measured"] == 1
    assert forsaken(*words, *store, "--json").json["measured"] == 0
    assert forsaken(*words, *store, "--dry-run", "--json").json["to_do"] == 0
    assert forsaken(*words, *store, "--anew", "--dry-run", "--json").json["to_do"] == 1
    assert forsaken(*words, *store, "--anew", "--json").json["measured"] == 1
    folder = ("--folder", tmp_path / "results")
    (table,) = forsaken("bench", "table", "membership", *folder, "--json").json
    (line,) = [one for one in table["lines"] if one["n"]]
    assert line["scenario"] == "digits"
    assert 0.5 < line["oracle_balanced_accuracy"]["mean"] <= 1
    assert "| before | 1 |" in forsaken("bench", "table", "membership", *folder, "--markdown").out
    shown = forsaken("bench", "table", "membership", *folder)
    assert "balanced" in shown.out
    assert "digits: measured on a CPU" in " ".join((shown.out + shown.err).split())
    ended = forsaken("bench", "pages", *folder, "--docs", tmp_path / "docs")
    assert ended.code == 0, ended.err
    assert {path.name for path in (tmp_path / "docs").iterdir()} == {"results.md", "results.html"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "fr-odd"), "did you mean 'fr-ood'"),
        (("run", "fr-ood", "--scenario", "digitss"), "did you mean 'digits'"),
        (("run", "fr-ood", "--scenario", "imdb-id"), "has a trial on imdb-id"),
        (("run", "fr-ood", "--row", "salunn"), "did you mean 'salun'"),
        (("run", "membership", "--scenario", "digits", "--row", "salun"), "has the row salun; expected one of before"),
        (("run", "membership", "--scenario", "digits", "--seeds", "a-b"), "seeds is 'a-b'"),
        (("run", "membership", "--scenario", "digits", "--seeds", "0"), "seeds is '0'"),
        (("run", "membership", "--scenario", "digits", "--device", "tpu"), "unknown device 'tpu'"),
        (("run", "membership", "--scenario", "digits", "--address", "ray://a:1"), "expected --engine ray"),
        (("run", "membership", "--scenario", "digits", "--engine", "spark"), "unknown engine 'spark'"),
        (("table", "nothing"), "unknown benchmark 'nothing'"),
    ],
)
def test_bad_words_are_told_with_their_remedy(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    ended = forsaken("bench", *words, "--folder", tmp_path / "results")
    assert ended.code == 2
    assert message in " ".join(ended.err.split())
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    "verb", [("list",), ("run", "membership", "--scenario", "digits"), ("table", "cfr"), ("pages",)]
)
def test_a_file_in_place_of_the_folder_of_results_is_told_at_once(tmp_path: Path, verb: tuple[str, ...]) -> None:
    (tmp_path / "one").write_text("kept")
    ended = forsaken("bench", *verb, "--folder", tmp_path / "one")
    assert ended.code == 2
    assert "is a file, expected a folder" in " ".join(ended.err.split())
    assert (tmp_path / "one").read_text() == "kept"


@pytest.mark.parametrize("verb", [("table", "cfr"), ("pages",)])
def test_a_folder_without_results_replaces_no_page(tmp_path: Path, verb: tuple[str, ...]) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "results.md").write_text("kept")
    docs = ("--docs", tmp_path / "docs") if verb == ("pages",) else ()
    ended = forsaken("bench", *verb, *docs, "--folder", tmp_path / "nowhere")
    assert ended.code == 2
    assert "holds no results; give the folder of trials" in " ".join(ended.err.split())
    assert (tmp_path / "docs" / "results.md").read_text() == "kept"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_begins_on_one(tmp_path: Path) -> None:
    ended = forsaken("bench", "run", "membership", "--scenario", "digits", "--device", "cuda", "--folder", tmp_path)
    assert ended.code == 2
    assert "torch finds no GPU here" in " ".join(ended.err.split())


def test_what_is_left_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORSAKEN_DATA", str(tmp_path / "empty"))
    told = forsaken("bench", "run", "overtraining", "--seeds", "0,1", "--dry-run", "--folder", tmp_path, "--json").json
    assert "forsaken datasets get cifar10" in told["left_out"]["c10-t"]
    assert "forsaken datasets get reuters46" in told["left_out"]["reuters-35-11"]
    assert told["to_do"] == 30, "digits are always there: three stages, five rows, two seeds"
