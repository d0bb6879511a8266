"""Downloads: resumed where they stopped, checked against a checksum, never half-written under the final name."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forsaken._files import write_atomically
from forsaken.bench.datasets.registry import Archive
from forsaken.errors import DataError, DownloadError, ForsakenError, OutputError
from forsaken.types import Progress, Tick, silent

if TYPE_CHECKING:
    from requests import Response

CHECKSUMS = "checksums.json"
TIMEOUT = (20.0, 60.0)  # seconds to connect, and between two pieces of an answer
_PIECE = 2**16
_MIB = 2**20
_CHECKSUM = re.compile(r"(md5|sha256):[0-9a-f]+")
_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")


def fetch(archive: Archive, folder: Path, progress: Progress = silent) -> Path:
    """Return the path of an archive in `folder`, downloading it unless it is there and has the right checksum.

    What an interrupted download has left in `<file>.part` is used by the next one. Where no checksum is published, the
    SHA-256 of the first download is kept in `checksums.json` in the folder, and checked from then on.

    Parameters
    ----------
    archive : Archive
        What to download.
    folder : Path
        Where to; it is created if it is missing, and nothing is written outside of it.
    progress : callable, optional
        Told about each MiB. It cancels the download by raising; what has arrived is kept.

    Raises
    ------
    DownloadError
        The file cannot be reached, or the transfer stopped; call again to go on.
    DataError
        The file is not the one that was published; it has been removed.
    OutputError
        The folder cannot be written to.
    """
    _check_request(archive)
    place = _prepared(folder)
    pooch = _pooch()
    path = place / archive.file
    known = archive.checksum or _recorded(place).get(archive.file)
    if path.is_file() and known is not None and known != _checksum(pooch, path, known.partition(":")[0]):
        with _writing(path):
            path.unlink()
    if not path.is_file():
        downloader = _Resuming(archive, place, progress, checked=known is not None)
        with _quiet(pooch.get_logger()):
            try:
                pooch.retrieve(archive.url, known, fname=archive.file, path=place, downloader=downloader)
            except ForsakenError:
                raise
            except ValueError as error:
                if not downloader.complete:  # not pooch's, but whatever `progress` cancels with
                    raise
                raise DataError(_wrong_checksum(archive, place, str(error))) from error
            except OSError as error:
                raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    if known is None:
        found = {**_recorded(place), archive.file: _checksum(pooch, path, "sha256")}
        write_atomically(place / CHECKSUMS, json.dumps(found, indent=2, sort_keys=True).encode())
    return path


@dataclass(slots=True)
class _Resuming:
    """A downloader for pooch that goes on from `<file>.part`, as far as `<file>.part.json` says that it may."""

    archive: Archive
    folder: Path
    progress: Progress
    checked: bool
    complete: bool = False

    def __call__(self, url: str, output_file: str, pooch: object) -> None:  # noqa: ARG002 (pooch's signature)
        note = self._note()
        size = self._part.stat().st_size if note else 0
        response = self._ask({} if size == 0 else _continuation(size, note))
        if size and not _continues(response, size, note):
            if response.status_code in {206, 416}:  # the remote file is not the one that the part is of
                response.close()
                response = self._ask({})
            size = 0
        with response:
            if response.status_code != 416:
                self._receive(response, size)
        self.complete = True
        self._part.replace(output_file)
        self._note_path.unlink(missing_ok=True)

    @property
    def _part(self) -> Path:
        return self.folder / f"{self.archive.file}.part"

    @property
    def _note_path(self) -> Path:
        return self.folder / f"{self.archive.file}.part.json"

    def _note(self) -> dict[str, Any]:
        """Return what is known about the part; nothing where it must not be continued."""
        try:
            note = json.loads(self._note_path.read_bytes())
        except (OSError, ValueError):
            return {}
        usable = isinstance(note, dict) and note.get("url") == self.archive.url and self._part.is_file()
        # Without a validator two versions could be joined, and without a checksum nobody would notice.
        return note if usable and (note.get("validator") or self.checked) else {}

    def _ask(self, headers: dict[str, str]) -> Response:
        import requests  # noqa: PLC0415 (comes with pooch)

        # Archives must arrive as they are: a compressed transfer could not be resumed.
        headers = {"Accept-Encoding": "identity", **headers}
        try:
            response = requests.get(self.archive.url, headers=headers, stream=True, timeout=TIMEOUT)
        except requests.Timeout as error:
            raise self._failure("no answer in time") from error
        except requests.RequestException as error:
            raise self._failure("the server cannot be reached") from error
        expected = {200, 206, 416} if "Range" in headers else {200}
        if response.status_code not in expected:
            response.close()
            raise self._failure(f"the server answered {response.status_code} {response.reason}")
        if response.headers.get("Content-Type", "").startswith("text/html") and response.status_code != 416:
            response.close()
            raise self._failure("the server sent a web page instead, perhaps one to log in to the network")
        return response

    def _receive(self, response: Response, size: int) -> None:
        if size == 0:
            length = response.headers.get("Content-Length", "")
            total = int(length) if length.isdecimal() else 0
            note = {"url": self.archive.url, "validator": _validator(response), "total": total}
            self._part.unlink(missing_ok=True)  # or a crash could leave an old part beside a new note
            write_atomically(self._note_path, json.dumps(note).encode())
        else:
            total = _content_range(response)[1] or 0
        stage = f"download {self.archive.file}"
        told = -1
        with _writing(self._part), self._part.open("ab" if size else "wb") as file:
            for piece in self._pieces(response):
                file.write(piece)
                size += len(piece)
                if size // _MIB != told:
                    told = size // _MIB
                    self.progress(Tick(stage, told, -(-total // _MIB)))
        if self._part.stat().st_size != size:
            raise self._failure("somebody else is writing to the same file")
        if total and size != total:
            raise self._failure(f"it ended after {size:,} of {total:,} bytes")
        self.progress(Tick(stage, -(-size // _MIB), -(-total // _MIB)))

    def _pieces(self, response: Response) -> Iterator[bytes]:
        import urllib3  # noqa: PLC0415 (comes with pooch)

        try:
            yield from response.raw.stream(_PIECE, decode_content=False)
        except urllib3.exceptions.TimeoutError as error:
            raise self._failure("the server fell silent") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._failure("the connection broke") from error

    def _failure(self, cause: str) -> DownloadError:
        kept = self._part.stat().st_size if self._part.is_file() else 0
        return DownloadError(
            f"cannot download {self.archive.file} from {self.archive.url}: {cause}; check the network and try again "
            f"({kept:,} bytes are kept and not asked for again), or put the file into {self.folder} yourself"
        )


def _continuation(size: int, note: dict[str, Any]) -> dict[str, str]:
    validator = note.get("validator")
    return {"Range": f"bytes={size}-"} | ({"If-Range": validator} if validator else {})


def _continues(response: Response, size: int, note: dict[str, Any]) -> bool:
    """Tell whether an answer goes on after `size` bytes of the noted file, or says that these are all."""
    start, total = _content_range(response)
    if response.status_code == 416:
        return total == size
    same = _validator(response) in {"", note.get("validator")} and total in {None, note.get("total") or total}
    return response.status_code == 206 and start == size and same


def _content_range(response: Response) -> tuple[int | None, int | None]:
    match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    start, total = match.groups() if match else (None, None)
    return int(start) if start else None, int(total) if total and total != "*" else None


def _validator(response: Response) -> str:
    """Return what names this version of the remote file; weak entity tags cannot, RFC 9110, section 13.1.5."""
    tag = str(response.headers.get("ETag", ""))
    return tag if tag.startswith('"') else str(response.headers.get("Last-Modified", ""))


def _check_request(archive: Archive) -> None:
    if not archive.url.startswith(("http://", "https://")):
        raise DownloadError(f"cannot download {archive.url}: expected an address that begins with http:// or https://")
    if archive.file in {"", ".", "..", CHECKSUMS} or Path(archive.file).name != archive.file:
        raise DownloadError(f"cannot save a download as {archive.file!r}: expected a plain file name")


def _prepared(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot create the folder {folder}: {error.strerror}; name another one") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write to the folder {folder}; change its permissions or name another one")
    return folder.resolve()


def _recorded(place: Path) -> dict[str, str]:
    path = place / CHECKSUMS
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} is not JSON; delete it, and checksums are recorded anew") from error
    if not isinstance(found, dict) or not all(_CHECKSUM.fullmatch(str(value)) for value in found.values()):
        raise DataError(f"{path} does not map file names to checksums; delete it, and they are recorded anew")
    return found


def _checksum(pooch: Any, path: Path, kind: str) -> str:
    return f"{kind}:{pooch.file_hash(str(path), alg=kind)}"


def _wrong_checksum(archive: Archive, place: Path, report: str) -> str:
    remedy = "try again; if it happens again, the file at its home has changed"
    if archive.checksum is None:
        remedy += f": to accept the new one, remove its line from {place / CHECKSUMS}"
    return f"{archive.file} from {archive.url} has the wrong checksum and was removed ({report}); {remedy}"


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except ForsakenError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; is the disk full?") from error


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Keep pooch from writing to the screen inside the block: the library never prints."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _pooch() -> Any:
    try:
        import pooch  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415 (not needed without downloads)
    except ImportError as error:
        raise DownloadError("downloads need the package pooch, which is not installed; pip install pooch") from error
    return pooch
