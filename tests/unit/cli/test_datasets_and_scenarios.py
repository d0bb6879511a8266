"""`forsaken datasets` and `forsaken scenarios`, as people type them: what they print, and how they end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from forsaken.bench.datasets.registry import DATASETS, Archive, Dataset
from forsaken.bench.scenarios.table import SCENARIOS, load_scenario
from forsaken.cli.main import app, main
from forsaken.errors import DataNotFoundError
from forsaken.types import Progress

FACTS = {"name", "title", "kind", "rows", "splits", "classes", "megabytes", "here", "home", "cite", "terms"}
PLAN = {
    *("name", "summary", "note", "datasets", "here", "classes", "forget", "reference", "network", "recipe", "paper"),
}


class Ended(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Ended]


def parse(files: Mapping[str, Path], progress: Progress) -> dict[str, pa.Table]:
    words = files["toy.txt"].read_text().split()
    return {
        "toy": pa.table({"text": words, "label": [at % 2 for at in range(len(words))], "split": ["train"] * len(words)})
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    facts = {"title": "Toy [reviews]", "kind": "text", "home": "http://x/", "cite": "Nobody [1], 2025", "terms": "none"}
    archive = Archive("http://127.0.0.1:9/toy.txt", "toy.txt", None, 0.25)
    toy = Dataset("toy-reviews", **facts, archives=(archive,), parts={"train": "toy"}, rows={"train": 4}, classes=2,
                  class_names=("a", "b"), parse=parse)  # fmt: skip
    monkeypatch.setitem(DATASETS, "toy-reviews", toy)
    monkeypatch.setenv("FORSAKEN_DATA", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("COLUMNS", "400")
    return tmp_path


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["forsaken", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return Ended(int(ended.value.code or 0), told.out, told.err)

    return call


def give(folder: Path, words: str = "good bad fine poor") -> None:
    (folder / "toy.txt").write_text(words)


def row_of(table: str, name: str) -> str:
    (found,) = [line for line in table.splitlines() if re.match(rf"\W*{re.escape(name)} ", line)]
    return found


def test_every_dataset_is_listed_with_its_facts(run: Run, folder: Path) -> None:
    ended = run("datasets", "list", "--json")
    found = json.loads(ended.out)
    assert (ended.code, ended.err) == (0, "")
    assert found["folder"] == str(folder)
    assert [row["name"] for row in found["datasets"]] == list(DATASETS)
    assert all(row.keys() == FACTS for row in found["datasets"])
    toy = found["datasets"][-1]
    assert (toy["rows"], toy["splits"], toy["classes"], toy["megabytes"]) == (4, {"train": 4}, 2, 0.2)


def test_the_list_tells_what_is_here(run: Run, folder: Path) -> None:
    assert {row["here"] for row in json.loads(run("datasets", "list", "--json").out)["datasets"]} == {"no"}
    give(folder)
    rows = json.loads(run("datasets", "list", "--json").out)["datasets"]
    assert [row["name"] for row in rows if row["here"] == "yes"] == ["toy-reviews"]


def test_the_list_for_people(run: Run, folder: Path) -> None:
    give(folder)
    ended = run("datasets", "list")
    assert (ended.code, ended.err) == (0, "")
    assert str(folder) in ended.out
    assert re.search(r"CIFAR-10 .*60,000 .*10 .*170\.1 MB .*no", row_of(ended.out, "cifar10"))
    assert "yes" in row_of(ended.out, "toy-reviews")


def test_get_says_where_the_files_are_and_whom_to_cite(run: Run, folder: Path) -> None:
    give(folder)
    ended = run("datasets", "get", "toy-reviews")
    assert ended.code == 0
    assert ended.out.splitlines() == [str(folder / "toy.parquet"), "  Nobody [1], 2025", "  terms: none"]
    assert pq.read_metadata(folder / "toy.parquet").num_rows == 4


def test_get_as_json_is_nothing_but_json(run: Run, folder: Path) -> None:
    give(folder)
    for _ in range(2):
        ended = run("datasets", "get", "toy-reviews", "toy-reviews", "--json")
        assert (ended.code, json.loads(ended.out)) == (0, {"toy-reviews": [str(folder / "toy.parquet")]})


def test_get_checks_all_names_before_it_begins(run: Run, folder: Path) -> None:
    give(folder)
    ended = run("datasets", "get", "toy-reviews", "imdbb")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: unknown dataset 'imdbb'; did you mean 'imdb'? (known: 20newsgroups, ")
    assert not (folder / "toy.parquet").exists()


def test_get_without_a_network_is_one_message(run: Run, folder: Path) -> None:
    ended = run("datasets", "get", "toy-reviews")
    assert (ended.code, ended.out) == (2, "")
    assert re.search(
        r"error: cannot download toy\.txt from http://127\.0\.0\.1:9/toy\.txt: .*check the network", ended.err
    )
    assert "Traceback" not in ended.err


def test_get_refuses_an_archive_of_other_rows(run: Run, folder: Path) -> None:
    give(folder, "too few")
    ended = run("datasets", "get", "toy-reviews")
    assert ended.code == 2
    assert "error: the archive of toy-reviews gave 2 rows for toy, expected 4" in ended.err


def test_check_finds_everything_good(run: Run, folder: Path) -> None:
    give(folder)
    run("datasets", "get", "toy-reviews")
    ended = run("datasets", "check")
    assert ended.code == 0
    assert re.search(r"toy\.parquet .* 4 .*good; checksum as written", row_of(ended.out, "toy-reviews"))
    found = json.loads(run("datasets", "check", "--json").out)
    good = {"dataset": "toy-reviews", "file": "toy.parquet", "rows": 4, "problem": "", "note": "checksum as written"}
    assert found == {"folder": str(folder), "files": [good]}


@pytest.mark.parametrize("as_json", [False, True])
def test_check_ends_with_3_where_a_file_has_a_problem(run: Run, folder: Path, as_json: bool) -> None:
    pq.write_table(pa.table({"text": ["a", "b"], "label": [0, 7]}), folder / "toy.parquet")
    ended = run("datasets", "check", *["--json"] * as_json)
    assert ended.code == 3
    told = json.loads(ended.out)["files"][0]["problem"] if as_json else row_of(ended.out, "toy-reviews")
    assert "the label of row 1 is 7, expected 0 to 1" in told
    assert "Traceback" not in ended.err


def test_check_of_a_dataset_that_is_not_here_says_how_to_get_it(run: Run) -> None:
    ended = run("datasets", "check", "toy-reviews")
    assert ended.code == 3
    assert "run: forsaken datasets get toy-reviews" in row_of(ended.out, "toy-reviews")


def test_check_of_an_empty_folder_says_so(run: Run, folder: Path) -> None:
    ended = run("datasets", "check")
    assert (ended.code, ended.out) == (0, f"no dataset in {folder}; get one with: forsaken datasets get NAME\n")
    assert json.loads(run("datasets", "check", "--json").out) == {"folder": str(folder), "files": []}


def test_check_of_an_unknown_name_is_helped(run: Run) -> None:
    ended = run("datasets", "check", "toy-review")
    assert (ended.code, ended.out) == (2, "")
    assert "error: unknown dataset 'toy-review'; did you mean 'toy-reviews'?" in ended.err


@pytest.mark.parametrize("command", ["datasets", "scenarios"])
def test_an_incomplete_dataset_does_not_end_the_list(run: Run, folder: Path, command: str) -> None:
    table = pa.table({"text": ["a", "b"], "label": [0, 1]})
    pq.write_table(table, folder / "cifar10_train-00000-of-00002.parquet")
    assert run(command, "list").code == 0


def test_every_scenario_is_listed_with_its_facts(run: Run, folder: Path) -> None:
    ended = run("scenarios", "list", "--json")
    found = json.loads(ended.out)
    assert (ended.code, ended.err) == (0, "")
    assert [row["name"] for row in found] == list(SCENARIOS)
    assert all(row.keys() == PLAN for row in found)
    built_in = ["digits", "digits-pictures", "digits-id", "poison-digits"]
    assert [row["name"] for row in found if row["here"] == "yes"] == built_in
    assert {name for row in found for name in row["datasets"]} <= set(DATASETS)


def test_the_scenarios_for_people(run: Run) -> None:
    ended = run("scenarios", "list")
    assert ended.code == 0
    assert re.search(r"built in .*yes", row_of(ended.out, "digits "))
    assert re.search(r"cifar10, stl10 .*no", row_of(ended.out, "c10-s"))
    assert all(row_of(ended.out, name) for name in SCENARIOS)


def test_a_scenario_whose_data_are_here_is_shown_with_the_sizes_of_its_seed(run: Run) -> None:
    ended = run("scenarios", "show", "digits", "--seed", "3", "--json")
    found = json.loads(ended.out)
    expected = load_scenario("digits", seed=3)
    assert ended.code == 0
    assert found.keys() == PLAN | {"seed", "samples", "trainable_parameters"}
    assert (found["seed"], found["samples"]) == (3, expected.sizes())
    assert found["trainable_parameters"] == 64 * 2048 + 2048 + 2048 * 8 + 8
    assert found["samples"]["forget"] == found["forget"] == 40


def test_a_scenario_for_people(run: Run) -> None:
    ended = run("scenarios", "show", "digits")
    assert ended.code == 0
    assert ended.out.startswith("digits: 0 to 7 of scikit-learn's digits")
    assert "149,512" in ended.out
    assert "not here" not in ended.out


def test_a_scenario_whose_data_are_missing_says_how_to_get_them(run: Run) -> None:
    ended = run("scenarios", "show", "c10-s")
    assert ended.code == 0
    assert ended.out.splitlines()[-1] == "its data are not here; run: forsaken datasets get cifar10 stl10"
    assert re.search(r"paper: forgetting rate \(FR\).*0\.9762", ended.out)
    found = json.loads(run("scenarios", "show", "c10-s", "--json").out)
    assert (found.keys(), found["here"]) == (PLAN, "no")
    assert (found["paper"]["fr"], found["paper"]["retrained_fr"], found["paper"]["memorised"]) == (0.9762, 0.9345, 168)
    with pytest.raises(DataNotFoundError, match=r"run: forsaken datasets get cifar10$"):
        load_scenario("c10-s")


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_can_be_shown_without_its_data(run: Run, name: str) -> None:
    ended = run("scenarios", "show", name)
    assert (ended.code, ended.err if "digits" not in name else "") == (0, "")
    assert ended.out.startswith(f"{name}: {SCENARIOS[name].summary}")


def test_an_unknown_scenario_is_helped(run: Run) -> None:
    ended = run("scenarios", "show", "reuters-35")
    assert (ended.code, ended.out) == (2, "")
    assert "error: unknown scenario 'reuters-35'; did you mean 'reuters-35-11'?" in ended.err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("scenarios", "show", "digits", "--seed", "-1"), "--seed"),
        (("datasets", "get"), "names"),
        (("datasets", "lits"), "list"),
    ],
)
def test_wrong_usage_ends_with_2(run: Run, arguments: tuple[str, ...], word: str) -> None:
    ended = run(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert word in ended.err.lower()


@pytest.mark.parametrize("verb", ["datasets", "scenarios"])
def test_every_verb_has_help_with_an_example(verb: str) -> None:
    shown = CliRunner().invoke(app, [verb, "list", "--help"])
    assert shown.exit_code == 0
    assert f"forsaken {verb} list" in shown.output


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("datasets", "get", "imdbb"), 2, "error: unknown dataset 'imdbb'; did you mean 'imdb'?"),
        (("datasets", "check", "imdb"), 3, ""),
    ],
)
def test_a_process_ends_with_its_code_and_without_a_traceback(
    tmp_path: Path, arguments: tuple[str, ...], code: int, word: str
) -> None:
    environment: dict[str, Any] = os.environ | {"FORSAKEN_DATA": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "forsaken.cli.main", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code
    assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
