"""Tiny-ImageNet-200: a zip of JPEG files, kept byte for byte."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from forsaken.bench.datasets.originals.archives import damaged, given, reading
from forsaken.bench.datasets.originals.pictures import picture_table
from forsaken.types import Progress, Tick

TINY = "tiny-imagenet-200.zip"
_ROOT = "tiny-imagenet-200"
_STEP = 5_000  # pictures from one sign of life to the next
_JPEG = b"\xff\xd8"


def tiny_imagenet(files: Mapping[str, Path], progress: Progress) -> dict[str, pa.Table]:
    """Read the training and validation parts, sorted by class and file number; the test part has no labels.

    A label is the position of the wnid among the sorted ones of wnids.txt, a label's name the first of words.txt.
    """
    path = given(files, TINY)
    with reading(path), zipfile.ZipFile(path) as archive:
        wnids = sorted(_lines(archive, "wnids.txt", path))
        pairs = (line.partition("\t") for line in _lines(archive, "words.txt", path))
        words = {wnid: names.partition(",")[0].strip() for wnid, _, names in pairs}
        nameless = [wnid for wnid in wnids if wnid not in words]
        if nameless:
            raise damaged(path, f"words.txt has no name for {nameless[0]}")
        train = [
            (Path(name).parent.parent.name, name)
            for name in archive.namelist()
            if name.startswith(f"{_ROOT}/train/") and name.endswith(".JPEG")
        ]
        rows = [line.split("\t") for line in _lines(archive, "val/val_annotations.txt", path)]
        val = [(row[1], f"{_ROOT}/val/images/{row[0]}") for row in rows if len(row) > 1]
        return {
            f"tiny_imagenet_{split}": _table(archive, members, wnids, words, path, progress)
            for split, members in (("train", train), ("val", val))
        }


def _lines(archive: zipfile.ZipFile, name: str, path: Path) -> list[str]:
    return [line for line in _content(archive, f"{_ROOT}/{name}", path).decode().splitlines() if line.strip()]


def _content(archive: zipfile.ZipFile, name: str, path: Path) -> bytes:
    try:
        return archive.read(name)
    except KeyError as error:
        raise damaged(path, f"it holds no {name}") from error
    except (RuntimeError, OSError, ValueError) as error:  # what zipfile makes of a damaged directory
        raise damaged(path, f"{name} cannot be read: {error}") from error


def _table(
    archive: zipfile.ZipFile,
    members: Sequence[tuple[str, str]],
    wnids: Sequence[str],
    words: Mapping[str, str],
    path: Path,
    progress: Progress,
) -> pa.Table:
    number = {wnid: at for at, wnid in enumerate(wnids)}
    strange = next((wnid for wnid, _ in members if wnid not in number), None)
    if strange is not None or not members:
        raise damaged(path, f"{strange} is not in wnids.txt" if strange else "a part of it holds no picture")
    ordered = sorted(members, key=lambda member: (number[member[0]], _file_number(member[1], path)))
    pictures = []
    for at, (_, name) in enumerate(ordered):
        picture = _content(archive, name, path)
        if not picture.startswith(_JPEG):
            raise damaged(path, f"{name} is no JPEG")
        pictures.append(picture)
        if at % _STEP == 0 or at + 1 == len(ordered):
            progress(Tick(f"read {path.name}", at + 1, len(ordered)))
    own = [wnid for wnid, _ in ordered]
    return picture_table(
        pictures,
        [Path(name).name for _, name in ordered],
        [number[wnid] for wnid in own],
        {"wnid": own, "label_name": [words[wnid] for wnid in own]},
    )


def _file_number(name: str, path: Path) -> int:
    digits = Path(name).stem.rpartition("_")[2]
    if not digits.isdecimal():
        raise damaged(path, f"{name} does not end in a number")
    return int(digits)
