"""`forsaken verify` and `forsaken keys`: answers, words and exit codes."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import certificates
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from certificates import KEY, changed, envelope, statement
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from report_runs import make_audit
from typer.testing import CliRunner, Result

from forsaken._keys import key_id, read_record_key, read_signing_key, write_record_key, write_signing_keys
from forsaken.cli import keys
from forsaken.cli.verify import verify
from forsaken.data.readers import read_records
from forsaken.data.record_hashes import record_hashes
from forsaken.errors import DataError, DataNotFoundError, OutputError, SettingsError
from forsaken.jobs.certificate import Certificate, Chain, ReadAs
from forsaken.jobs.verify import check_records

READ_AS = ReadAs(label="label", id=None, size=None)
RECORD_KEY = bytes(range(32))
SECRET = "my private diary"
SIGNED = ["--public-key", "signing.pem.pub"]

app = typer.Typer(pretty_exceptions_enable=False)
app.command("verify")(verify)
app.add_typer(keys.app, name="keys")

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FORSAKEN_PASSPHRASE", raising=False)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run() -> Run:
    def invoke(*words: object) -> Result:
        return CliRunner().invoke(app, [str(word) for word in words])

    return invoke


def make(
    old: bytes, new: bytes, previous: Certificate | None = None, read_as: ReadAs | None = READ_AS, **changes: Any
) -> Certificate:
    hashes = changes.pop("hashes", None) or record_hashes(read_records("forget.csv"), RECORD_KEY)
    return certificates.make(previous, old=old, new=new, hashes=hashes, read_as=read_as, **changes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "forget.csv").write_text(f"text,label\n{SECRET},1\nsecond,0\n")
    (tmp_path / "m.pt").write_bytes(b"new")
    (tmp_path / "before.pt").write_bytes(b"old")
    write_record_key(tmp_path / "records.key", RECORD_KEY)
    write_signing_keys(tmp_path / "signing.pem", KEY)
    make(b"old", b"new").sign(KEY).write(tmp_path / "c.json")
    make(b"old", b"new").write(tmp_path / "unsigned.json")
    return tmp_path


def facts_of(result: Result) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(result.stdout)
    facts["passed"] = {check["name"]: check["passed"] for check in facts["checks"]}
    facts["words"] = {check["name"]: check["words"] for check in facts["checks"]}
    return facts


@pytest.mark.usefixtures("folder")
class TestVerify:
    def test_all_is_well(self, run: Run) -> None:
        words = ["--public-key", "signing.pem.pub", "--records", "forget.csv", "--record-key", "records.key"]
        done = run("verify", "c.json", "--weights", "m.pt", *words)
        assert done.exit_code == 0, done.output
        first, *lines = done.stdout.splitlines()
        assert first == "The certificate says: forgotten: As a retrained model would be."
        assert [line.split()[:2] for line in lines[:4]] == [
            ["weights", "yes"],
            ["signature", "yes"],
            ["records", "yes"],
            ["chain", "yes"],
        ]
        assert "all 2 are among the 2 forgotten" in lines[2]
        assert lines[4].startswith("Verified")
        assert len(lines) == 5

    def test_as_json(self, run: Run) -> None:
        done = run("verify", "c.json", "--weights", "m.pt", *SIGNED, "--json")
        facts = facts_of(done)
        assert done.exit_code == 0
        assert facts["certificate"] == "c.json"
        assert facts["sha256"] == Certificate.read("c.json").sha256
        assert facts["verified"] is True
        assert facts["signer"] == "known"
        assert facts["passed"] == {"weights": True, "signature": True, "records": None, "chain": True}

    @pytest.mark.parametrize(
        ("word", "own", "code"),
        [("failed", True, 4), ("forgotten", True, 0), ("not shown", True, 0), ("failed", False, 0)],
    )
    def test_an_audit_beside_it_that_failed_counts(
        self, run: Run, folder: Path, word: str, own: bool, code: int
    ) -> None:
        whose = Certificate.read("c.json").sha256 if own else "0" * 64
        audit = make_audit() | {
            "verdict": {"word": word, "line": "A later look."},
            "settings": {"certificate_sha256": whose},
        }
        (folder / "audit-full.json").write_text(json.dumps(audit))
        done = run("verify", "c.json", "--weights", "m.pt", *SIGNED)
        assert done.exit_code == code
        told = "audit-full.json, made after the certificate, says: failed: A later look."
        assert (told in done.stdout) is (code == 4)
        assert facts_of(run("verify", "c.json", "--weights", "m.pt", *SIGNED, "--json"))["forgetting"] == (
            "failed" if code else "forgotten"
        )

    def test_no_audit_makes_a_certificate_better(self, run: Run, folder: Path) -> None:
        make(b"old", b"new", result={"verdict": {"word": "not shown", "line": "No yardstick."}}).sign(KEY).write(
            folder / "c.json"
        )
        audit = make_audit() | {"verdict": {"word": "forgotten", "line": ""}}
        (folder / "audit-full.json").write_text(
            json.dumps(audit | {"settings": {"certificate_sha256": Certificate.read("c.json").sha256}})
        )
        assert run("verify", "c.json", "--weights", "m.pt", *SIGNED).exit_code == 5

    @pytest.mark.parametrize("name", ["c.json", "unsigned.json"])
    def test_nothing_is_verified_without_an_expected_signer(self, run: Run, name: str) -> None:
        make(b"old", b"new").sign(Ed25519PrivateKey.generate()).write("c.json")
        done = run("verify", name, "--weights", "m.pt", "--json")
        assert isinstance(done.exception, SettingsError)
        assert "it is not said who must have signed" in str(done.exception)
        assert done.stdout == ""
        both = run("verify", name, "--weights", "m.pt", *SIGNED, "--any-signer")
        assert "contradict" in str(both.exception)

    def test_any_signer_checks_the_rest_and_never_says_verified(self, run: Run) -> None:
        done = run("verify", "c.json", "--weights", "m.pt", "--any-signer")
        assert done.exit_code == 0
        assert f"said to be signed by the key {key_id(KEY.public_key())}; give that key with" in done.stdout
        assert "No check failed. Who signed was not checked" in done.stdout
        assert "verified" not in done.stdout.lower()
        facts = facts_of(run("verify", "c.json", "--weights", "m.pt", "--any-signer", "--json"))
        assert (facts["verified"], facts["signer"]) == (False, "unknown")

    def test_unsigned(self, run: Run) -> None:
        done = run("verify", "unsigned.json", "--weights", "m.pt", "--any-signer")
        assert done.exit_code == 0
        assert "not signed: anyone could have written it" in done.stdout
        assert "signature  not checked" in done.stdout
        assert "verified" not in done.stdout.lower()
        done = run("verify", "unsigned.json", "--weights", "m.pt", "--public-key", "signing.pem.pub")
        assert done.exit_code == 3
        assert "NOT verified: 1 of 4 checks failed (signature)" in done.stdout

    def test_one_of_several_keys_must_have_signed(self, run: Run) -> None:
        write_signing_keys("other.pem", Ed25519PrivateKey.generate())
        others = ["--public-key", "other.pem.pub"]
        assert run("verify", "c.json", "--weights", "m.pt", *others, *SIGNED).exit_code == 0
        assert run("verify", "c.json", "--weights", "m.pt", *others).exit_code == 3

    @pytest.mark.parametrize("place", ["certificate", "previous"])
    def test_a_certificate_that_was_written_anew_is_a_failed_verification(self, run: Run, place: str) -> None:
        spaced = json.dumps(json.loads(Path("c.json").read_bytes()), indent=4)
        Path("spaced.json").write_text(spaced)
        words = ["spaced.json"] if place == "certificate" else ["c.json", "--previous", "spaced.json"]
        done = run("verify", *words, "--weights", "m.pt", *SIGNED)
        assert done.exit_code == 3
        assert "NOT verified: the certificate spaced.json is damaged" in done.stdout
        facts = json.loads(run("verify", *words, "--weights", "m.pt", *SIGNED, "--json").stdout)
        assert facts["verified"] is False

    def test_the_old_weights_are_named_as_such(self, run: Run) -> None:
        done = run("verify", "c.json", "--weights", "before.pt", "--any-signer")
        assert done.exit_code == 3
        assert "these are the weights before forgetting" in done.stdout

    def test_other_weights(self, run: Run) -> None:
        Path("other.pt").write_bytes(b"other")
        done = run("verify", "c.json", "--weights", "other.pt", "--any-signer")
        assert done.exit_code == 3
        found, stated = (hashlib.sha256(content).hexdigest() for content in (b"other", b"new"))
        assert f"the SHA-256 is {found}, the certificate says {stated}" in done.stdout

    def test_hashes_are_shown_in_full_on_a_narrow_terminal(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "60")
        done = run("verify", "c.json", "--weights", "m.pt", "--any-signer")
        assert hashlib.sha256(b"new").hexdigest() in "".join(done.stdout.split())

    def test_a_changed_certificate(self, run: Run) -> None:
        signed = Certificate.read("c.json")
        Path("c.json").write_bytes(envelope(changed(statement(signed), ("predicate", "stopped"), "x"), signed))
        done = run("verify", "c.json", "--weights", "m.pt", "--public-key", "signing.pem.pub", "--json")
        assert done.exit_code == 3
        facts = facts_of(done)
        assert facts["passed"]["signature"] is False
        assert "changed after signing" in facts["words"]["signature"]
        assert facts["verified"] is False

    def test_another_signer(self, run: Run) -> None:
        other = Ed25519PrivateKey.generate()
        make(b"old", b"new").sign(other).write("c.json")
        done = run("verify", "c.json", "--weights", "m.pt", "--public-key", "signing.pem.pub")
        assert done.exit_code == 3
        assert f"signed by the key {key_id(other.public_key())}, not by {key_id(KEY.public_key())}" in done.stdout

    def test_records_that_were_not_forgotten(self, run: Run) -> None:
        Path("mine.csv").write_text(f"text\n{SECRET}\nanother\n{SECRET} \n")
        done = run(
            "verify",
            "c.json",
            "--weights",
            "m.pt",
            "--records",
            "mine.csv",
            "--record-key",
            "records.key",
            "--any-signer",
        )
        assert done.exit_code == 3
        assert "1 of 3 are among the 2 forgotten, 2 not (rows 1, 2, counted from 0)" in done.stdout
        assert SECRET not in done.output

    def test_records_under_another_key(self, run: Run) -> None:
        write_record_key("other.key", bytes(32))
        done = run(
            "verify",
            "c.json",
            "--weights",
            "m.pt",
            "--records",
            "forget.csv",
            "--record-key",
            "other.key",
            "--any-signer",
        )
        assert done.exit_code == 3
        assert "none of the 2 is among the 2 forgotten; if they should be: is this the key of that run" in done.stdout

    def test_records_that_did_not_come_from_a_file(self, run: Run) -> None:
        make(b"old", b"new", read_as=None).write("c.json")
        done = run(
            "verify",
            "c.json",
            "--weights",
            "m.pt",
            "--records",
            "forget.csv",
            "--record-key",
            "records.key",
            "--any-signer",
        )
        assert done.exit_code == 0
        assert "records    not checked  the forgotten ones were not read from a file" in done.stdout

    def test_a_chain_that_holds(self, run: Run) -> None:
        first = make(b"oldest", b"older").sign(KEY)
        second = make(b"older", b"old", first).sign(KEY)
        first.write("1.json")
        second.write("2.json")
        make(b"old", b"new", second).sign(KEY).write("3.json")
        done = run("verify", "3.json", "--weights", "m.pt", "--previous", "2.json", "--previous", "1.json", *SIGNED)
        assert done.exit_code == 0
        assert "all 3 requests join up" in done.stdout
        done = run("verify", "3.json", "--weights", "m.pt", "--previous", "2.json", "--json", *SIGNED)
        assert done.exit_code == 0
        assert facts_of(done)["passed"]["chain"] is None
        assert "request 3 of its chain; give the certificates of 1 with" in facts_of(done)["words"]["chain"]
        done = run("verify", "3.json", "--weights", "m.pt", "--json", "--any-signer")
        assert "give the certificates of 1, 2 with" in facts_of(done)["words"]["chain"]

    def test_earlier_certificates_must_be_signed_too(self, run: Run) -> None:
        other = Ed25519PrivateKey.generate()
        for first, words in (
            (make(b"older", b"old"), "the certificate of request 1: not signed"),
            (make(b"older", b"old").sign(other), "the certificate of request 1: signed by the key"),
        ):
            first.write("1.json")
            make(b"old", b"new", first).sign(KEY).write("2.json")
            done = run("verify", "2.json", "--weights", "m.pt", "--previous", "1.json", *SIGNED)
            assert done.exit_code == 3
            assert words in done.stdout
        write_signing_keys("other.pem", other)
        words = ["--weights", "m.pt", "--previous", "1.json", *SIGNED, "--public-key", "other.pem.pub"]
        assert run("verify", "2.json", *words).exit_code == 0
        assert "nobody checked who had signed" in run("verify", "2.json", "--weights", "m.pt", *SIGNED).stdout

    def test_a_chain_with_another_certificate(self, run: Run) -> None:
        first = make(b"older", b"old")
        make(b"old", b"new", first).write("2.json")
        make(b"older", b"old", result={"stopped": "iterations"}).write("1.json")
        done = run("verify", "2.json", "--weights", "m.pt", "--previous", "1.json", "--any-signer")
        assert done.exit_code == 3
        assert "1 of the certificates given are not named in this one" in done.stdout

    def test_a_chain_whose_weights_do_not_join(self, run: Run) -> None:
        first = make(b"oldest", b"somewhere else")
        first.write("1.json")
        make(b"old", b"new", first).write("2.json")
        done = run("verify", "2.json", "--weights", "m.pt", "--previous", "1.json", "--any-signer")
        assert done.exit_code == 3
        assert "request 2 did not start from the weights that request 1 ended with" in done.stdout

    def test_a_chain_that_tells_the_past_differently(self, run: Run) -> None:
        first = make(b"older", b"old")
        first.write("1.json")
        earlier, own = make(b"old", b"new", first).chain.links
        smaller = earlier.model_copy(update={"drift": 0.01})  # than it was
        make(b"old", b"new", chain=Chain(links=(smaller, own))).write("2.json")
        done = run("verify", "2.json", "--weights", "m.pt", "--previous", "1.json", "--any-signer")
        assert done.exit_code == 3
        assert "the certificate of request 1 tells its chain differently" in done.stdout

    def test_a_previous_one_of_a_first_request(self, run: Run) -> None:
        make(b"older", b"old").write("1.json")
        done = run("verify", "c.json", "--weights", "m.pt", "--previous", "1.json", "--any-signer")
        assert done.exit_code == 3
        assert "not named in this one" in done.stdout

    def test_folders_beside_it_that_are_none_of_the_chain(self, run: Run) -> None:
        for name in ("1", "2", "earlier form", "no file"):
            Path(name).mkdir()
        first = make(b"older", b"old")
        first.write("1/certificate.json")
        make(b"old", b"new", first).write("2/certificate.json")
        Path("earlier form", "certificate.json").write_text('{"kind": "forsaken.certificate"}')
        Path("no file", "certificate.json").mkdir()
        done = run("verify", "2/certificate.json", "--weights", "m.pt", "--any-signer", "--chain")
        assert done.exception is None or isinstance(done.exception, SystemExit)
        assert "all 2 requests join up" in done.stdout

    @pytest.mark.parametrize(
        ("words", "kind", "message"),
        [
            ("nothing.json --weights m.pt", OutputError, "no certificate nothing.json"),
            ("c.json --weights nothing", DataNotFoundError, "no file or folder nothing"),
            ("c.json --weights m.pt --public-key nothing", SettingsError, "no key file nothing"),
            ("c.json --weights m.pt --public-key signing.pem", SettingsError, "holds a private key"),
            ("c.json --weights m.pt --records forget.csv", SettingsError, "--records is given without --record-key"),
            ("c.json --weights m.pt --record-key m.pt", SettingsError, "--record-key is given without --records"),
            ("c.json --weights m.pt --records forget.csv --record-key m.pt", SettingsError, "no record key"),
            ("c.json --weights m.pt --records no.csv --record-key records.key", DataNotFoundError, "no.csv"),
        ],
    )
    def test_bad_input(self, run: Run, words: str, kind: type[Exception], message: str) -> None:
        done = run("verify", *words.split(), *([] if "--public-key" in words else ["--any-signer"]))
        assert isinstance(done.exception, kind)
        assert message in str(done.exception)

    def test_weights_are_needed(self, run: Run) -> None:
        assert run("verify", "c.json", "--any-signer").exit_code == 2


@pytest.mark.usefixtures("folder")
class TestRecordsAsTheyWereRead:
    def stated(self, records: Any, **way: Any) -> Certificate:
        read_as = READ_AS.model_copy(update=way)
        return make(b"old", b"new", hashes=record_hashes(records, RECORD_KEY), read_as=read_as)

    def test_columns_of_labels_and_ids_are_no_features(self) -> None:
        table = pa.table({"age": [1.0, 2.0], "who": [7, 8], "topic": [0, 1]})
        pq.write_table(table, "r.parquet")
        stated = self.stated(read_records("r.parquet", label="topic", columns=["who"]), label="topic", id="who")
        assert check_records(stated, Path("r.parquet"), RECORD_KEY).passed is True
        pq.write_table(table.select(["age"]).slice(1), "bare.parquet")  # what a person may bring
        assert check_records(stated, Path("bare.parquet"), RECORD_KEY).passed is True
        Path("bare.csv").write_text("age\n2\n")
        assert check_records(stated, Path("bare.csv"), RECORD_KEY).passed is True
        Path("other.csv").write_text("age\n3\n")
        assert check_records(stated, Path("other.csv"), RECORD_KEY).passed is False

    def test_columns_may_stand_in_another_order(self) -> None:
        table = pa.table({"age": [1.0, 2.0], "size": [3.0, 4.0], "label": [0, 1]})
        pq.write_table(table, "r.parquet")
        pq.write_table(table.select(["size", "label", "age"]), "turned.parquet")
        features = ("age", "size")
        stated = self.stated(read_records("r.parquet"), features=features)
        stated.write("r.json")
        assert Certificate.read("r.json") == stated
        for name in ("r.parquet", "turned.parquet"):
            assert check_records(stated, Path(name), RECORD_KEY).passed is True
        # A certificate that does not state them was made of a file in this order.
        assert check_records(self.stated(read_records("r.parquet")), Path("r.parquet"), RECORD_KEY).passed is True

    def test_another_label_column_is_not_guessed(self) -> None:
        stated = self.stated(read_records("forget.csv"), label="topic")
        with pytest.raises(DataError, match=r"has no column 'topic'.*rename"):
            check_records(stated, Path("forget.csv"), RECORD_KEY)

    def test_arrays(self) -> None:
        np.savez("r.npz", x=np.eye(3), y=np.arange(3))
        stated = self.stated(read_records("r.npz"), label="topic", size=(4, 4))
        assert check_records(stated, Path("r.npz"), RECORD_KEY).passed is True

    def test_a_folder_of_pictures(self) -> None:
        from PIL import Image

        Path("pictures/cat").mkdir(parents=True)
        for shade in (10, 200):
            Image.new("RGB", (8, 6), (shade, 0, 0)).save(f"pictures/cat/{shade}.png")
        stated = self.stated(read_records("pictures", size=(4, 4)), size=(4, 4))
        assert check_records(stated, Path("pictures"), RECORD_KEY).passed is True
        other = self.stated(read_records("pictures"), size=(4, 4))
        assert check_records(other, Path("pictures"), RECORD_KEY).passed is False

    def test_many_missing_rows_are_not_all_named(self) -> None:
        lines = "\n".join([SECRET, *(f"other {at}" for at in range(20))])
        Path("many.csv").write_text(f"text\n{lines}\n")
        words = check_records(self.stated(read_records("forget.csv")), Path("many.csv"), RECORD_KEY).words
        assert "(rows 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ..., counted from 0)" in words


class TestKeys:
    def test_a_new_record_key(self, run: Run) -> None:
        done = run("keys", "new-record", "records.key")
        assert done.exit_code == 0
        assert done.stdout.startswith("record key: records.key\nKeep it secret")
        assert read_record_key("records.key").hex() not in done.output
        assert stat.S_IMODE(Path("records.key").stat().st_mode) == 0o600
        assert json.loads(run("keys", "new-record", "more.key", "--json").stdout) == {"record_key": "more.key"}
        assert read_record_key("more.key") != read_record_key("records.key")

    def test_a_new_pair(self, run: Run) -> None:
        done = run("keys", "new-signing", "s.pem")
        assert done.exit_code == 0
        name = key_id(read_signing_key("s.pem").public_key())
        assert f"key id: {name}" in done.stdout
        assert "s.pem (not encrypted; keep it secret)" in done.stdout
        assert stat.S_IMODE(Path("s.pem").stat().st_mode) == 0o600

    def test_a_new_pair_with_a_passphrase(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FORSAKEN_PASSPHRASE", "word")
        facts = json.loads(run("keys", "new-signing", "s.pem", "--json").stdout)
        name = key_id(read_signing_key("s.pem", b"word").public_key())
        assert facts == {"signing_key": "s.pem", "public_key": "s.pem.pub", "key_id": name, "encrypted": True}

    @pytest.mark.parametrize("verb", ["new-record", "new-signing"])
    def test_nothing_is_overwritten(self, run: Run, verb: str) -> None:
        Path("mine").write_text("mine")
        done = run("keys", verb, "mine")
        assert isinstance(done.exception, OutputError)
        assert "never overwritten" in str(done.exception)
        assert Path("mine").read_text() == "mine"
