"""Certificates: what they hold, that tampering shows, and that no file can break the reader."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from forsaken._keys import key_id, public_key_text
from forsaken.errors import OutputError
from forsaken.jobs.certificate import Certificate, Link, ReferenceTable, Weights, extend, make_certificate

TIME = "2025-06-01T12:00:00+00:00"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def make(previous: Certificate | None = None, *, old: str = "old", new: str = "new", **changes: Any) -> Certificate:
    link = Link(
        number=1, time=TIME, forgotten=2, drift=0.02, accuracy_before=0.9, accuracy_after=0.88, certificate=None
    )
    given: dict[str, Any] = {
        "old": Weights(sha256=digest(old), format="safetensors", name="model.safetensors"),
        "new": Weights(sha256=digest(new), format="safetensors", name="model.safetensors"),
        "method": "forsaken",
        "settings": {"iterations": 60, "penalty": 0.5},
        "job": {"method": {"name": "forsaken"}},
        "hashes": [digest("a"), digest("b")],
        "read_as": {"label": "label", "id": None, "size": [32, 32]},
        "target": {"target": "class-mean", "shown": "Something.", "not_shown": "Something else."},
        "numbers": {"fr": 1.0, "cfr": None, "separation": {"before": 0.9, "after": 0.5}, "layers": [1, 2]},
        "unlearning_seconds": 1.5,
        "total_seconds": 3,
        "stopped": "converged",
        "chain": extend(previous, link).to_dict(),
        "mask_kept": False,
        "time": TIME,
    }
    return make_certificate(**{**given, **changes})


def walk(node: Any, trail: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    if not pairs:
        yield trail, node
    for key, part in pairs:
        yield from walk(part, (*trail, key))


def at(content: Any, trail: tuple[Any, ...]) -> Any:
    for step in trail:
        content = content[step]
    return content


def altered(leaf: Any) -> list[Any]:
    others: list[Any] = [None, "x", 7, 0.25, True, [], {}]
    if isinstance(leaf, str):
        others += [
            leaf + " ",
            leaf + "\n",
            leaf[:-1],
            leaf[::-1],
            leaf.upper(),
            *(leaf[:i] + "0" + leaf[i + 1 :] for i in range(len(leaf))),
        ]
    if isinstance(leaf, int | float) and not isinstance(leaf, bool):
        others += [leaf + 1, leaf + 1e-9, -leaf]
    if isinstance(leaf, bool):
        others.append(not leaf)
    return [other for other in others if type(other) is not type(leaf) or other != leaf]


def is_caught(content: Any) -> bool:
    try:
        return Certificate.from_dict(content).check_signature(KEY.public_key()) != "valid"
    except OutputError:
        return True


def test_what_it_holds() -> None:
    content = make(make(), old="new", new="newer").to_dict()
    assert content["kind"] == "forsaken.certificate"
    assert content["schema"] == 1
    assert content["time"] == TIME
    assert content["version"] == "0.1.0"
    assert content["weights"]["new"] == {
        "sha256": digest("newer"),
        "format": "safetensors",
        "name": "model.safetensors",
    }
    assert content["settings"] == {
        "sha256": digest('{"iterations":60,"penalty":0.5}'),
        "job_sha256": digest('{"method":{"name":"forsaken"}}'),
    }
    assert content["records"] == {
        "count": 2,
        "hmac_sha256": [digest("a"), digest("b")],
        "read_as": {"label": "label", "id": None, "size": [32, 32]},
    }
    assert content["audit"]["profile"] == "quick"
    assert content["audit"]["numbers"]["separation"] == {"before": 0.9, "after": 0.5}
    assert content["seconds"] == {"unlearning": 1.5, "total": 3.0}
    assert content["chain"]["drift"] == pytest.approx(0.04)
    assert [link["certificate"] for link in content["chain"]["links"]] == [make().sha256, None]
    assert set(content["chain"]) == {"links", "drift", "accuracy_loss"}
    assert content["mask"] == {"kept": False}
    assert content["signature"] is None


def test_there_and_back(tmp_path: Path) -> None:
    for certificate in (make(), make().sign(KEY), make(read_as=None, target=None, job=None)):
        path = certificate.write(tmp_path / "certificate.json")
        assert Certificate.read(path) == certificate
        assert json.loads(path.read_text()) == certificate.to_dict()
        assert path.read_text().count("\n") > 10
        path.write_text(json.dumps(certificate.to_dict(), sort_keys=True))
        assert Certificate.read(path).sha256 == certificate.sha256
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        assert Certificate.read(path) == certificate


def test_its_hash_by_hand() -> None:
    signed = make().sign(KEY)
    plain = json.dumps(signed.to_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert signed.sha256 == hashlib.sha256(plain).hexdigest()
    assert signed.sha256 != make().sha256


def test_the_time_is_now_in_utc_by_default() -> None:
    assert make(time=None).time.endswith("+00:00")


def test_it_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        make().method = "other"  # type: ignore[misc]


def test_signature_by_hand() -> None:
    signed = make().sign(KEY).to_dict()
    signature = signed.pop("signature")
    plain = json.dumps(signed, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    KEY.public_key().verify(base64.b64decode(signature["value"]), plain)
    assert signature["algorithm"] == "Ed25519"
    assert signature["key_id"] == key_id(KEY.public_key())
    assert signature["public_key"] == public_key_text(KEY)


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
def test_openssl_agrees_on_the_signature(tmp_path: Path) -> None:
    signed = make().sign(KEY).to_dict()
    signature = signed.pop("signature")
    plain = json.dumps(signed, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    (tmp_path / "content").write_bytes(plain)
    (tmp_path / "key").write_text(signature["public_key"])
    (tmp_path / "value").write_bytes(base64.b64decode(signature["value"]))
    command = "openssl pkeyutl -verify -pubin -inkey key -rawin -in content -sigfile value"
    assert subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    (tmp_path / "content").write_bytes(plain + b" ")
    assert subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, check=False).returncode != 0


def test_verdicts_on_signatures() -> None:
    other = Ed25519PrivateKey.generate()
    signed = make().sign(KEY)
    assert make().check_signature() == "unsigned"
    assert make().check_signature(KEY.public_key()) == "unsigned"
    assert signed.check_signature() == "valid"
    assert signed.check_signature(KEY.public_key()) == "valid"
    assert signed.check_signature(public_key_text(KEY)) == "valid"
    assert signed.check_signature(public_key_text(other).encode()) == "other key"
    assert signed.sign(other).check_signature(other.public_key()) == "valid"
    stolen = signed.model_copy(update={"signature": make(stopped="iterations").sign(KEY).signature})
    assert stolen.check_signature() == "invalid"


def test_every_change_of_a_signed_certificate_shows() -> None:
    content = make(make(), old="new", new="newer").sign(KEY).to_dict()
    assert not is_caught(content)
    leaves = list(walk(content))
    assert len(leaves) > 45
    for trail, leaf in leaves:
        for other in altered(leaf):
            changed = copy.deepcopy(content)
            at(changed, trail[:-1])[trail[-1]] = other
            assert is_caught(changed), (trail, other)
        changed = copy.deepcopy(content)
        del at(changed, trail[:-1])[trail[-1]]
        assert is_caught(changed), trail


def test_additions_to_a_signed_certificate_show() -> None:
    content = make().sign(KEY).to_dict()
    nodes = {trail[:depth] for trail, _ in walk(content) for depth in range(len(trail))}
    assert len(nodes) > 10
    for trail in nodes:
        changed = copy.deepcopy(content)
        node = at(changed, trail)
        if isinstance(node, dict):
            node["more"] = 1
        else:
            node.append(copy.deepcopy(node[0]))
        assert is_caught(changed), trail


def test_a_number_written_otherwise_is_the_same_certificate() -> None:
    content = make().sign(KEY).to_dict()
    content["seconds"]["total"] = 3  # as programs write that know one kind of number
    assert not is_caught(content)


@pytest.mark.parametrize(
    ("trail", "value", "words"),
    [
        (("weights", "new", "sha256"), "abc", "weights.new.sha256 has a wrong value"),
        (("weights", "new", "sha256"), digest("a") + "\n", "weights.new.sha256 has a wrong value"),
        (("weights", "new"), None, "weights.new has a wrong value"),
        (("records", "count"), 3, r"records does not agree \(3 records but 2 hashes\)"),
        (("records", "count"), "2", "records.count has a wrong value"),
        (("records", "read_as", "size"), [32], "records.read_as.size"),
        (("records", "read_as", "size"), [0, 32], "records.read_as.size"),
        (("mask", "kept"), 0, "mask.kept has a wrong value"),
        (("mask", "why"), "x", "mask.why is not known"),
        (("time",), "yesterday", "time has a wrong value"),
        (("seconds", "total"), -1.0, "seconds.total has a wrong value"),
        (("seconds", "total"), float("nan"), "JSON cannot carry, such as NaN"),
        (("audit", "numbers", "fr"), float("inf"), "JSON cannot carry, such as NaN"),
        (("method",), "\ud800", "JSON cannot carry"),
        (("chain", "links"), [], "chain.links has a wrong value"),
        (("chain", "drift"), 0.5, "the drift is not the sum"),
        (("chain", "links", 0, "number"), 2, "do not count from 1"),
        (("chain", "links", 0, "certificate"), digest("c"), "every link but the last must name"),
        (("kind",), "forsaken.result", "no certificate of Forsaken"),
        (("kind",), None, "no certificate of Forsaken"),
        (("schema",), 2, "has schema 2, expected 1 at most; install a newer Forsaken"),
        (("schema",), True, "does not say its schema"),
        (("schema",), "1", "does not say its schema"),
        (("schema",), 0, "does not say its schema"),
    ],
)
def test_unsound_content_is_named(trail: tuple[Any, ...], value: object, words: str) -> None:
    content = make().to_dict()
    at(content, trail[:-1])[trail[-1]] = value
    with pytest.raises(OutputError, match=words) as caught:
        Certificate.from_dict(content)
    assert "pydantic" not in str(caught.value)


def test_many_problems_are_counted() -> None:
    with pytest.raises(OutputError, match=r"time is missing, version is missing, weights is missing and \d+ more; get"):
        Certificate.from_dict({"kind": "forsaken.certificate", "schema": 1})


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b"1" * 5000,
        b'{"kind": "forsaken.certificate", "kind": "forsaken.certificate"}',
    ],
)
def test_damaged_files(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(raw)
    with pytest.raises(OutputError, match=r"c\.json is damaged: it is no JSON; get the file again"):
        Certificate.read(path)


@pytest.mark.parametrize("raw", [b"null", b"[]", b"3", b'"x"', b"{}", b"NaN"])
def test_files_that_are_something_else(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(raw)
    with pytest.raises(OutputError, match=r"c\.json is no certificate of Forsaken"):
        Certificate.read(path)


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = make().sign(KEY).write(tmp_path / "c.json")
    path.write_text(path.read_text().replace('"stopped"', '"stopped": "iterations",\n "stopped"'))
    with pytest.raises(OutputError, match="damaged"):
        Certificate.read(path)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"no certificate .*nothing; check the path"):
        Certificate.read(tmp_path / "nothing")
    with pytest.raises(OutputError, match="cannot be read"):
        Certificate.read(tmp_path)
    with pytest.raises(OutputError, match="cannot be read"):
        Certificate.read("a\0b")


def test_a_certificate_cannot_be_made_of_nan_or_of_objects() -> None:
    with pytest.raises(OutputError, match="the new certificate holds a value that JSON cannot carry"):
        make(numbers={"fr": float("nan")})
    with pytest.raises(OutputError, match="JSON cannot carry"):
        make(numbers={"fr": object()})
    with pytest.raises(OutputError, match=r"records\.count has a wrong value"):
        make(hashes=[])


def test_weights_are_described_without_their_path(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"w")
    assert Weights.of(path, "pt") == Weights(sha256=digest("w"), format="pt", name="model.pt")
    (tmp_path / "x").mkdir()
    assert Weights.of(tmp_path / "x" / "..", "folder").name == tmp_path.name


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read_or_refuse(path: Path) -> None:
    try:
        found = Certificate.read(path)
    except OutputError:
        return
    assert Certificate.from_dict(found.to_dict()) == found
    found.check_signature()
    assert len(found.sha256) == 64


@quick
@given(raw=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(raw)
    read_or_refuse(path)


@quick
@given(data=st.data())
def test_a_cut_or_patched_file_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    path = make().sign(KEY).write(tmp_path / "c.json")
    raw = path.read_bytes()
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(raw))] * 2)))
    path.write_bytes(raw[:start] + data.draw(st.binary(max_size=10)) + raw[end:])
    read_or_refuse(path)


@quick
@given(data=st.data())
def test_a_file_with_any_value_anywhere_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    content = make().sign(KEY).to_dict()
    trail = data.draw(
        st.sampled_from([trail[:depth] for trail, _ in walk(content) for depth in range(1, len(trail) + 1)])
    )
    at(content, trail[:-1])[trail[-1]] = data.draw(values)
    path = tmp_path / "c.json"
    path.write_text(json.dumps(content))
    read_or_refuse(path)


@quick
@given(number=st.floats(allow_nan=False, allow_infinity=False), whole=st.integers(), text=st.text())
def test_numbers_and_texts_come_back_exactly(tmp_path: Path, number: float, whole: int, text: str) -> None:
    certificate = make(numbers={"a": number, "b": whole, "c": text}).sign(KEY)
    again = Certificate.read(certificate.write(tmp_path / "c.json"))
    assert again.audit.numbers == {"a": number, "b": whole, "c": text}
    assert again.check_signature() == "valid"


# --- tables of references ---------------------------------------------------------------------------------------------

STATED = {
    "sha256": "0" * 64, "rows": 9, "folds": 4, "by": "row", "steps": None, "claimed": 0, "forgotten": 1,
    "models_kept": 4, "models_owe": 0,
}  # fmt: skip
# Made by the version before there were references.
OLD_SHA256 = "07fc0a17fa8faa5fa6e388fbc12f40257c21f16b3e20e36409cf7b6123af9185"
OLD_SIGNATURE = "K7274y/UJTGh4tCZjmbiYy3dknDlOIc3sdMxTD8/w4n2j4AcBAexCPN955O4k7NOdPZQBNNuE+epAf3JYBZjDA=="


def test_older_certificates_stay_as_they_are() -> None:
    certificate = make(make(), old="new", new="newer").sign(KEY)
    assert certificate.sha256 == OLD_SHA256
    assert certificate.signature is not None
    assert certificate.signature.value == OLD_SIGNATURE
    assert "references" not in certificate.to_dict()
    assert "group" not in certificate.to_dict()["records"]["read_as"]
    assert Certificate.from_dict(certificate.to_dict()).check_signature(KEY.public_key()) == "valid"


def test_newer_certificates_are_signed_with_their_references() -> None:
    certificate = make(references=ReferenceTable(**STATED)).sign(KEY)
    content = certificate.to_dict()
    assert content["references"] == STATED
    assert Certificate.from_dict(content) == certificate
    assert Certificate.from_dict(content).check_signature(KEY.public_key()) == "valid"
    owing = content | {"references": STATED | {"models_owe": 3}}
    assert Certificate.from_dict(owing).check_signature(KEY.public_key()) == "invalid"
    without = {name: value for name, value in content.items() if name != "references"}
    assert Certificate.from_dict(without).check_signature(KEY.public_key()) == "invalid"


@pytest.mark.parametrize(
    "stated",
    [
        None,
        3,
        {},
        STATED | {"rows": -1},
        STATED | {"by": "chance"},
        STATED | {"more": 1},
        STATED | {"rows": 1.5},
        STATED | {"views": 0},
        STATED | {"views": None},
        STATED | {"view": ""},
    ],
)
def test_references_that_are_not_sound(stated: Any) -> None:
    with pytest.raises(OutputError, match="is not sound"):
        Certificate.from_dict(make().to_dict() | {"references": stated})


def test_there_is_one_way_to_say_nothing() -> None:
    content = make().to_dict()
    content["records"]["read_as"]["group"] = None
    with pytest.raises(OutputError, match="is not sound"):
        Certificate.from_dict(content)
