"""Downloads from a server that misbehaves: clear errors, nothing half-written, and a second try that goes on."""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from forsaken.bench.datasets import fetch as room
from forsaken.bench.datasets.fetch import fetch
from forsaken.bench.datasets.registry import Archive
from forsaken.errors import DataError, DownloadError, OutputError
from forsaken.types import Tick

PAYLOAD = random.Random(0).randbytes(300_000)
OTHER = random.Random(1).randbytes(280_000)
SHA256 = f"sha256:{hashlib.sha256(PAYLOAD).hexdigest()}"
CUT = 2 * 2**16


@dataclass
class Seen:
    range: str | None
    if_range: str | None
    status: int = 0
    sent: int = 0


@dataclass
class Site:
    """What the server serves, how it misbehaves, and what it was asked."""

    port: int = 0
    payload: bytes = PAYLOAD
    headers: dict[str, str] = field(default_factory=lambda: {"ETag": '"one"'})
    ranges: bool = True
    heeds_if_range: bool = True
    length: bool = True
    status: int = 200
    most: int | None = None
    cut: int | None = None
    ending: str = "close"
    seen: list[Seen] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/set.tar.gz"

    def archive(self, checksum: str | None = SHA256) -> Archive:
        return Archive(self.url, "set.tar.gz", checksum, 0.3)


class Handler(BaseHTTPRequestHandler):
    site: Site

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        site = self.site
        seen = Seen(self.headers["Range"], self.headers["If-Range"])
        site.seen.append(seen)
        if self.path == "/moved":
            return self.start(seen, 302, {"Location": site.url, "Content-Length": "0"})
        if site.status != 200:
            return self.start(seen, site.status, {"Content-Length": "0"})
        start = self.first_byte(seen)
        total = len(site.payload)
        if start is not None and start >= total:
            return self.start(seen, 416, {"Content-Range": f"bytes */{total}", "Content-Length": "0"})
        body = site.payload[start or 0 :][: site.most]
        headers = dict(site.headers) | ({"Content-Length": str(len(body))} if site.length else {})
        if start is None:
            self.start(seen, 200, headers)
        else:
            self.start(seen, 206, headers | {"Content-Range": f"bytes {start}-{start + len(body) - 1}/{total}"})
        return self.send_body(seen, body)

    def start(self, seen: Seen, status: int, headers: dict[str, str]) -> None:
        seen.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def first_byte(self, seen: Seen) -> int | None:
        if not seen.range or not self.site.ranges:
            return None
        versions = {self.site.headers.get("ETag"), self.site.headers.get("Last-Modified")}
        if seen.if_range and self.site.heeds_if_range and seen.if_range not in versions:
            return None
        return int(seen.range.removeprefix("bytes=").removesuffix("-"))

    def send_body(self, seen: Seen, body: bytes) -> None:
        part = body[: self.site.cut]
        seen.sent = len(part)
        self.wfile.write(part)
        self.wfile.flush()
        if len(part) < len(body) and self.site.ending != "close":
            time.sleep(0.7 if self.site.ending == "silence" else 0.2)
        if len(part) < len(body) and self.site.ending == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(room, "TIMEOUT", (2.0, 0.3))
    served = Site()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"site": served}))
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    served.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


def interrupt(site: Site, folder: Path, checksum: str | None = SHA256, ending: str = "close") -> int:
    site.cut, site.ending = CUT, ending
    with pytest.raises(DownloadError):
        fetch(site.archive(checksum), folder)
    site.cut = None
    site.seen.clear()
    return (folder / "set.tar.gz.part").stat().st_size


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_download_arrives_whole_and_alone(
    site: Site, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "new" / "folder"
    path = fetch(site.archive(), folder)
    assert path == folder.resolve() / "set.tar.gz"
    assert path.read_bytes() == PAYLOAD
    assert names(folder) == ["set.tar.gz"]
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_a_complete_file_is_not_downloaded_again(site: Site, tmp_path: Path) -> None:
    fetch(site.archive(), tmp_path)
    fetch(site.archive(), tmp_path)
    assert len(site.seen) == 1


def test_a_damaged_file_is_replaced(site: Site, tmp_path: Path) -> None:
    fetch(site.archive(), tmp_path).write_bytes(PAYLOAD[:-1])
    assert fetch(site.archive(), tmp_path).read_bytes() == PAYLOAD
    assert len(site.seen) == 2


def test_a_damaged_file_does_not_stay_when_the_server_is_gone(site: Site, tmp_path: Path) -> None:
    fetch(site.archive(), tmp_path).write_bytes(PAYLOAD[:-1])
    site.status = 503
    with pytest.raises(DownloadError, match="503"):
        fetch(site.archive(), tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("ending", "reason"), [("close", "broke"), ("reset", "broke"), ("silence", "silent")], ids=["cut", "reset", "slow"]
)
def test_a_stopped_transfer_is_resumed(site: Site, tmp_path: Path, ending: str, reason: str) -> None:
    site.cut, site.ending = CUT, ending
    with pytest.raises(DownloadError, match=rf"set\.tar\.gz from {site.url}: .*{reason}.*try again"):
        fetch(site.archive(), tmp_path)
    kept = (tmp_path / "set.tar.gz.part").stat().st_size
    assert 0 < kept <= CUT
    assert names(tmp_path) == ["set.tar.gz.part", "set.tar.gz.part.json"]
    site.cut = None
    assert fetch(site.archive(), tmp_path).read_bytes() == PAYLOAD
    assert site.seen[1:] == [Seen(f"bytes={kept}-", '"one"', 206, len(PAYLOAD) - kept)]
    assert names(tmp_path) == ["set.tar.gz"]


def test_a_transfer_may_stop_again_and_again(site: Site, tmp_path: Path) -> None:
    interrupt(site, tmp_path)
    kept = interrupt(site, tmp_path)
    assert kept == 2 * CUT
    assert fetch(site.archive(), tmp_path).read_bytes() == PAYLOAD
    assert site.seen[0].sent == len(PAYLOAD) - kept


def test_an_answer_that_is_only_a_piece_is_not_taken_for_the_rest(site: Site, tmp_path: Path) -> None:
    kept = interrupt(site, tmp_path)
    site.most = 1000
    with pytest.raises(DownloadError, match=f"ended after {kept + 1000:,} of 300,000 bytes"):
        fetch(site.archive(), tmp_path)
    site.most = None
    assert fetch(site.archive(), tmp_path).read_bytes() == PAYLOAD
    assert site.seen[-1].range == f"bytes={kept + 1000}-"


def test_the_error_says_how_much_is_kept(site: Site, tmp_path: Path) -> None:
    site.cut = CUT
    with pytest.raises(DownloadError, match=r"131,072 bytes are kept"):
        fetch(site.archive(), tmp_path)


def test_a_server_without_ranges_is_asked_for_all(site: Site, tmp_path: Path) -> None:
    kept = interrupt(site, tmp_path)
    site.ranges = False
    assert fetch(site.archive(), tmp_path).read_bytes() == PAYLOAD
    assert site.seen == [Seen(f"bytes={kept}-", '"one"', 200, len(PAYLOAD))]


@pytest.mark.parametrize("heeds_if_range", [True, False])
def test_two_versions_are_never_joined(site: Site, tmp_path: Path, heeds_if_range: bool) -> None:
    interrupt(site, tmp_path, checksum=None)
    site.payload, site.headers, site.heeds_if_range = OTHER, {"ETag": '"two"'}, heeds_if_range
    assert fetch(site.archive(None), tmp_path).read_bytes() == OTHER
    assert site.seen[-1].status == 200
    assert site.seen[-1].sent == len(OTHER)


def test_another_length_is_another_version(site: Site, tmp_path: Path) -> None:
    site.headers = {}
    interrupt(site, tmp_path)
    site.payload = OTHER
    with pytest.raises(DataError, match="wrong checksum"):
        fetch(site.archive(), tmp_path)
    assert [seen.status for seen in site.seen] == [206, 200]


def test_another_address_is_another_file(site: Site, tmp_path: Path) -> None:
    interrupt(site, tmp_path)
    moved = Archive(f"http://127.0.0.1:{site.port}/moved", "set.tar.gz", SHA256, 0.3)
    assert fetch(moved, tmp_path).read_bytes() == PAYLOAD
    assert [seen.range for seen in site.seen] == [None, None]


def test_a_redirected_download_is_resumed_too(site: Site, tmp_path: Path) -> None:
    moved = Archive(f"http://127.0.0.1:{site.port}/moved", "set.tar.gz", SHA256, 0.3)
    site.cut = CUT
    with pytest.raises(DownloadError):
        fetch(moved, tmp_path)
    site.cut = None
    assert fetch(moved, tmp_path).read_bytes() == PAYLOAD
    assert site.seen[-1] == Seen(f"bytes={CUT}-", '"one"', 206, len(PAYLOAD) - CUT)


def test_a_weak_entity_tag_gives_way_to_the_date(site: Site, tmp_path: Path) -> None:
    date = "Tue, 01 Jul 2025 00:00:00 GMT"
    site.headers = {"ETag": 'W/"one"', "Last-Modified": date}
    interrupt(site, tmp_path)
    fetch(site.archive(), tmp_path)
    assert site.seen[0].if_range == date
    assert site.seen[0].status == 206


def test_without_a_version_only_a_checksum_allows_to_resume(site: Site, tmp_path: Path) -> None:
    site.headers = {}
    kept = interrupt(site, tmp_path / "checked")
    fetch(site.archive(), tmp_path / "checked")
    assert site.seen == [Seen(f"bytes={kept}-", None, 206, len(PAYLOAD) - kept)]
    interrupt(site, tmp_path / "unchecked", checksum=None)
    fetch(site.archive(None), tmp_path / "unchecked")
    assert site.seen == [Seen(None, None, 200, len(PAYLOAD))]


def test_a_part_that_is_complete_is_taken_as_it_is(site: Site, tmp_path: Path) -> None:
    kept = interrupt(site, tmp_path)
    with (tmp_path / "set.tar.gz.part").open("ab") as part:
        part.write(PAYLOAD[kept:])
    assert fetch(site.archive(), tmp_path).read_bytes() == PAYLOAD
    assert site.seen == [Seen(f"bytes={len(PAYLOAD)}-", '"one"', 416, 0)]


def test_a_part_that_is_too_long_is_dropped(site: Site, tmp_path: Path) -> None:
    interrupt(site, tmp_path)
    (tmp_path / "set.tar.gz.part").write_bytes(PAYLOAD + b"more")
    assert fetch(site.archive(), tmp_path).read_bytes() == PAYLOAD
    assert [seen.status for seen in site.seen] == [416, 200]


@pytest.mark.parametrize("note", [b"", b"[]", b'{"url": "http://elsewhere/"}'])
def test_a_part_without_a_usable_note_is_dropped(site: Site, tmp_path: Path, note: bytes) -> None:
    interrupt(site, tmp_path)
    (tmp_path / "set.tar.gz.part.json").write_bytes(note)
    assert fetch(site.archive(), tmp_path).read_bytes() == PAYLOAD
    assert site.seen == [Seen(None, None, 200, len(PAYLOAD))]


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_corrupted_bytes_are_refused_and_removed(site: Site, tmp_path: Path, kind: str) -> None:
    site.payload = PAYLOAD[:1000] + b"?" + PAYLOAD[1001:]
    expected = hashlib.new(kind, PAYLOAD).hexdigest()
    found = hashlib.new(kind, site.payload).hexdigest()
    with pytest.raises(DataError) as caught:
        fetch(site.archive(f"{kind}:{expected}"), tmp_path)
    assert all(word in str(caught.value) for word in ("set.tar.gz", expected, found, "try again"))
    assert names(tmp_path) == []
    site.payload = PAYLOAD
    assert fetch(site.archive(), tmp_path).read_bytes() == PAYLOAD
    assert site.seen[-1].range is None


def test_a_corrupted_part_is_found_and_the_next_try_starts_afresh(site: Site, tmp_path: Path) -> None:
    kept = interrupt(site, tmp_path)
    (tmp_path / "set.tar.gz.part").write_bytes(bytes(kept))
    with pytest.raises(DataError, match="wrong checksum"):
        fetch(site.archive(), tmp_path)
    assert names(tmp_path) == []
    assert fetch(site.archive(), tmp_path).read_bytes() == PAYLOAD
    assert site.seen[-1].range is None


def test_the_first_checksum_is_kept_where_none_is_published(site: Site, tmp_path: Path) -> None:
    (tmp_path / "checksums.json").write_text('{"other.zip": "sha256:00"}')
    fetch(site.archive(None), tmp_path)
    assert json.loads((tmp_path / "checksums.json").read_text()) == {"other.zip": "sha256:00", "set.tar.gz": SHA256}
    (tmp_path / "set.tar.gz").write_bytes(b"damaged")
    assert fetch(site.archive(None), tmp_path).read_bytes() == PAYLOAD
    assert len(site.seen) == 2


def test_a_file_that_changes_at_its_home_is_refused_until_it_is_accepted(site: Site, tmp_path: Path) -> None:
    fetch(site.archive(None), tmp_path).unlink()
    site.payload = OTHER
    with pytest.raises(DataError, match=r"remove its line from .*checksums\.json"):
        fetch(site.archive(None), tmp_path)
    assert names(tmp_path) == ["checksums.json"]
    (tmp_path / "checksums.json").write_text("{}")
    assert fetch(site.archive(None), tmp_path).read_bytes() == OTHER


@pytest.mark.parametrize("content", ["{", "[1]", '{"set.tar.gz": 1}', '{"set.tar.gz": "crc:1"}'])
def test_a_damaged_list_of_checksums_is_named(site: Site, tmp_path: Path, content: str) -> None:
    (tmp_path / "checksums.json").write_text(content)
    with pytest.raises(DataError, match=r"checksums\.json .*delete it"):
        fetch(site.archive(None), tmp_path)
    assert site.seen == []


@pytest.mark.parametrize("status", [404, 403, 500])
def test_an_http_error_is_named(site: Site, tmp_path: Path, status: int) -> None:
    site.status = status
    with pytest.raises(DownloadError, match=rf"set\.tar\.gz .*answered {status} .*put the file into"):
        fetch(site.archive(), tmp_path)
    assert names(tmp_path) == []


def test_an_http_error_keeps_what_has_arrived(site: Site, tmp_path: Path) -> None:
    kept = interrupt(site, tmp_path)
    site.status = 500
    with pytest.raises(DownloadError, match="500"):
        fetch(site.archive(), tmp_path)
    site.status = 200
    fetch(site.archive(), tmp_path)
    assert site.seen[-1].range == f"bytes={kept}-"


def test_a_web_page_is_not_a_dataset(site: Site, tmp_path: Path) -> None:
    site.headers = {"Content-Type": "text/html; charset=utf-8"}
    with pytest.raises(DownloadError, match="web page"):
        fetch(site.archive(None), tmp_path)
    assert names(tmp_path) == []


def test_no_network_is_a_clear_error(site: Site, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/set.tar.gz"
    with pytest.raises(DownloadError, match=r"cannot be reached.*check the network"):
        fetch(Archive(url, "set.tar.gz", SHA256, 0.3), tmp_path)
    assert names(tmp_path) == []


def test_a_server_that_never_answers_is_given_up(site: Site, tmp_path: Path) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/set.tar.gz"
        with pytest.raises(DownloadError, match="no answer in time"):
            fetch(Archive(url, "set.tar.gz", SHA256, 0.3), tmp_path)


@pytest.mark.parametrize("url", ["ftp://host/set.tar.gz", "file:///etc/hostname", "set.tar.gz"])
def test_only_the_web_is_asked(tmp_path: Path, url: str) -> None:
    with pytest.raises(DownloadError, match="http:// or https://"):
        fetch(Archive(url, "set.tar.gz", None, 0.3), tmp_path)


@pytest.mark.parametrize("file", ["../set.tar.gz", "/tmp/set.tar.gz", "", "..", "a/b", "checksums.json"])
def test_nothing_is_written_elsewhere(site: Site, tmp_path: Path, file: str) -> None:
    with pytest.raises(DownloadError, match="plain file name"):
        fetch(Archive(site.url, file, None, 0.3), tmp_path / "folder")
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_named(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot create the folder .*file"):
        fetch(site.archive(), tmp_path / "file" / "folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to_is_named(site: Site, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="cannot write to the folder"):
        fetch(site.archive(), tmp_path)
    tmp_path.chmod(0o700)


def test_progress_counts_mebibytes(site: Site, tmp_path: Path) -> None:
    site.payload = random.Random(2).randbytes(3 * 2**20 + 1)
    ticks: list[Tick] = []
    fetch(site.archive(None), tmp_path, ticks.append)
    assert [(tick.done, tick.total) for tick in ticks] == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
    assert {tick.stage for tick in ticks} == {"download set.tar.gz"}


def test_an_unknown_length_is_zero(site: Site, tmp_path: Path) -> None:
    site.length = False
    ticks: list[Tick] = []
    assert fetch(site.archive(None), tmp_path, ticks.append).read_bytes() == PAYLOAD
    assert {tick.total for tick in ticks} == {0}


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError])
def test_progress_cancels_by_raising_and_the_next_try_goes_on(
    site: Site, tmp_path: Path, kind: type[BaseException]
) -> None:
    def cancel(tick: Tick) -> None:
        raise kind("enough")

    with pytest.raises(kind, match=r"^enough$"):
        fetch(site.archive(), tmp_path, cancel)
    kept = (tmp_path / "set.tar.gz.part").stat().st_size
    assert names(tmp_path) == ["set.tar.gz.part", "set.tar.gz.part.json"]
    assert fetch(site.archive(), tmp_path).read_bytes() == PAYLOAD
    assert site.seen[-1].range == f"bytes={kept}-"


def test_without_pooch_the_error_says_so(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DownloadError, match="pip install pooch"):
        fetch(site.archive(), tmp_path)
