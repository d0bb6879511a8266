"""Certificates: their form, that every change of a signed one shows, chains, and that no file can break the reader."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import math
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from certificates import KEY, RESULT, TIME, canonical, changed, digest, envelope, laid_out, make, request, statement
from certificates import weights as weights_of
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from forsaken._keys import key_id
from forsaken.errors import CertificateError, DataError, DataNotFoundError, OutputError, SettingsError
from forsaken.jobs.certificate import (
    Certificate,
    Chain,
    ReferenceTable,
    Weights,
    canonical_json,
    extend,
    file_hash,
    find_previous,
    settings_hash,
)
from forsaken.jobs.verify import check_chain

REFERENCES = {
    "sha256": "0" * 64, "rows": 9, "folds": 4, "by": "row", "steps": None, "claimed": 0, "forgotten": 1,
    "models_kept": 4, "models_owe": 0,
}  # fmt: skip


def read(raw: bytes, path: Path) -> Certificate:
    path.write_bytes(raw)
    return Certificate.read(path)


def walk(node: Any, trail: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    if not pairs:
        yield trail, node
    for key, part in pairs:
        yield from walk(part, (*trail, key))


def altered(leaf: Any) -> list[Any]:
    others: list[Any] = [None, "x", 7, 0.25, True, [], {}]
    if isinstance(leaf, str):
        others += [leaf + " ", leaf + "\n", leaf[:-1], leaf[::-1], leaf.upper()]
        others += [leaf[:at] + "0" + leaf[at + 1 :] for at in range(len(leaf))]
    if isinstance(leaf, int | float) and not isinstance(leaf, bool):
        others += [leaf + 1, leaf + 1e-9, -leaf]
    if isinstance(leaf, bool):
        others.append(not leaf)
    return [other for other in others if type(other) is not type(leaf) or other != leaf]


def is_caught(raw: bytes, path: Path) -> bool:
    try:
        return read(raw, path).check_signature(KEY.public_key()) != "valid"
    except OutputError:
        return True


# --- the form --------------------------------------------------------------------------------------------------------


def test_the_payload_is_an_in_toto_statement_about_the_new_weights() -> None:
    content = statement(make(make(), old="new", new="newer", references=ReferenceTable(**REFERENCES)))
    assert content["_type"] == "https://in-toto.io/Statement/v1"
    assert content["subject"] == [{"name": "model.safetensors", "digest": {"sha256": digest("newer")}}]
    assert content["predicateType"] == "https://forsaken.example/certificate/v1"
    facts = content["predicate"]
    assert (facts["time"], facts["version"], facts["method"], facts["stopped"]) == (
        TIME, "0.1.0", "forsaken", "converged",
    )  # fmt: skip
    assert facts["weights"]["old"] == weights_of("new").model_dump()
    assert facts["settings"] == {
        "sha256": digest('{"iterations":60,"name":"forsaken","penalty":0.5}'),
        "job_sha256": digest('{"method":{"name":"forsaken"}}'),
    }
    read_as = {"label": "label", "id": None, "size": [32, 32]}
    assert facts["records"] == {"hmac_sha256": [digest("a"), digest("b")], "read_as": read_as}
    assert facts["target"] == RESULT["target"]
    assert facts["measured"]["by"] == "oracle"
    assert facts["measured"]["fr"] == 1.0
    assert facts["measured"]["separation"] == RESULT["separation"]
    assert facts["seconds"] == {"unlearning": 1.5, "total": 3.0}
    assert [link["certificate"] for link in facts["chain"]["links"]] == [make().sha256, None]
    assert set(facts["chain"]) == {"links"}
    assert facts["mask"] == {"kept": False}
    assert facts["references"] == REFERENCES


def test_where_nothing_was_memorised_no_target_is_claimed() -> None:
    assert make(result={"stopped": "not-memorised"}).target is None


def test_the_file_is_a_dsse_envelope(tmp_path: Path) -> None:
    signed = make().sign(KEY)
    outer = json.loads(signed.write(tmp_path / "c.json").read_bytes())
    assert set(outer) == {"payload", "payloadType", "signatures"}
    assert outer["payloadType"] == "application/vnd.in-toto+json"
    assert base64.b64decode(outer["payload"]) == canonical(statement(signed))
    [signature] = outer["signatures"]
    assert signature["keyid"] == key_id(KEY.public_key())
    payload = base64.b64decode(outer["payload"])
    signed_bytes = b"DSSEv1 28 application/vnd.in-toto+json " + str(len(payload)).encode() + b" " + payload
    KEY.public_key().verify(base64.b64decode(signature["sig"]), signed_bytes)
    assert json.loads(make().to_bytes())["signatures"] == []


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
def test_openssl_agrees_on_the_signature(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    signed = make().sign(KEY)
    assert signed.signature is not None
    plain = b"DSSEv1 28 application/vnd.in-toto+json %d %b" % (len(signed.payload), signed.payload)
    (tmp_path / "content").write_bytes(plain)
    (tmp_path / "key").write_bytes(KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    (tmp_path / "value").write_bytes(base64.b64decode(signed.signature.sig))
    command = "openssl pkeyutl -verify -pubin -inkey key -rawin -in content -sigfile value"
    assert subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    (tmp_path / "content").write_bytes(plain + b" ")
    assert subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, check=False).returncode != 0


def test_there_and_back(tmp_path: Path) -> None:
    for certificate in (make(), make().sign(KEY), make(make(), read_as=None, result={"job": None})):
        path = certificate.write(tmp_path / "certificate.json")
        assert Certificate.read(path) == certificate
        assert certificate.sha256 == digest(path.read_bytes())
    assert make().sign(KEY).sha256 != make().sha256


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(number=st.floats(0, 1e300), text=st.text(min_size=1), keys=st.dictionaries(st.text(), st.integers()))
def test_numbers_and_texts_come_back_exactly(tmp_path: Path, number: float, text: str, keys: dict[str, int]) -> None:
    certificate = make(result={"stopped": text, "job": keys}, total_seconds=number).sign(KEY)
    again = Certificate.read(certificate.write(tmp_path / "c.json"))
    assert (again.seconds.total, again.stopped) == (number, text)
    assert again.check_signature(KEY.public_key()) == "valid"


def test_it_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        make().method = "other"  # type: ignore[misc]


def test_weights_are_described_without_their_path(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"w")
    assert Weights.of(path, "pt") == Weights(sha256=digest("w"), format="pt", name="model.pt")
    (tmp_path / "x").mkdir()
    assert Weights.of(tmp_path / "x" / "..", "folder").name == tmp_path.name


# --- attacks on signed certificates ----------------------------------------------------------------------------------


def test_verdicts_on_signatures() -> None:
    other, public = Ed25519PrivateKey.generate(), KEY.public_key()
    signed = make().sign(KEY)
    assert make().check_signature() == make().check_signature(public) == "unsigned"
    assert signed.check_signature() == "not checked"
    assert signed.check_signature(public) == "valid"
    assert signed.check_signature(other.public_key()) == "other key"
    assert signed.sign(other).check_signature(other.public_key()) == "valid"
    stolen = signed.model_copy(update={"signature": make(result={"stopped": "iterations"}).sign(KEY).signature})
    assert stolen.check_signature(public) == "invalid"


def test_every_changed_byte_of_the_file_shows(tmp_path: Path) -> None:
    raw, path = make().sign(KEY).to_bytes(), tmp_path / "c.json"
    assert not is_caught(raw, path)
    for at in range(len(raw)):
        for patch in (bytes([raw[at] ^ 1]), b" ", b"", raw[at : at + 1] * 2):
            patched = raw[:at] + patch + raw[at + 1 :]
            assert patched == raw or is_caught(patched, path), (at, patch)


def test_every_changed_fact_shows(tmp_path: Path) -> None:
    """An attacker keeps to the form, and can do all but sign."""
    signed, path = (
        make(make(), old="new", new="newer", references=ReferenceTable(**REFERENCES)).sign(KEY),
        tmp_path / "c",
    )
    content = statement(signed)
    assert not is_caught(envelope(content, signed), path)
    leaves = list(walk(content))
    assert len(leaves) > 75
    for trail, leaf in leaves:
        for other in altered(leaf):
            assert is_caught(envelope(changed(content, trail, other), signed), path), (trail, other)
        less = copy.deepcopy(content)
        place = less
        for step in trail[:-1]:
            place = place[step]
        del place[trail[-1]]
        assert is_caught(envelope(less, signed), path), trail
    for trail in {way[:depth] for way, _ in leaves for depth in range(len(way))}:
        more = copy.deepcopy(content)
        place = more
        for step in trail:
            place = place[step]
        place.update(more=1) if isinstance(place, dict) else place.append(copy.deepcopy(place[0]))
        assert is_caught(envelope(more, signed), path), trail


def test_there_is_one_way_to_write_an_envelope(tmp_path: Path) -> None:
    signed, path = make().sign(KEY), tmp_path / "c.json"
    outer = json.loads(signed.to_bytes())
    [signature] = outer["signatures"]
    sig = signature["sig"]
    others = [
        outer | {"more": 1},
        outer | {"payloadType": "application/json"},
        outer | {"payload": outer["payload"] + "="},
        outer | {"payload": outer["payload"] + "\n"},
        outer | {"signatures": [signature, signature]},
        outer | {"signatures": [{"sig": sig}]},
        *(outer | {"signatures": [signature | {"sig": text}]} for text in (sig[:-2], sig + "=", f" {sig}", "", "é")),
        *(outer | {"signatures": [signature | {"keyid": text}]} for text in ("", key_id(KEY.public_key()).upper())),
    ]
    assert not is_caught(laid_out(outer), path)
    for other in others:
        assert is_caught(laid_out(other), path), other
    assert is_caught(json.dumps(outer).encode(), path)
    last = sig[-3]  # 64 bytes leave four bits of the last digit unused
    spelt = (
        sig[:-3]
        + "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".index(last) ^ 1
        ]
        + sig[-2:]
    )
    assert base64.b64decode(spelt) == base64.b64decode(sig)
    assert is_caught(laid_out(outer | {"signatures": [signature | {"sig": spelt}]}), path)


@pytest.mark.parametrize("change", [(b":1.0,", b":1,"), (b'"stopped":', b'"stopped":"x","stopped":'), (b",", b", ")])
def test_there_is_one_way_to_write_a_payload(tmp_path: Path, change: tuple[bytes, bytes]) -> None:
    """Readers differ on which of two equal keys counts, so that people could see another meaning than was signed."""
    certificate = make()
    other = certificate.payload.replace(*change, 1)
    assert other != certificate.payload
    with pytest.raises(OutputError, match="it is not written as Forsaken writes what it states; get the file again"):
        read(envelope(other, certificate), tmp_path / "c.json")


# --- files that are damaged, hostile or something else ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("trail", "value", "words"),
    [
        (("weights", "new", "sha256"), "abc", "predicate.weights.new.sha256 is not of the form that is expected"),
        (("weights", "new", "sha256"), digest("a") + "\n", "weights.new.sha256"),
        (("weights", "new"), None, "weights.new is of the wrong type"),
        (("weights", "new", "name"), "other", "not written as Forsaken writes"),  # than the subject's
        (("records", "hmac_sha256"), [], "records.hmac_sha256"),
        (("records", "count"), 2, "not written as Forsaken writes"),
        (("records", "read_as", "size"), [32], "records.read_as.size"),
        (("records", "read_as", "size"), [0, 32], "records.read_as.size"),
        (("mask", "kept"), 0, "mask.kept is of the wrong type"),
        (("signature",), None, "not written as Forsaken writes"),
        (("chain", "max_drift"), 0.1, "not written as Forsaken writes"),
        (("time",), "yesterday", "time is not of the form that is expected"),
        (("seconds", "total"), -1.0, "seconds.total is too small"),
        (("seconds", "total"), float("nan"), "seconds.total is NaN or infinite"),
        (("measured", "fr"), float("inf"), "measured.fr"),
        (("measured", "counts", "forget"), 0, "measured.counts.forget"),
        (("measured", "counts", "test"), 10**400, "measured.counts.test"),
        (("chain", "links"), [], "chain.links"),
        (("chain", "links", 0, "number"), 2, "do not count from 1"),
        (("chain", "links", 0, "certificate"), digest("c"), "every link but the last must name"),
        (("references",), {}, "references.sha256 is missing"),
        (("references",), REFERENCES | {"rows": -1}, "references.rows"),
        (("references",), REFERENCES | {"by": "chance"}, "references.by"),
        (("references",), REFERENCES | {"rows": 1.5}, "references.rows"),
        (("references",), REFERENCES | {"views": 0}, "references.views"),
    ],
)
def test_unsound_content_is_named(tmp_path: Path, trail: tuple[Any, ...], value: object, words: str) -> None:
    certificate = make()
    content = changed(statement(certificate), ("predicate", *trail), value)
    with pytest.raises(OutputError, match=words) as caught:
        read(envelope(content, certificate), tmp_path / "c.json")
    assert "pydantic" not in str(caught.value)


DEEP = b'{"a":' * 5000


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe\x00", b"[" * 100_000, DEEP, b"1" * 5000, b"null", b"{}", b"NaN"])
def test_files_that_are_something_else(tmp_path: Path, raw: bytes) -> None:
    for content in (raw, envelope(raw, make())):
        with pytest.raises(
            OutputError, match=r"c\.json is damaged, or none of Forsaken's: .*; get the file again from"
        ):
            read(content, tmp_path / "c.json")


def test_a_statement_of_another_kind_is_told_apart(tmp_path: Path) -> None:
    other = statement(make()) | {"predicateType": "https://slsa.dev/provenance/v1", "predicate": {}}
    with pytest.raises(OutputError, match=r"predicateType is none of the values that are known"):
        read(envelope(other, make()), tmp_path / "c.json")


def test_certificates_of_earlier_versions_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"c\.json was written by an earlier version of Forsaken.*move it away"):
        read(b'{\n "kind": "forsaken.certificate",\n "schema": 1}\n', tmp_path / "c.json")


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"no certificate .*nothing; check the path"):
        Certificate.read(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")  # reading it would never end
    for path in (tmp_path, tmp_path / "pipe", "a\0b"):
        with pytest.raises(OutputError, match="cannot be read"):
            Certificate.read(path)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_in_a_file_it_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    certificate = make().sign(KEY)
    kind = data.draw(st.sampled_from(["bytes", "patched file", "patched payload", "any value anywhere"]))
    if kind == "bytes":
        raw = data.draw(st.binary(max_size=200))
    elif kind == "any value anywhere":
        content = statement(certificate)
        trails = sorted({trail[:depth] for trail, _ in walk(content) for depth in range(1, len(trail) + 1)}, key=str)
        raw = envelope(changed(content, data.draw(st.sampled_from(trails)), data.draw(values)), certificate)
    else:
        whole = certificate.to_bytes() if kind == "patched file" else certificate.payload
        start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(whole))] * 2)))
        raw = whole[:start] + data.draw(st.binary(max_size=10)) + whole[end:]
        raw = raw if kind == "patched file" else envelope(raw, certificate)
    try:
        found = read(raw, tmp_path / "c.json")
    except OutputError:
        return
    assert found.to_bytes() == raw
    assert (found.check_signature(KEY.public_key()) == "valid") == (found == certificate)


# --- chains ----------------------------------------------------------------------------------------------------------


def test_three_requests() -> None:
    first = make(old="a", new="b", chain=extend(None, request(accuracy_before=0.95)))
    second = make(old="b", new="c", chain=extend(first, request(drift=0.03)))
    own = request(number=77, drift=0.05, accuracy_after=0.7, certificate="0" * 64)
    third = extend(second, own, max_drift=0.2, max_accuracy_loss=0.5)
    found = third.summary().model_dump()
    assert [link["number"] for link in found["links"]] == [1, 2, 3]
    assert [link["certificate"] for link in found["links"]] == [first.sha256, second.sha256, None]
    assert found["drift"] == pytest.approx(0.10)
    assert found["accuracy_loss"] == pytest.approx(0.07 + 0.02 + 0.2)
    assert (found["max_drift"], found["max_accuracy_loss"], found["advice"]) == (0.2, 0.5, [])
    assert second.chain.links[-1].certificate is None


def test_an_unchecked_certificate_does_not_tell_who_signed_the_ones_before_it() -> None:
    """Whoever plants a certificate can write any key beside the links that it makes up."""
    mine = key_id(KEY.public_key())
    planted = make(chain=extend(make(), request(), signer=mine))
    assert [link.signer for link in planted.chain.links] == [mine, None]
    taken = extend(planted, request(), signer=None)
    assert [link.signer for link in taken.links] == [None, None, None]
    assert [link.signer for link in extend(planted, request(), signer=mine).links] == [mine, mine, None]
    assert check_chain(make(chain=taken, old="new", new="newer"), [planted]).passed is not False


def test_the_loss_is_unknown_where_one_is() -> None:
    first = make(chain=extend(None, request(accuracy_before=None)))
    assert extend(first, request()).accuracy_loss is None
    assert extend(None, request(accuracy_after=None), max_accuracy_loss=0.0).advice == ()


@given(st.lists(st.tuples(st.integers(0, 2**32), st.floats(0, 0.5)), min_size=1, max_size=6))
def test_the_drifts_bound_the_distance_from_the_first_weights(steps: list[tuple[int, float]]) -> None:
    first = torch.ones(20, dtype=torch.float64)
    weights, links = first, []
    for number, (seed, size) in enumerate(steps, 1):
        step = size * torch.randn(20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        drift = float(step.norm() / weights.norm())
        links.append(request(number, drift=drift, certificate=None if number == len(steps) else digest("c")))
        weights = weights + step
    chain = Chain(links=tuple(links))
    moved = float((weights - first).norm() / first.norm())
    assert chain.drift == pytest.approx(sum(part.drift for part in links))
    assert moved <= math.prod(1 + part.drift for part in links) - 1 + 1e-9
    assert moved <= math.expm1(chain.drift) + 1e-9


@pytest.mark.parametrize(
    ("drift", "bound", "words"),
    [
        (0.02, None, None),
        (0.08, 0.1, None),
        (0.09, 0.1, "The cumulative drift is 0.09, 90% of the bound of 0.1: plan to retrain"),
        (0.1, 0.1, "100% of the bound of 0.1: plan to retrain"),
        (0.12, 0.1, "The cumulative drift is 0.12, above the bound of 0.1: retrain the model without the forgotten"),
        (0.01, 0.0, "The cumulative drift is 0.01, above the bound of 0: retrain"),
        (0.0, 0.0, None),
    ],
)
def test_advice_on_drift(drift: float, bound: float | None, words: str | None) -> None:
    advice = extend(None, request(drift=drift), max_drift=bound).advice
    assert len(advice) == (words is not None)
    assert words is None or words in advice[0]


def test_advice_on_both() -> None:
    chain = extend(None, request(drift=0.2, accuracy_after=0.8), max_drift=0.1, max_accuracy_loss=0.11)
    assert "drift is 0.2, above" in chain.advice[0]
    assert "loss of accuracy is 0.1, 91% of the bound of 0.11" in chain.advice[1]
    better = extend(None, request(accuracy_before=0.8, accuracy_after=0.9), max_accuracy_loss=0.0)
    assert (better.accuracy_loss, better.advice) == (pytest.approx(-0.1), ())


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "m.pt"
    path.write_bytes(b"new")
    return path


def test_the_certificate_beside_the_weights_is_found(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_previous(weights) is None
    certificate = make()
    certificate.write(weights.parent / "certificate.json")
    assert find_previous(weights, None) == certificate
    (tmp_path / "link.pt").symlink_to(weights)
    assert find_previous(tmp_path / "link.pt") == certificate
    monkeypatch.chdir(weights.parent)
    assert find_previous(Path("m.pt")) == certificate
    make(new="other").write(weights.parent / "certificate.json")
    assert find_previous(weights) is None


def test_the_certificate_beside_a_folder_of_weights_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_bytes(b"{}")
    certificate = make()
    both = certificate.weights.model_copy(update={"new": Weights.of(folder, "huggingface")})
    certificate = certificate.model_copy(update={"weights": both})
    certificate.write(tmp_path / "certificate.json")
    assert find_previous(folder) == certificate


def test_only_what_is_no_certificate_of_ours_is_passed_over(weights: Path) -> None:
    place = weights.parent / "certificate.json"
    for raw in (b'{"kind": "tls"}', b"-----BEGIN CERTIFICATE-----", b"\xff\x00"):
        place.write_bytes(raw)
        assert find_previous(weights) is None
    for raw in (make().to_bytes()[:-9], b'{"kind": "forsaken.certificate"}'):
        place.write_bytes(raw)
        with pytest.raises(OutputError, match=r"damaged|earlier version"):
            find_previous(weights)


def test_the_named_one_must_fit(weights: Path, tmp_path: Path) -> None:
    named = make().write(tmp_path / "named.json")
    assert find_previous(weights, named) == make()
    make(new="other").write(named)
    with pytest.raises(SettingsError, match=f"{digest('other')}, but .*m.pt has {digest('new')}; name the cert"):
        find_previous(weights, named)
    make(old="new", new="newer").write(named)
    with pytest.raises(SettingsError, match="they are the weights before that request"):
        find_previous(weights, named)
    with pytest.raises(OutputError, match="no certificate"):
        find_previous(weights, tmp_path / "nothing")
    with pytest.raises(DataNotFoundError, match=r"gone\.pt"):
        find_previous(tmp_path / "gone.pt", named)


def test_one_that_was_changed_after_its_user_signed_is_refused(weights: Path) -> None:
    path, signed = weights.parent / "certificate.json", make().sign(KEY)
    signed.write(path)
    assert find_previous(weights, None, [KEY.public_key()]) == signed
    path.write_bytes(envelope(changed(statement(signed), ("predicate", "stopped"), "iterations"), signed))
    for named in (None, path):
        with pytest.raises(OutputError, match="was changed after it was signed"):
            find_previous(weights, named, [KEY.public_key()])


def test_one_that_nobody_known_signed_is_refused_unless_the_user_takes_it(weights: Path) -> None:
    path, other = weights.parent / "certificate.json", Ed25519PrivateKey.generate()
    for planted, words in ((make(), "is not signed"), (make().sign(other), "is signed by the key")):
        planted.write(path)
        for named in (None, path):
            with pytest.raises(CertificateError, match=f"{words}.*name the public key of whoever signed it"):
                find_previous(weights, named, [KEY.public_key()])
        assert find_previous(weights, None, [KEY.public_key()], anyone=True) == planted
    assert find_previous(weights, None, [KEY.public_key(), other.public_key()]) == make().sign(other)


# --- fingerprints of files and settings ------------------------------------------------------------------------------


def test_a_file_s_hash_is_sha256(tmp_path: Path) -> None:
    content = os.urandom(3 * 2**20 + 17)  # more than one block, and not a whole number of them
    (tmp_path / "w").write_bytes(content)
    assert file_hash(tmp_path / "w") == hashlib.sha256(content).hexdigest()
    (tmp_path / "empty").write_bytes(b"")
    assert file_hash(str(tmp_path / "empty")) == hashlib.sha256(b"").hexdigest()


def make_folder(folder: Path) -> Path:
    (folder / "sub").mkdir(parents=True)
    (folder / "b.json").write_bytes(b"{}")
    (folder / "a b").write_bytes(b"1")
    (folder / "sub" / "ä.bin").write_bytes(b"2")
    (folder / ".hidden").write_bytes(b"3")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_bytes(b"4")
    return folder


def test_a_folder_s_hash_covers_names_and_content(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    lines = [("a b", b"1"), ("b.json", b"{}"), ("sub/ä.bin", b"2")]
    by_hand = b"".join(hashlib.sha256(c).hexdigest().encode() + b"  " + n.encode() + b"\0" for n, c in lines)
    first = file_hash(folder)
    assert first == hashlib.sha256(by_hand).hexdigest()
    (folder / ".hidden").write_bytes(b"other")
    assert file_hash(folder) == first
    (folder / "b.json").write_bytes(b"{ }")
    second = file_hash(folder)
    (folder / "b.json").rename(folder / "c.json")
    assert len({first, second, file_hash(folder)}) == 3


def test_the_order_of_a_folder_s_files_does_not_matter(tmp_path: Path) -> None:
    names = [f"{number:02d}" for number in range(40)]
    for folder, order in (("up", names), ("down", names[::-1])):
        (tmp_path / folder).mkdir()
        for name in order:
            (tmp_path / folder / name).write_text(name)
    by_hand = b"".join(f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\0".encode() for name in names)
    expected = hashlib.sha256(by_hand).hexdigest()
    assert file_hash(tmp_path / "up") == file_hash(tmp_path / "down") == expected


@pytest.mark.skipif(not shutil.which("sha256sum"), reason="needs sha256sum")
def test_a_folder_s_hash_is_what_the_shell_says(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    command = (
        "find -L . -type f -not -path '*/.*' -printf '%P\\0' | LC_ALL=C sort -z | xargs -0 sha256sum -z | sha256sum"
    )
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == file_hash(folder)


def test_links_to_files_count_as_files_and_links_to_folders_are_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    plain = file_hash(folder)
    (tmp_path / "blob").write_bytes(b"{}")
    (folder / "b.json").unlink()
    (folder / "b.json").symlink_to(tmp_path / "blob")
    assert file_hash(folder) == plain
    (folder / "loop").symlink_to(folder)
    with pytest.raises(DataError, match="loop is a link to a folder"):
        file_hash(folder)


def test_what_cannot_be_hashed_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match=r"no file or folder .*nothing; check the path"):
        file_hash(tmp_path / "nothing")
    with pytest.raises(DataError, match="holds no files"):
        file_hash(tmp_path)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataNotFoundError):
        file_hash(tmp_path)
    (tmp_path / "gone").unlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="pipe is no plain file"):
        file_hash(tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        file_hash(tmp_path / "pipe" / "inside")
    with pytest.raises(DataError, match="pipe is no plain file"):
        file_hash(tmp_path / "pipe")


def test_settings_hash_is_that_of_canonical_json() -> None:
    plain = b'{"a":[1,2.5,null,true],"b":{"x":"\xc3\xa9"}}'
    assert settings_hash({"b": {"x": "é"}, "a": [1, 2.5, None, True]}) == hashlib.sha256(plain).hexdigest()
    assert settings_hash({"a": (1,)}) == settings_hash({"a": [1]})
    assert canonical_json({"b": 1, "a": 2}) == b'{"a":2,"b":1}'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1}, b"x", "\ud800", Path()])
def test_settings_that_json_cannot_carry_are_refused(value: object) -> None:
    with pytest.raises(SettingsError, match="JSON cannot carry"):
        settings_hash({"a": value})
