"""Downloads from a server that misbehaves: clear errors, nothing half-written, and a second try that goes on."""

from __future__ import annotations

import hashlib
import json
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from forsaken.bench.datasets import download as room
from forsaken.bench.datasets.download import fetch
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
    status: int = 0
    sent: int = 0


@dataclass
class Site:
    """What the server serves, how it misbehaves, and what it was asked."""

    port: int = 0
    payload: bytes = PAYLOAD
    headers: dict[str, str] = field(default_factory=dict)
    ranges: bool = True
    length: bool = True
    status: int = 200
    most: int | None = None
    cut: int | None = None
    ending: str = "close"
    megabytes: float = 3.0
    seen: list[Seen] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/set.tar.gz"

    def archive(self, checksum: str | None = SHA256) -> Archive:
        return Archive(self.url, "set.tar.gz", checksum, self.megabytes)


class Handler(BaseHTTPRequestHandler):
    site: Site

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        site = self.site
        seen = Seen(self.headers["Range"])
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


def statuses(site: Site) -> list[int]:
    return [seen.status for seen in site.seen]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_download_arrives_whole_and_alone_and_is_not_asked_for_again(site: Site, tmp_path: Path) -> None:
    for _ in range(2):
        path = fetch(site.archive(), tmp_path / "new" / "folder")
        assert path.read_bytes() == PAYLOAD
        assert names(path.parent) == ["set.tar.gz"]
    assert statuses(site) == [200]


def test_a_damaged_file_is_replaced_and_does_not_stay_when_the_server_is_gone(site: Site, tmp_path: Path) -> None:
    path = fetch(site.archive(), tmp_path)
    path.write_bytes(PAYLOAD[:-1])
    assert fetch(site.archive(), tmp_path).read_bytes() == PAYLOAD
    path.write_bytes(PAYLOAD[:-1])
    site.status = 503
    with pytest.raises(DownloadError, match="the server answered 503"):
        fetch(site.archive(), tmp_path)
    assert not path.exists()


@pytest.mark.parametrize("ending", ["close", "reset", "silence"])
def test_a_stopped_transfer_is_resumed(site: Site, tmp_path: Path, ending: str) -> None:
    kept = interrupt(site, tmp_path, ending=ending)
    assert 0 < kept <= CUT
    assert names(tmp_path) == ["set.tar.gz.part"]
    assert fetch(site.archive(), tmp_path).read_bytes() == PAYLOAD
    assert site.seen == [Seen(f"bytes={kept}-", 206, len(PAYLOAD) - kept)]
    assert names(tmp_path) == ["set.tar.gz"]


def test_a_transfer_may_stop_again_and_again_and_the_error_says_how_much_is_kept(site: Site, tmp_path: Path) -> None:
    interrupt(site, tmp_path)
    site.cut = CUT // 2
    with pytest.raises(DownloadError, match=rf"{CUT + CUT // 2:,} bytes are kept"):
        fetch(site.archive(), tmp_path)
    site.cut = None
    assert fetch(site.archive(), tmp_path).read_bytes() == PAYLOAD
    assert [seen.range for seen in site.seen] == [f"bytes={CUT}-", f"bytes={CUT + CUT // 2}-"]


def test_a_server_without_ranges_is_asked_for_all(site: Site, tmp_path: Path) -> None:
    interrupt(site, tmp_path)
    site.ranges = False
    assert fetch(site.archive(), tmp_path).read_bytes() == PAYLOAD
    assert statuses(site) == [200]


@pytest.mark.parametrize("kind", ["another version", "spoilt part"])
def test_what_is_joined_wrongly_is_found_and_the_next_try_starts_afresh(site: Site, tmp_path: Path, kind: str) -> None:
    interrupt(site, tmp_path)
    if kind == "spoilt part":
        (tmp_path / "set.tar.gz.part").write_bytes(bytes(CUT))
    else:
        site.payload = OTHER
    with pytest.raises(DataError, match="wrong checksum and was removed"):
        fetch(site.archive(), tmp_path)
    assert names(tmp_path) == []
    site.payload = PAYLOAD
    assert fetch(site.archive(), tmp_path).read_bytes() == PAYLOAD
    assert site.seen[-1].range is None


def test_without_a_checksum_nothing_is_joined(site: Site, tmp_path: Path) -> None:
    interrupt(site, tmp_path, checksum=None)
    site.payload = OTHER
    assert fetch(site.archive(None), tmp_path).read_bytes() == OTHER
    assert site.seen[-1].range is None


def test_a_part_that_is_complete_is_taken_as_it_is(site: Site, tmp_path: Path) -> None:
    (tmp_path / "set.tar.gz.part").write_bytes(PAYLOAD)
    assert fetch(site.archive(), tmp_path).read_bytes() == PAYLOAD
    assert statuses(site) == [416]


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_corrupted_bytes_are_refused_and_removed(site: Site, tmp_path: Path, kind: str) -> None:
    site.payload = PAYLOAD[:-1] + b"?"
    checksum = f"{kind}:{hashlib.new(kind, PAYLOAD).hexdigest()}"
    with pytest.raises(DataError, match=r"set\.tar\.gz from http.* wrong checksum and was removed .*; try again"):
        fetch(site.archive(checksum), tmp_path)
    assert names(tmp_path) == []


def test_the_first_checksum_is_kept_where_none_is_published(site: Site, tmp_path: Path) -> None:
    path = fetch(site.archive(None), tmp_path)
    assert json.loads((tmp_path / "checksums.json").read_bytes()) == {"set.tar.gz": SHA256}
    path.unlink()
    site.payload = OTHER
    with pytest.raises(DataError, match=r"to accept the new one, remove its line from checksums\.json"):
        fetch(site.archive(None), tmp_path)
    (tmp_path / "checksums.json").unlink()
    assert fetch(site.archive(None), tmp_path).read_bytes() == OTHER


@pytest.mark.parametrize("content", ["{", "[1]", '{"set.tar.gz": 1}'])
def test_a_damaged_list_of_checksums_is_named(site: Site, tmp_path: Path, content: str) -> None:
    (tmp_path / "checksums.json").write_text(content)
    with pytest.raises(DataError, match=r"checksums\.json .*; delete it"):
        fetch(site.archive(None), tmp_path)


def test_an_http_error_is_named_and_keeps_what_has_arrived(site: Site, tmp_path: Path) -> None:
    kept = interrupt(site, tmp_path)
    site.status = 404
    with pytest.raises(DownloadError, match="the server answered 404 Not Found"):
        fetch(site.archive(), tmp_path)
    assert (tmp_path / "set.tar.gz.part").stat().st_size == kept


def test_a_web_page_is_not_a_dataset(site: Site, tmp_path: Path) -> None:
    site.headers = {"Content-Type": "text/html; charset=utf-8"}
    with pytest.raises(DownloadError, match="a web page instead"):
        fetch(site.archive(), tmp_path)


def test_no_network_is_a_clear_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/set.tar.gz"
    with pytest.raises(DownloadError, match=r"cannot be reached; check the network and try again .* put the file into"):
        fetch(Archive(url, "set.tar.gz", SHA256, 0.3), tmp_path)


def test_a_folder_that_cannot_be_made_is_named(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot make the folder .*file/folder"):
        fetch(site.archive(), tmp_path / "file" / "folder")


@pytest.mark.parametrize("length", [True, False], ids=["known length", "unknown length"])
def test_progress_counts_mebibytes(site: Site, tmp_path: Path, length: bool) -> None:
    site.payload, site.length = random.Random(2).randbytes(5 * 2**19), length
    ticks: list[Tick] = []
    fetch(site.archive(None), tmp_path, ticks.append)
    assert [tick.done for tick in ticks] == [1, 2, 3]
    assert {(tick.stage, tick.total) for tick in ticks} == {("download set.tar.gz", 3 if length else 0)}


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError])
def test_progress_cancels_by_raising_and_the_next_try_goes_on(
    site: Site, tmp_path: Path, kind: type[BaseException]
) -> None:
    site.payload = random.Random(2).randbytes(5 * 2**19)
    archive = site.archive(f"sha256:{hashlib.sha256(site.payload).hexdigest()}")

    def cancel(tick: Tick) -> None:
        raise kind("enough")

    with pytest.raises(kind, match="enough"):
        fetch(archive, tmp_path, cancel)
    assert fetch(archive, tmp_path).read_bytes() == site.payload
    assert [seen.status for seen in site.seen] == [200, 206]


def test_a_server_that_sends_for_ever_is_stopped(site: Site, tmp_path: Path) -> None:
    site.payload, site.length, site.megabytes = PAYLOAD * 20, False, 0.3
    with pytest.raises(DownloadError, match=r"larger than 1,648,576 bytes, twice what is expected"):
        fetch(site.archive(None), tmp_path)
    assert names(tmp_path) == []


def test_a_part_that_is_a_link_is_not_written_through(site: Site, tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "set.tar.gz.part").symlink_to(tmp_path / "victim")
    with pytest.raises((OutputError, DownloadError)):
        fetch(site.archive(), tmp_path / "folder")
    assert (tmp_path / "victim").read_bytes() == b"mine"
