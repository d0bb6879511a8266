"""Key files: what is written, who may read it, and what is said of files that are no keys."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed448, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from forsaken import _keys as keys
from forsaken._keys import (
    key_id,
    key_warning,
    new_record_key,
    new_signing_key,
    parse_public_key,
    public_key_text,
    read_public_key,
    read_record_key,
    read_signing_key,
    write_record_key,
    write_signing_keys,
)
from forsaken.errors import OutputError, SettingsError

needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")


@pytest.fixture(autouse=True)
def no_passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORSAKEN_PASSPHRASE", raising=False)


def openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def pem_of(key: ed448.Ed448PrivateKey | rsa.RSAPrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def test_a_record_key_there_and_back(tmp_path: Path) -> None:
    key = new_record_key()
    assert len(key) == 32
    assert key != new_record_key()
    path = write_record_key(tmp_path / "records.key", key)
    assert path.read_text() == key.hex() + "\n"
    assert mode_of(path) == 0o600
    assert read_record_key(path) == key
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_key_is_never_overwritten(tmp_path: Path) -> None:
    path = write_record_key(tmp_path / "k", bytes(32))
    with pytest.raises(OutputError, match="is there already, and a key is never overwritten"):
        write_record_key(path, new_record_key())
    assert read_record_key(path) == bytes(32)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="is there already"):
        write_record_key(tmp_path / "link", bytes(32))
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(OutputError, match="does its folder exist"):
        write_record_key(tmp_path / "no" / "k", bytes(32))


def test_a_key_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OutputError("disk full")

    monkeypatch.setattr(keys, "write_atomically", full)
    with pytest.raises(OutputError, match="disk full"):
        write_record_key(tmp_path / "k", bytes(32))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("around", ["{}", "{}\n", "  {}\r\n", "\n{}\n\n"])
def test_whitespace_and_capitals_around_a_record_key(tmp_path: Path, around: str) -> None:
    (tmp_path / "k").write_text(around.format("AB" * 32))
    assert read_record_key(tmp_path / "k") == b"\xab" * 32


@pytest.mark.parametrize("content", [b"", b"ab" * 31, b"ab" * 33, b"zz" * 32, b"ab " * 32, b"\xff" * 64, b"secret"])
def test_what_is_no_record_key(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "k").write_bytes(content)
    with pytest.raises(SettingsError, match=r"64 hexadecimal digits.* forsaken keys new-record") as caught:
        read_record_key(tmp_path / "k")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\0" * 65, b"abc123", b"ab" * 31])
def test_a_key_that_was_cut_off_is_explained(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "k").write_bytes(content)
    with pytest.raises(SettingsError, match=r"was cut off.* from a copy, or delete the file and make one with"):
        read_record_key(tmp_path / "k")


def test_a_key_without_content_makes_room_for_a_new_one(tmp_path: Path) -> None:
    """Earlier versions left one of no bytes when they were killed, and a power cut one of zero bytes."""
    for content in (b"", b"\0" * 65):
        (tmp_path / "k").write_bytes(content)
        keys.remove_empty_key(tmp_path / "k")
        assert not (tmp_path / "k").exists()
    for content in (b"ab", b"ab" * 32):
        (tmp_path / "k").write_bytes(content)
        keys.remove_empty_key(tmp_path / "k")
        assert (tmp_path / "k").read_bytes() == content, "it may be what is left of a key that matters"


@pytest.mark.parametrize("links", [True, False])
def test_a_key_that_somebody_else_writes_at_the_same_time_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Also on a file system without hard links."""

    def late(source: Path, goal: Path) -> None:
        goal.write_text("somebody else's")
        raise OSError(errno.EEXIST if links else errno.EPERM, "no")

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(OutputError, match="never overwritten"):
        write_record_key(tmp_path / "k", new_record_key())
    assert [path.read_text() for path in tmp_path.iterdir()] == ["somebody else's"]


def test_key_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no key file .*nothing"):
        read_record_key(tmp_path / "nothing")
    with pytest.raises(SettingsError, match=r"cannot be read .*[Dd]irectory"):
        read_signing_key(tmp_path)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_record_key("a\0b")
    (tmp_path / "large").write_bytes(b"a" * 100_000)
    with pytest.raises(SettingsError, match="larger than any key"):
        read_public_key(tmp_path / "large")


def test_a_key_that_others_may_read_gets_a_warning(tmp_path: Path) -> None:
    path = write_record_key(tmp_path / "k", bytes(32))
    assert key_warning(path) is None
    path.chmod(0o640)
    warning = key_warning(path)
    assert warning is not None
    assert "chmod 600" in warning
    assert str(path) in warning
    assert key_warning(tmp_path / "nothing") is None


def test_a_pair_there_and_back(tmp_path: Path) -> None:
    key = new_signing_key()
    private, public = write_signing_keys(tmp_path / "signing.pem", key)
    assert (private.name, public.name) == ("signing.pem", "signing.pem.pub")
    assert mode_of(private) == 0o600
    assert public.read_text() == public_key_text(key)
    assert read_signing_key(private).private_bytes_raw() == key.private_bytes_raw()
    assert read_public_key(public) == key.public_key() == parse_public_key(public_key_text(key.public_key()))


def test_a_key_s_name_by_hand() -> None:
    # The first test key of RFC 8032, section 7.1.
    key = Ed25519PrivateKey.from_private_bytes(
        bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    )
    raw = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    assert key_id(key.public_key()) == hashlib.sha256(raw).hexdigest()[:16]


def test_a_pair_is_never_overwritten_and_never_half_written(tmp_path: Path) -> None:
    (tmp_path / "s.pub").write_text("mine")
    with pytest.raises(OutputError, match=r"s\.pub is there already"):
        write_signing_keys(tmp_path / "s", new_signing_key())
    assert [path.name for path in tmp_path.iterdir()] == ["s.pub"]
    (tmp_path / "t").write_text("mine")
    with pytest.raises(OutputError, match="t is there already"):
        write_signing_keys(tmp_path / "t", new_signing_key())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.pub", "t"]
    assert (tmp_path / "t").read_text() == "mine"


def test_a_pair_whose_second_half_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = keys.write_atomically

    def full(path: Path, content: bytes, **how: bool) -> Path:
        if path.suffix == ".pub":
            raise OutputError("disk full")
        return write(path, content, **how)

    monkeypatch.setattr(keys, "write_atomically", full)
    with pytest.raises(OutputError, match="disk full"):
        write_signing_keys(tmp_path / "s", new_signing_key())
    assert list(tmp_path.iterdir()) == []


def test_an_encrypted_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = new_signing_key()
    monkeypatch.setenv("FORSAKEN_PASSPHRASE", "open sesamé")
    private, _ = write_signing_keys(tmp_path / "s", key)
    assert b"ENCRYPTED" in private.read_bytes()
    assert read_signing_key(private).private_bytes_raw() == key.private_bytes_raw()
    monkeypatch.setenv("FORSAKEN_PASSPHRASE", "wrong")
    with pytest.raises(SettingsError, match="is the passphrase in FORSAKEN_PASSPHRASE right"):
        read_signing_key(private)
    assert read_signing_key(private, "open sesamé".encode()).private_bytes_raw() == key.private_bytes_raw()
    monkeypatch.delenv("FORSAKEN_PASSPHRASE")
    with pytest.raises(SettingsError, match="is encrypted; set its passphrase in the environment variable FORSAKEN_"):
        read_signing_key(private)


def test_a_passphrase_that_is_not_needed_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private, _ = write_signing_keys(tmp_path / "s", new_signing_key())
    monkeypatch.setenv("FORSAKEN_PASSPHRASE", "unused")
    read_signing_key(private)


@needs_openssl
def test_keys_that_openssl_made(tmp_path: Path) -> None:
    plain, locked, public = tmp_path / "plain.pem", tmp_path / "locked.pem", tmp_path / "public.pem"
    openssl("genpkey", "-algorithm", "ed25519", "-out", plain)
    openssl("pkey", "-in", plain, "-aes256", "-passout", "pass:word", "-out", locked)
    openssl("pkey", "-in", plain, "-pubout", "-out", public)
    key = read_signing_key(plain)
    assert read_signing_key(locked, b"word").private_bytes_raw() == key.private_bytes_raw()
    assert public_key_text(key) == public.read_text()
    assert read_public_key(public) == key.public_key()


@needs_openssl
def test_openssl_reads_our_pair(tmp_path: Path) -> None:
    private, public = write_signing_keys(tmp_path / "s", new_signing_key())
    openssl("pkey", "-in", private, "-pubout", "-out", tmp_path / "again")
    assert (tmp_path / "again").read_text() == public.read_text()


def test_keys_of_another_kind(tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    for key, name in ((rsa.generate_private_key(65537, 2048), "RSA"), (ed448.Ed448PrivateKey.generate(), "Ed448")):
        other.write_bytes(pem_of(key))
        with pytest.raises(SettingsError, match=rf"another kind \({name}\), expected Ed25519; make one with"):
            read_signing_key(other)
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        other.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))
        with pytest.raises(SettingsError, match=rf"another kind \({name}\), expected Ed25519"):
            read_public_key(other)


def test_the_wrong_half_of_a_pair(tmp_path: Path) -> None:
    private, public = write_signing_keys(tmp_path / "s", new_signing_key())
    with pytest.raises(SettingsError, match="holds a public key, expected the private one"):
        read_signing_key(public)
    with pytest.raises(SettingsError, match=r"holds a private key, expected the public one; .*openssl pkey .*-pubout"):
        read_public_key(private)


@pytest.mark.parametrize("cut", [0, 10, 60, 100])
def test_damaged_keys(tmp_path: Path, cut: int) -> None:
    for path, read in zip(
        write_signing_keys(tmp_path / "s", new_signing_key()), (read_signing_key, read_public_key), strict=True
    ):
        path.write_bytes(path.read_bytes()[:cut])
        with pytest.raises(SettingsError, match=r"cannot be read as a (private|public) key in PEM"):
            read(path)
        path.write_bytes(os.urandom(200))
        with pytest.raises(SettingsError, match="cannot be read as a"):
            read(path)
