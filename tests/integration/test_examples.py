"""The examples, as a newcomer runs them: the commands of each README, in a clean folder."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from forsaken.jobs.certificate import Certificate
from forsaken.jobs.configuration import TABLES, read_job

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NAMES = ("pictures", "texts", "dataset")
WEIGHTS = {"pictures": "model.safetensors", "texts": "model.skops", "dataset": "model.safetensors"}
RUNS = {"pictures": ("forgotten",), "texts": ("forgotten", "forgotten-later"), "dataset": ("forgotten",)}
REFERENCES = {"references.safetensors", "references.safetensors.key"}
ALWAYS = {"certificate.json", "posteriors.npz", "report.html", "result.json"}


@dataclass
class Played:
    """An example after its commands were run; `said` is everything that they printed."""

    name: str
    folder: Path
    said: str = ""
    old: str = ""
    lines: list[str] = field(default_factory=list)

    @property
    def weights(self) -> str:
        return WEIGHTS[self.name]

    @property
    def forgotten(self) -> Path:
        return self.folder / "forgotten"

    def result(self, run: str = "forgotten") -> dict:
        return json.loads((self.folder / run / "result.json").read_text(encoding="utf-8"))


def commands(name: str) -> list[str]:
    text = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
    return "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).splitlines()


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    settings = {name: value for name, value in os.environ.items() if name != "FORSAKEN_DATA"}
    settings |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100"}
    settings |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        ["bash", "-ec", line], cwd=folder, env=settings, capture_output=True, text=True, timeout=300, check=False
    )


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def play(name: str, folder: Path) -> Played:
    sources = [path for path in (EXAMPLES / name).iterdir() if path.suffix in (".md", ".py", ".toml")]
    for path in sources:
        shutil.copy(path, folder)
    played = Played(name, folder, lines=commands(name))
    for line in played.lines:
        done = shell(line, folder)
        # A failed verdict is no failed command: 4 and 5 tell what was, or was not, shown.
        usual = (0, 4, 5) if line.startswith(("forsaken unlearn", "forsaken verify")) else (0,)
        assert done.returncode in usual, f"{name}: {line}\n{done.stdout}\n{done.stderr}"
        played.said += done.stdout + done.stderr
        if line.endswith((" prepare.py", " train.py")) and (folder / played.weights).exists():
            played.old = sha256(folder / played.weights)
    return played


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """Run an example once, whoever asks first."""
    done: dict[str, Played] = {}

    def played(name: str) -> Played:
        if name not in done:
            done[name] = play(name, tmp_path_factory.mktemp(name))
        return done[name]

    return played


@pytest.fixture
def pictures(stage) -> Played:
    return stage("pictures")


@pytest.fixture
def texts(stage) -> Played:
    return stage("texts")


@pytest.fixture
def dataset(stage) -> Played:
    return stage("dataset")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def runs_of_words(text: str, count: int = 7) -> set[str]:
    """Return every run of plain words: what would give a text away, however it is quoted."""
    parts = re.split(r"[^A-Za-z ]+", text)
    found = set()
    for words in (part.split() for part in parts):
        found |= {" ".join(words[at : at + count]) for at in range(len(words) - count + 1)}
    return found


def secrets(played: Played) -> set[str]:
    """Return strings that would show what a forgotten record holds, or whose it is."""
    if played.name == "pictures":
        names = (played.folder / "erase.txt").read_text(encoding="utf-8").split()
        files = [(played.folder / "pictures/train" / name).read_bytes() for name in names]
        return {*names} | {base64.b64encode(content).decode()[40:80] for content in files}
    if played.name == "texts":
        asked = [played.folder / name for name in ("erase.txt", "erase-later.txt")]
        ids = {line for path in asked for line in path.read_text(encoding="utf-8").split()}
        gone = [row["text"] for row in rows(played.folder / "train.csv") if row["id"] in ids]
        assert len(gone) == 28
        return ids.union(*map(runs_of_words, gone))
    place = importlib.util.spec_from_file_location("patients_of_the_example", played.folder / "patients.py")
    patients = importlib.util.module_from_spec(place)
    place.loader.exec_module(patients)
    measured = [x.tolist() for x, _ in patients.mixed_up()]
    assert len(measured) == 12
    # All the digits that a float32 has, or one of the many numbers of a result would be the same by chance.
    return {str(abs(value))[:9] for patient in measured for value in patient}


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_there_and_nothing_else(name, stage) -> None:
    played = stage(name)
    more = {
        "pictures": {"records.key", "rows-to-delete.csv", "audit-standard.json", *REFERENCES},
        "texts": {"cleaned.csv", "copies-that-stay.csv"},
        "dataset": {"records.key", "rows-to-delete.csv"},
    }
    written = {path.name for path in played.forgotten.iterdir()}
    assert written == ALWAYS | {played.weights} | more[name]
    for run in RUNS[name]:
        assert (played.folder / run / "report.html").stat().st_size < 3_000_000


@pytest.mark.parametrize("name", NAMES)
def test_old_weights_are_untouched(name, stage) -> None:
    played = stage(name)
    assert sha256(played.folder / played.weights) == played.old
    stated = Certificate.read(played.forgotten / "certificate.json").weights
    assert stated.old.sha256 == played.old
    assert stated.new.sha256 == sha256(played.forgotten / played.weights) != played.old


@pytest.mark.parametrize("name", NAMES)
def test_tampered_weights_are_found_out(name, stage, tmp_path) -> None:
    played = stage(name)
    content = bytearray((played.forgotten / played.weights).read_bytes())
    content[-1] ^= 1
    copy = tmp_path / played.weights
    copy.write_bytes(bytes(content))
    verify = "forsaken verify forgotten/certificate.json --public-key signing.pem.pub"
    done = shell(f"{verify} --weights {copy}", played.folder)
    assert done.returncode == 3
    assert "NOT verified" in done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_no_file_and_no_line_shows_a_record(name, stage) -> None:
    played = stage(name)
    places = {
        f"{run}/{file}": (played.folder / run / file).read_text(encoding="utf-8")
        for run in RUNS[name]
        for file in ("report.html", "result.json")
    }
    for run in RUNS[name]:
        places[run] = Certificate.read(played.folder / run / "certificate.json").payload.decode()
    hidden = secrets(played)
    assert len(hidden) > 20
    for place, text in (places | {"terminal": played.said}).items():
        shown = [each for each in hidden if each in text]
        assert not shown, f"{place} shows {len(shown)} of {len(hidden)}"


@pytest.mark.parametrize("name", NAMES)
def test_readme_shows_what_is_printed(name, stage) -> None:
    text = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    shown = "".join(re.findall(r"```text\n(.*?)```", text, re.DOTALL))
    labels = [line.split("│")[1].strip() for line in shown.splitlines() if line.startswith("│")]
    assert len(labels) >= 4
    for label in labels:
        assert label in stage(name).said
    assert shown.splitlines()[0].strip() in stage(name).said


def test_pictures_are_forgotten(pictures) -> None:
    result = pictures.result()
    assert result["counts"]["forget"] == 24
    assert result["target"]["target"].startswith("out-of-fold")
    assert result["request"] == {"case": "2026-117", "due": "2030-12-01"}
    assert result["accuracy_before"] - result["accuracy_after"] <= 0.02
    apart = result["separation"]
    assert apart["before"] > 0.8
    assert abs(apart["after"] - 0.5) < 0.25
    assert "are the samples memorised?" in pictures.said
    audit = json.loads((pictures.forgotten / "audit-standard.json").read_text(encoding="utf-8"))
    found = {number["name"]: number for number in audit["numbers"]}
    for name in ("rmia_auc", "lira_auc"):
        assert found[name]["before"] > 0.9
        assert found[name]["interval"][0] < 0.5 < found[name]["interval"][1]
    assert "Verified" in pictures.said


def test_the_quick_start_has_the_commands_of_the_example() -> None:
    text = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    shown = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).splitlines()
    assert shown[-8:] == commands("pictures")
    assert shown[:-8] == [
        "git clone https://forsaken.example/forsaken.git",
        "cd forsaken",
        "make demo",
        ". .venv/bin/activate",
        "cp -r examples/pictures my-model",
        "cd my-model",
    ]


def test_the_quick_start_quotes_its_own_measurement() -> None:
    """`benchmarks/first_page.py` follows the page in a new clone, and writes what the page says."""
    text = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    found = json.loads((ROOT / "benchmarks/results/first-page.json").read_text(encoding="utf-8"))
    shown = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).splitlines()
    assert [step["command"] for step in found["steps"]] == shown
    assert {step["exit"] for step in found["steps"]} == {0}
    assert f"about {found['seconds'] / 60:.0f} minutes on a machine with {found['cores']} cores" in text
    assert f"*{found['verdict']}*" in text
    for each in ("rmia_auc", "lira_auc", "white_box_auc"):
        number = found["audit"][each]
        low, high = number["interval"]
        assert f"| {number['before']:.2f} | {number['value']:.2f} ({low:.2f} to {high:.2f}) |" in text
    accuracy = found["audit"]["accuracy"]
    assert f"went from {accuracy['before']:.3f} to {accuracy['value']:.3f}" in text


def test_pictures_to_delete_are_named(pictures) -> None:
    asked = (pictures.folder / "erase.txt").read_text(encoding="utf-8").split()
    listed = rows(pictures.forgotten / "rows-to-delete.csv")
    assert sorted(row["file"] for row in listed) == sorted(asked)


def test_texts_are_forgotten(texts) -> None:
    for run, count in (("forgotten", 16), ("forgotten-later", 12)):
        result = texts.result(run)
        assert result["counts"]["forget"] == count
        assert result["stopped"] != "not-memorised"
        assert result["separation"]["before"] > 0.6
        assert abs(result["separation"]["after"] - 0.5) < 0.15
        assert result["forget_confidence"]["after"] < result["forget_confidence"]["before"] - 0.05
        assert result["accuracy_before"] - result["accuracy_after"] <= 0.04


def test_texts_leave_the_training_data(texts) -> None:
    asked = set((texts.folder / "erase.txt").read_text(encoding="utf-8").split())
    before, after = rows(texts.folder / "train.csv"), rows(texts.forgotten / "cleaned.csv")
    assert after == [row for row in before if row["id"] not in asked]
    later = set((texts.folder / "erase-later.txt").read_text(encoding="utf-8").split())
    assert rows(texts.folder / "forgotten-later/cleaned.csv") == [row for row in after if row["id"] not in later]
    cleaning = texts.result()["cleaning"]
    assert (cleaning["rows"], cleaning["file"]) == (16, "cleaned.csv")
    assert cleaning["near"] >= 1
    assert "copies of forgotten records stay in the training data" in texts.said


def test_second_request_goes_on_from_the_first(texts) -> None:
    first, second = texts.result()["chain"], texts.result("forgotten-later")["chain"]
    assert [link["forgotten"] for link in second["links"]] == [16, 12]
    assert second["drift"] == pytest.approx(sum(link["drift"] for link in second["links"]))
    assert second["links"][0]["drift"] == first["drift"] > 0
    assert second["max_drift"] == 2.0
    assert "all 16 are among the 16 forgotten" in texts.said
    assert "all 2 requests join up" in texts.said


def test_a_stranger_s_text_is_not_among_the_forgotten(texts, tmp_path) -> None:
    others = rows(texts.folder / "test.csv")[:1]
    with (tmp_path / "others.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["id", "text", "label"])
        writer.writeheader()
        writer.writerows(others)
    verify = "forsaken verify forgotten/certificate.json --weights forgotten/model.skops --record-key records.key"
    done = shell(f"{verify} --public-key signing.pem.pub --records {tmp_path / 'others.csv'}", texts.folder)
    assert done.returncode == 3
    assert "none of the 1 is among the 16 forgotten" in " ".join(done.stdout.split())


def test_patients_are_put_right(dataset) -> None:
    result = dataset.result()
    assert result["counts"]["forget"] == 12
    right = result["forget_accuracy"]
    assert right["before"] <= 0.1
    assert right["after"] >= 0.9
    assert result["accuracy_before"] - result["accuracy_after"] <= 0.04
    assert result["target"]["target"] == "corrected"
    assert [int(row["row"]) for row in rows(dataset.forgotten / "rows-to-delete.csv")] == list(range(12))


def test_certificate_of_the_dataset_is_signed(dataset, tmp_path) -> None:
    assert "Verified: the holder of the given key signed this certificate" in dataset.said
    shell("forsaken keys new-signing other.pem", tmp_path)
    verify = "forsaken verify forgotten/certificate.json --weights forgotten/model.safetensors"
    done = shell(f"{verify} --public-key {tmp_path / 'other.pem.pub'}", dataset.folder)
    assert done.returncode == 3


@pytest.mark.parametrize("line", commands("free-references"))
def test_models_of_a_cross_validation_serve_as_references(line, tmp_path) -> None:
    for path in (EXAMPLES / "free-references").glob("*.py"):
        shutil.copy(path, tmp_path)
    done = shell(line, tmp_path)
    assert done.returncode == 0, done.stderr
    before, after = map(float, re.findall(r"([\d.]+) before, ([\d.]+) after", done.stdout)[0])
    assert after < 0.2 * before
    assert re.search(r"your word: (\d+) of \1", done.stdout)


def test_table_of_examples_is_complete() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    folders = sorted(path.parent.name for path in EXAMPLES.glob("*/forsaken.toml"))
    assert folders == sorted(NAMES)
    for name in NAMES:
        assert f"({name}/README.md)" in text
        links = re.findall(r"\]\(([^)#]+)\)", (EXAMPLES / name / "README.md").read_text(encoding="utf-8"))
        assert links
        assert all((EXAMPLES / name / link).exists() for link in links)


def test_guide_names_every_key_and_its_job_is_sound(tmp_path) -> None:
    text = (ROOT / "docs/guide/jobs.md").read_text(encoding="utf-8")
    for table, kind in TABLES.items():
        assert f"**[{table}]**" in text
        for key in {*kind.model_fields} - {"settings"}:
            assert f"`{key}`" in text, f"[{table}] {key}"
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "forsaken.toml").write_text(example, encoding="utf-8")
    assert read_job(tmp_path / "forsaken.toml").output.folder == "forgotten"
