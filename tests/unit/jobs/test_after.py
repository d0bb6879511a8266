"""`--after`: request after request on the output of the last, without a word of the job file changed but the ids."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
from job_folders import RECIPE, forsaken, result_of, run, table, tabled, world, write_job, write_world
from PIL import Image

from forsaken._keys import read_record_key
from forsaken.data.readers import read_records
from forsaken.data.record_hashes import record_hashes
from forsaken.errors import OutputError, SettingsError
from forsaken.jobs.after import job_after
from forsaken.jobs.certificate import Certificate, file_hash
from forsaken.jobs.configuration import read_job
from forsaken.references.table import References

FIRST = 1120  # the id of the first record to forget in train.parquet


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the page, which takes a second."""
    monkeypatch.setattr(
        "forsaken.report.page.write_report", lambda place, *_: (place / "report.html").write_text("page")
    )


def asked(number: int) -> dict[str, Any]:
    """[data] of the given request: two records that no other request has."""
    first = FIRST + 2 * (number - 1)
    return {"id": "id", "forget": {"of": "train", "ids": [first, first + 1]}}


def of(folder: Path) -> Certificate:
    return Certificate.read(folder / "certificate.json")


def test_five_requests_in_a_row(tmp_path: Path, quick: None) -> None:
    folder = tmp_path / "job"
    tabled(folder, data=asked(1))
    before = folder
    for number in range(1, 6):
        job = write_job(folder, data=asked(number), references={"folds": 2}, audit={"recipe": RECIPE})
        words = ["--after", before] if number > 1 else []
        ended = forsaken("unlearn", job, *words)
        assert ended.code == 0, ended.err
        out = folder / ("forgotten" if number == 1 else f"forgotten-{number}")
        assert f"weights:     {out / 'model.safetensors'}" in ended.out
        told = of(out)
        assert told.weights.old.sha256 == file_hash(before / "model.safetensors")
        assert [link.number for link in told.chain.links] == list(range(1, number + 1))
        assert told.chain.links[-1].forgotten == 2
        ids = set(pq.read_table(out / "cleaned.parquet")["id"].to_pylist())
        assert ids == set(range(1000, 1132)) - set(range(FIRST, FIRST + 2 * number))
        assert told.files["cleaned.parquet"] == file_hash(out / "cleaned.parquet")
        before = out
    # One key for all five, and a table of references that is rid of all ten.
    keys = {read_record_key(each / "records.key") for each in (folder / "forgotten", *folder.glob("forgotten-*"))}
    assert len(keys) == 1
    left = References.load(before / "references.safetensors", key=keys.pop())
    assert left.forgotten == 10
    assert len(left) == 122
    forgot = safetensors.torch.load_file(before / "model.safetensors")
    assert not all(np.array_equal(forgot[name], world().states["model"][name]) for name in forgot)
    # A record is found in the whole chain, whichever request forgot it.
    train = pq.read_table(folder / "train.parquet")
    rows = [train["id"].to_pylist().index(each) for each in range(FIRST, FIRST + 10)]
    pq.write_table(train.take(rows), tmp_path / "mine.parquet")
    pq.write_table(train.take([0, *rows]), tmp_path / "more.parquet")
    check = ["verify", before / "certificate.json", "--weights", before / "model.safetensors", "--any-signer"]
    check += ["--record-key", before / "records.key", "--records"]
    assert "2 of 10 are among the 2 forgotten, 8 not" in forsaken(*check, tmp_path / "mine.parquet").out
    found = forsaken(*check, tmp_path / "mine.parquet", "--chain").out
    assert "all 10 are among the 10 forgotten by 5 requests (request 1: 2, request 2: 2," in found
    assert "all 5 requests join up" in found
    stranger = forsaken(*check, tmp_path / "more.parquet", "--chain")
    assert stranger.code == 3
    assert "10 of 11 are among the 10 forgotten by 5 requests" in stranger.out
    shutil.move(folder / "forgotten-2", tmp_path / "elsewhere")
    assert "2 not (rows 2, 3, counted from 0); 1 certificate of the chain was not found" in (
        forsaken(*check, tmp_path / "mine.parquet", "--chain").out
    )
    # The audit of the last request finds its way with the same word.
    audited = forsaken("audit", job, "--after", folder / "forgotten-4")
    assert audited.code in (0, 4), audited.err
    assert (folder / "forgotten-5" / "audit-quick.json").is_file()


def test_without_references_the_key_is_handed_on(tmp_path: Path, quick: None) -> None:
    folder = write_world(tmp_path / "job")
    forsaken("unlearn", write_job(folder, data=asked(1)))
    ended = forsaken("unlearn", write_job(folder, data=asked(2)), "--after", folder / "forgotten")
    assert ended.code == 0, ended.err
    first, second = (folder / name / "records.key" for name in ("forgotten", "forgotten-2"))
    assert read_record_key(first) == read_record_key(second)
    hashes = record_hashes(read_records(folder / "train.parquet"), read_record_key(second))
    found = [of(folder / name).records.hmac_sha256 for name in ("forgotten", "forgotten-2")]
    assert [{hashes[120], hashes[121]}, {hashes[122], hashes[123]}] == [set(each) for each in found]


def test_rows_are_added_to_the_table_of_the_request_before(tmp_path: Path, quick: None) -> None:
    folder = write_world(tmp_path / "job")
    whole = pq.read_table(folder / "train.parquet")
    more = {"references": {"folds": 2}, "audit": {"recipe": RECIPE}}
    pq.write_table(whole.slice(0, 126), folder / "train.parquet")  # the table lacks the last six rows
    job = write_job(folder, data=asked(1), **more)
    assert forsaken("references", "fit", job).code == 0
    pq.write_table(whole, folder / "train.parquet")
    assert forsaken("unlearn", job).code == 0
    job, out = write_job(folder, data=asked(4), **more), folder / "forgotten"  # two of the six
    next_one = ("unlearn", job, "--after", out)
    refused = forsaken(*next_one)
    assert refused.code == 2
    advised = f"forsaken references extend {job} --after {out}"
    assert advised in refused.err
    # The table that the certificate states stays as it is, also where a job file names it.
    own = {"model": {"weights": "forgotten/model.safetensors"}, "audit": {"recipe": RECIPE}}
    own |= {"references": {"folds": 2, "file": "forgotten/references.safetensors"}}
    in_place = forsaken("references", "extend", write_job(folder, "own.toml", data={"id": "id"}, **own))
    assert in_place.code == 2
    assert "is as the certificate beside it states" in in_place.err
    longer = forsaken(*advised.split()[1:], "--json")
    assert longer.code == 0, longer.err
    assert (longer.json["added"], longer.json["rows"]) == (6, 130)
    assert Path(longer.json["file"]).parent == folder
    assert forsaken(*advised.split()[1:], "--json").json["added"] == 0
    ended = forsaken(*next_one)
    assert ended.code == 0, ended.err
    check = ("--weights", out / "model.safetensors", "--any-signer")
    assert "No check failed" in forsaken("verify", out / "certificate.json", *check).out
    # The request after that takes its own folder's table again.
    job = write_job(folder, data=asked(5), **more)
    third = forsaken("unlearn", job, "--after", folder / "forgotten-2")
    assert third.code == 0, third.err
    assert len(References.load(folder / "forgotten-3" / "references.safetensors", key=bytes(32))) == 126


def test_the_key_of_the_chain_comes_before_that_of_a_run_that_is_replaced(tmp_path: Path, quick: None) -> None:
    folder = write_world(tmp_path / "job")
    run(write_job(folder, data=asked(1)))
    run(write_job(folder, data=asked(3)), out=folder / "forgotten-2")
    ended = forsaken("unlearn", write_job(folder, data=asked(2)), "--after", folder / "forgotten", "--force")
    assert ended.code == 0, ended.err
    first, second = (folder / name / "records.key" for name in ("forgotten", "forgotten-2"))
    assert read_record_key(first) == read_record_key(second)


def test_the_dry_run_and_another_folder(tmp_path: Path, quick: None) -> None:
    folder = write_world(tmp_path / "job")
    run(write_job(folder, data=asked(1)))
    job = write_job(folder, data=asked(2))
    tried = forsaken("unlearn", job, "--after", folder / "forgotten", "--dry-run", "--json")
    assert tried.code == 0, tried.err
    assert tried.json["counts"]["kept"] == 128 - tried.json["counts"]["retain"]
    assert not (folder / "forgotten-2").exists()
    forsaken("unlearn", job, "--after", folder / "forgotten", "--out", folder / "elsewhere")
    assert of(folder / "elsewhere").chain.links[-1].number == 2


@pytest.mark.parametrize("name", ["model.safetensors", "cleaned.parquet", "references.safetensors"])
def test_a_file_that_is_not_the_certificate_s_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "job"
    run(tabled(folder, data=asked(1)))
    job = read_job(write_job(folder, data=asked(2), references={"folds": 2}))
    assert job_after(job, folder / "forgotten").model.weights == "forgotten/model.safetensors"
    shutil.copy(folder / "train.parquet", folder / "forgotten" / name)
    with pytest.raises(OutputError, match=f"{name} is not the file that the certificate"):
        job_after(job, folder / "forgotten")


def test_folders_and_jobs_that_do_not_fit(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    run(tabled(folder, data=asked(1)))
    plain = write_job(folder, "plain.toml", data=asked(2))
    with pytest.raises(OutputError, match=r"holds no certificate\.json"):
        job_after(read_job(plain), folder)
    with pytest.raises(SettingsError, match=r"has no \[references\]"):
        job_after(read_job(plain), folder / "forgotten")
    run(plain, out=folder / "without")
    with_table = {"references": {"folds": 2}, "audit": {"recipe": RECIPE}}
    with pytest.raises(SettingsError, match=r"has a table \[references\]"):
        job_after(read_job(write_job(folder, data=asked(2), **with_table)), folder / "without")
    other = write_job(folder, model={"weights": "shadow.safetensors"})
    with pytest.raises(SettingsError, match=r"wrote model\.safetensors, but \[model\] weights is shadow"):
        job_after(read_job(other), folder / "without")
    twice = write_job(folder, data=asked(2), chain={"previous": "without/certificate.json"})
    with pytest.raises(SettingsError, match="leave one of them out"):
        job_after(read_job(twice), folder / "without")


def test_row_numbers_are_refused_since_they_have_changed(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    run(write_job(folder, data={"forget": {"of": "train", "ids": [120, 121]}}))
    job = write_job(folder, data={"forget": {"of": "train", "ids": [122, 123]}})
    with pytest.raises(SettingsError, match="names rows of train by their numbers") as caught:
        job_after(read_job(job), folder / "forgotten")
    assert "122" not in str(caught.value)
    pq.write_table(table(*(part[2:4] for part in world().sets["forget"])), folder / "two.parquet")
    run(write_job(folder, data={"forget": "two.parquet"}), out=folder / "again")
    assert job_after(read_job(write_job(folder, data={"forget": "two.parquet"})), folder / "again").data.train


@pytest.mark.parametrize("cleaned", ["rows", "none"])
def test_records_of_earlier_requests_must_not_be_kept(tmp_path: Path, cleaned: str, quick: None) -> None:
    folder = write_world(tmp_path / "job")
    whole = pq.read_table(folder / "train.parquet")
    output = {"cleaned": cleaned}
    first = forsaken("unlearn", write_job(folder, data=asked(1), output=output))
    assert first.code == 0, first.err
    job = write_job(folder, data=asked(2), output=output)
    for words in ((), ("--dry-run",)):
        ended = forsaken("unlearn", job, "--after", folder / "forgotten", *words)
        assert ended.code == 2
        assert "2 of the 132 rows of train are records that request 1 of this chain made the model forget" in ended.err
        assert "(rows 120, 121 of train, counted from 0)" in ended.err
        assert ("rows-to-delete.csv lists those" in ended.err) is (cleaned == "rows")
    assert not (folder / "forgotten-2").exists()
    # The weights named by hand begin the same chain.
    by_hand = write_job(
        folder, data=asked(2), model={"weights": "forgotten/model.safetensors"}, output=output | {"folder": "by-hand"}
    )
    assert "request 1 of this chain" in forsaken("unlearn", by_hand).err
    # They are found too where an older request forgot them, and among retain samples of their own file.
    pq.write_table(whole.filter(~np.isin(whole["id"].to_numpy(), [1120, 1121])), folder / "train.parquet")
    job = write_job(folder, data=asked(2), output=output)
    second = forsaken("unlearn", job, "--after", folder / "forgotten")
    assert second.code == 0, second.err
    pq.write_table(whole.filter(~np.isin(whole["id"].to_numpy(), [1121, 1122, 1123])), folder / "train.parquet")
    job = write_job(folder, data=asked(3), output=output)
    ended = forsaken("unlearn", job, "--after", folder / "forgotten-2")
    assert "1 of the 129 rows of train are records that request 1" in ended.err
    pq.write_table(whole.filter(~np.isin(whole["id"].to_numpy(), range(1120, 1124))), folder / "train.parquet")
    pq.write_table(whole.take([0, 122]), folder / "retain.parquet")
    job = write_job(folder, data=asked(3) | {"retain": "retain.parquet"}, output=output)
    ended = forsaken("unlearn", job, "--after", folder / "forgotten-2")
    assert "1 of the 2 rows of retain are records that request 2" in ended.err
    # Who asks for them again may: they are not kept.
    pq.write_table(whole, folder / "train.parquet")
    again = {"id": "id", "forget": {"of": "train", "ids": [1120, 1121, 1122, 1123, 1124]}}
    job = write_job(folder, data=again, output=output)
    assert forsaken("unlearn", job, "--after", folder / "forgotten-2", "--dry-run").code == 0


def test_without_the_key_nobody_can_look_for_them(tmp_path: Path, quick: None) -> None:
    folder = write_world(tmp_path / "job")
    run(write_job(folder, data=asked(1), output={"cleaned": "rows"}))
    (folder / "forgotten" / "records.key").unlink()
    ended = forsaken("unlearn", write_job(folder, data=asked(2)), "--after", folder / "forgotten", "--json")
    assert ended.code == 0, ended.err
    assert any("the record key of the chain was not found" in text for text in ended.json["result"]["warnings"])


def test_copies_that_stayed_in_the_cleaned_data_are_told(tmp_path: Path, quick: None) -> None:
    folder = write_world(tmp_path / "job")
    whole = pq.read_table(folder / "train.parquet")
    twin = whole.slice(120, 1).set_column(whole.column_names.index("id"), "id", [[2000]])
    pq.write_table(pa.concat_tables([whole, twin]), folder / "train.parquet")
    run(write_job(folder, data=asked(1)))
    ended = forsaken("unlearn", write_job(folder, data=asked(2)), "--after", folder / "forgotten", "--json")
    assert ended.code == 0, ended.err
    (told,) = [text for text in ended.json["result"]["warnings"] if "copies of them stayed in" in text]
    assert "1 of the 131 rows of train" in told


def test_pictures_must_be_deleted_first(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    draw = np.random.default_rng(0)
    names = {at: f"{'@b'[at % 2]}/{at}.png" for at in range(24)}  # "@" stands behind a quote in a list of rows
    for name in names.values():
        place = folder / "pictures" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 255, (2, 2, 3), dtype=np.uint8)).save(place)
    (folder / "prepare.py").write_text(
        "def flat(records):\n    return records.content.reshape(len(records), -1) / 255.0\n"
    )
    data = {"train": "pictures", "prepare": "prepare:flat", "test": None, "reference": None, "classes": list("@bcd")}
    forget = {"of": "train", "ids": [names[0], names[1]]}
    method = {"target": "uniform"}
    run(write_job(folder, data=data | {"forget": forget}, method=method))
    then = data | {"forget": {"of": "train", "ids": [names[2]]}}
    job = write_job(folder, data=then, method=method)
    ended = forsaken("unlearn", job, "--after", folder / "forgotten", "--dry-run")
    assert ended.code == 2
    assert "2 of the 24 rows of train are records that request 1" in ended.err
    assert "0.png" not in ended.err
    for name in forget["ids"]:
        (folder / "pictures" / name).unlink()
    ended = forsaken("unlearn", job, "--after", folder / "forgotten", "--dry-run")
    assert ended.code == 0, ended.err


def test_the_case_and_the_day_it_is_due(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    path = write_job(folder)
    late = datetime.now(UTC).date() - timedelta(days=3)
    path.write_text(path.read_text() + f'\n[request]\ncase = "2026-117"\ndue = {late}\n')
    found = run(path)
    assert found["request"] == {"case": "2026-117", "due": late.isoformat()}
    assert any(f"due on {late}, 3 days before" in text for text in found["warnings"])
    stated = of(folder / "forgotten").request
    assert stated is not None
    assert (stated.case, stated.due) == ("2026-117", late.isoformat())
    assert result_of(folder / "forgotten")["job"]["request"] == found["request"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('case = ""', "a case number of at most 80 characters"),
        (f'case = "{"x" * 81}"', "a case number of at most 80 characters"),
        ('case = "two\\nlines"', "a case number of at most 80 characters"),
        ("case = 117", "a case number of at most 80 characters"),
        ('due = "2026-12-01"', "a date without quotes, such as 2026-12-01"),
        ("due = 2026-12-01T08:00:00", "a date without quotes, such as 2026-12-01"),
        ("date = 2026-12-01", "date is unknown"),
    ],
)
def test_a_wrong_request_is_told(tmp_path: Path, line: str, said: str) -> None:
    path = write_job(write_world(tmp_path / "job"))
    path.write_text(path.read_text() + f"\n[request]\n{line}\n")
    with pytest.raises(SettingsError) as caught:
        read_job(path)
    assert said in str(caught.value)
