"""The original files of the public datasets, as tables: one function a dataset.

Each takes the paths of its archives, by file name, and returns Arrow tables, by the stem of the Parquet file that they
become. Archives are read as streams: nothing is unpacked to disk. A file that is not what its name says is a
`DataError` that names it.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import struct
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image

from forsaken.errors import DataError, DataNotFoundError
from forsaken.types import Array, Progress, Tick

CIFAR10, CIFAR100 = "cifar-10-binary.tar.gz", "cifar-100-binary.tar.gz"
STL10 = "stl10_binary.tar.gz"
MNIST = {"train": "mnist-train", "test": "mnist-t10k"}
TINY = "tiny-imagenet-200.zip"
IMDB = "aclImdb_v1.tar.gz"
NEWS = "20news-bydate.tar.gz"
REUTERS = "reuters21578.tar.gz"
REVIEWS = {"train": "CR.train", "dev": "CR.dev", "test": "CR.test"}
R52 = {"train": "r52-train.txt", "test": "r52-test.txt"}
PTB = {"train": "ptb.train.txt", "valid": "ptb.valid.txt", "test": "ptb.test.txt"}

Files = Mapping[str, Path]
Tables = dict[str, pa.Table]

_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile),
    *(EOFError, UnicodeDecodeError, NotImplementedError),
)
_STEP = 8 * 2**20  # compressed bytes between two calls of `progress`
_BATCH = 2_000  # pictures between two calls of `progress`


# Pictures


def cifar10(files: Files, progress: Progress) -> Tables:
    """Read CIFAR-10's binary version: the five training batches in their order, and the test batch."""
    train = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
    members = {"cifar10_train": train, "cifar10_test": ("test_batch.bin",)}
    return _cifar(_given(files, CIFAR10), members, 1, 10, progress)


def cifar100(files: Files, progress: Progress) -> Tables:
    """Read CIFAR-100 with its fine labels; the coarse one, the first of the two label bytes, is left out."""
    members = {"cifar100_train": ("train.bin",), "cifar100_test": ("test.bin",)}
    return _cifar(_given(files, CIFAR100), members, 2, 100, progress)


def _cifar(
    path: Path, stems: Mapping[str, tuple[str, ...]], label_bytes: int, classes: int, progress: Progress
) -> Tables:
    """Read records of label bytes and 3,072 bytes of red, green and blue planes."""
    members = _members(path, tuple(name for names in stems.values() for name in names), progress)
    record = label_bytes + 3 * 32 * 32
    tables = {}
    for stem, names in stems.items():
        for name in names:
            if not members[name] or len(members[name]) % record:
                raise _damaged(path, f"{name} has {len(members[name])} bytes, expected a multiple of {record}")
        rows = np.concatenate([np.frombuffer(members[name], np.uint8) for name in names]).reshape(-1, record)
        labels = rows[:, label_bytes - 1].astype(np.int64)
        if labels.max() >= classes:
            raise _damaged(path, f"{stem} has a label {labels.max()}, expected labels below {classes}")
        pixels = rows[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        tables[stem] = _pixel_table(pixels, labels, f"encode {stem}", progress)
    return tables


def stl10(files: Files, progress: Progress) -> Tables:
    """Read the labelled parts of STL-10's binary version, with labels from 0 to 9.

    A picture is 3 x 96 x 96 bytes, each plane column by column. The 100,000 unlabelled pictures are skipped.
    """
    path = _given(files, STL10)
    members = _members(path, ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin"), progress)
    tables = {}
    for split in ("train", "test"):
        labels = np.frombuffer(members[f"{split}_y.bin"], np.uint8).astype(np.int64)
        content = members[f"{split}_X.bin"]
        expected = len(labels) * 3 * 96 * 96
        if not content or len(content) != expected:
            raise _damaged(
                path, f"{split}_X.bin has {len(content)} bytes, expected {expected} for {len(labels)} labels"
            )
        if labels.min() < 1 or labels.max() > 10:
            raise _damaged(path, f"{split}_y.bin has labels {labels.min()} to {labels.max()}, expected 1 to 10")
        pixels = np.frombuffer(content, np.uint8).reshape(-1, 3, 96, 96).transpose(0, 3, 2, 1)
        tables[f"stl10_{split}"] = _pixel_table(pixels, labels - 1, f"encode stl10_{split}", progress)
    return tables


def mnist(files: Files, progress: Progress) -> Tables:
    """Read MNIST's four gzip files of the IDX format, as grey PNG pictures; one of its two halves is enough."""
    tables = {}
    for split, prefix in MNIST.items():
        if files and not any(name.startswith(prefix) for name in files):
            continue
        path = _given(files, f"{prefix}-images-idx3-ubyte.gz")
        pixels = _idx(path, 3)
        labels = _idx(_given(files, f"{prefix}-labels-idx1-ubyte.gz"), 1).astype(np.int64)
        if len(labels) != len(pixels):
            raise _damaged(path, f"it holds {len(pixels)} pictures for {len(labels)} labels")
        tables[f"mnist_{split}"] = _pixel_table(pixels, labels, f"encode mnist_{split}", progress)
    return tables


def _idx(path: Path, axes: int) -> Array:
    """Read unsigned bytes after a big-endian header: a magic number, whose last byte counts the axes, and the shape."""
    content = _gunzipped(path)
    header = 4 * (1 + axes)
    if len(content) < header:
        raise _damaged(path, f"it has {len(content)} bytes, expected a header of {header}")
    magic, *shape = struct.unpack(f">{1 + axes}I", content[:header])
    if magic != 0x0800 + axes:
        raise _damaged(path, f"its magic number is {magic}, expected {0x0800 + axes}")
    if len(content) - header != np.prod(shape, dtype=np.int64):
        raise _damaged(path, f"it has {len(content) - header} bytes of data, expected {' x '.join(map(str, shape))}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def tiny_imagenet(files: Files, progress: Progress) -> Tables:
    """Read the training and validation parts of Tiny-ImageNet-200, sorted by class and file number, byte for byte.

    A label is the position of the wnid among the sorted ones of wnids.txt, a label's name the first of words.txt. The
    test part has no labels.
    """
    path, root = _given(files, TINY), "tiny-imagenet-200"
    with _reading(path), zipfile.ZipFile(path) as archive:

        def content(name: str) -> bytes:
            try:
                return archive.read(f"{root}/{name}")
            except KeyError as error:
                raise _damaged(path, f"it holds no {root}/{name}") from error
            except (RuntimeError, OSError, ValueError) as error:  # what zipfile makes of a damaged directory
                raise _damaged(path, f"{root}/{name} cannot be read: {error}") from error

        def lines(name: str) -> list[str]:
            return [line for line in content(name).decode().splitlines() if line.strip()]

        numbers = {wnid: at for at, wnid in enumerate(sorted(lines("wnids.txt")))}
        pairs = (line.partition("\t") for line in lines("words.txt"))
        words = {wnid: names.partition(",")[0].strip() for wnid, _, names in pairs}
        nameless = next((wnid for wnid in numbers if wnid not in words), None)
        if nameless is not None:
            raise _damaged(path, f"words.txt has no name for {nameless}")
        inside = (name.removeprefix(f"{root}/") for name in archive.namelist() if name.endswith(".JPEG"))
        rows = (line.split("\t") for line in lines("val/val_annotations.txt"))
        parts = {
            "train": [(Path(name).parent.parent.name, name) for name in inside if name.startswith("train/")],
            "val": [(row[1], f"val/images/{row[0]}") for row in rows if len(row) > 1],
        }
        tables = {}
        for split, members in parts.items():
            strange = next((wnid for wnid, _ in members if wnid not in numbers), None)
            if strange is not None or not members:
                raise _damaged(path, f"{strange} is not in wnids.txt" if strange else "a part of it holds no picture")
            members.sort(key=lambda member: (numbers[member[0]], _file_number(member[1], path)))
            pictures = []
            for at, (_, name) in enumerate(members, start=1):
                pictures.append(content(name))
                if not pictures[-1].startswith(b"\xff\xd8"):
                    raise _damaged(path, f"{root}/{name} is no JPEG")
                if at % _BATCH == 0 or at == len(members):
                    progress(Tick(f"read {path.name}", at, len(members)))
            own = [wnid for wnid, _ in members]
            table = _picture_table(pictures, [Path(name).name for _, name in members], [numbers[wnid] for wnid in own])
            table = table.append_column("wnid", pa.array(own, pa.string()))
            names = pa.array([words[wnid] for wnid in own], pa.string())
            tables[f"tiny_imagenet_{split}"] = table.append_column("label_name", names)
    return tables


def _file_number(name: str, path: Path) -> int:
    digits = Path(name).stem.rpartition("_")[2]
    if not digits.isdecimal():
        raise _damaged(path, f"{name} does not end in a number")
    return int(digits)


def _pixel_table(pixels: Array, labels: Array, stage: str, progress: Progress) -> pa.Table:
    """Return the table of raw pixels, (n, H, W) or (n, H, W, 3), encoded as PNG."""
    encoded: list[bytes] = []
    # Pillow compresses without holding the interpreter's lock.
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, len(pixels), _BATCH):
            encoded.extend(pool.map(_png, pixels[start : start + _BATCH]))
            progress(Tick(stage, len(encoded), len(pixels)))
    return _picture_table(encoded, [None] * len(encoded), labels)


def _png(pixels: Array) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, format="PNG")
    return buffer.getvalue()


def _picture_table(encoded: Sequence[bytes], paths: Sequence[str | None], labels: Sequence[int] | Array) -> pa.Table:
    parts = [pa.array(encoded, pa.binary()), pa.array(paths, pa.string())]
    images = pa.StructArray.from_arrays(parts, names=["bytes", "path"])
    return pa.table({"image": images, "label": pa.array(labels, pa.int64())})


# Texts


def imdb(files: Files, progress: Progress) -> Tables:
    """Read the labelled reviews of IMDB, negative (0) before positive (1), by file number.

    A review is a file; its rating stands in the file's name.
    """
    path, kinds = _given(files, IMDB), ("neg", "pos")
    wanted = re.compile(r"(?:.*/)?(train|test)/(neg|pos)/(\d+)_(\d+)\.txt")
    rows: dict[str, list[tuple[int, int, int, str]]] = {"train": [], "test": []}
    for match, content in _matching(path, wanted, progress):
        split, kind, number, rating = match.groups()
        try:
            rows[split].append((kinds.index(kind), int(number), int(rating), content.decode()))
        except UnicodeDecodeError as error:
            raise _damaged(path, f"{match[0]} is not UTF-8") from error
    tables = {}
    for split, reviews in rows.items():
        if {label for label, *_ in reviews} != {0, 1}:
            raise _damaged(path, f"its {split} part holds {len(reviews)} reviews, expected negative and positive ones")
        labels, numbers, ratings, texts = zip(*sorted(reviews), strict=True)
        columns = {"text": (texts, pa.string()), "label": (labels, pa.int8())}
        columns |= {"rating": (ratings, pa.int8()), "doc_id": (numbers, pa.int32())}
        tables[f"imdb_{split}"] = _table(columns)
    return tables


def newsgroups(files: Files, progress: Progress) -> Tables:
    """Read 20 Newsgroups, split by date: whole messages with headers, as Latin-1, by group and number.

    Labels are alphabetical.
    """
    path = _given(files, NEWS)
    wanted = re.compile(r"(?:.*/)?20news-bydate-(train|test)/([^/]+)/(\d+)")
    rows: dict[str, list[tuple[str, int, str]]] = {"train": [], "test": []}
    for match, content in _matching(path, wanted, progress):
        split, group, number = match.groups()
        rows[split].append((group, int(number), content.decode("latin-1")))
    groups = sorted({group for group, *_ in rows["train"]})
    if not groups or groups != sorted({group for group, *_ in rows["test"]}):
        raise _damaged(path, "its train and test parts do not hold the same groups")
    tables = {}
    for split, messages in rows.items():
        names, numbers, texts = zip(*sorted(messages), strict=True)
        columns = {"text": (texts, pa.string()), "label": ([groups.index(name) for name in names], pa.int8())}
        columns |= {"label_name": (names, pa.string()), "doc_id": (numbers, pa.int32())}
        tables[f"20newsgroups_{split}"] = _table(columns)
    return tables


class _Article(NamedTuple):
    number: int
    topic: str
    title: str
    text: str


def reuters46(files: Files, progress: Progress) -> Tables:
    """Read the documents of Reuters-21578 whose first topic is the first topic of at least 15.

    These are the 46 topics that Keras calls `reuters`, as text and in the order of Keras. Labels count topics by first
    appearance, in the order of NEWID. The text is the body; where there is none, the title, and where there is neither,
    the unprocessed text. Keras's shuffle decides the rows, and their first 80 % are the training part.
    """
    path = _given(files, REUTERS)
    names = tuple(f"reut2-{number:03d}.sgm" for number in range(22))
    members = _members(path, names, progress)
    articles = sorted(article for name in names for article in _articles(members[name].decode("latin-1"), name, path))
    if len({article.number for article in articles}) != len(articles):
        raise _damaged(path, "two of its articles have the same NEWID")
    sizes = Counter(article.topic for article in articles)
    kept = [article for article in articles if sizes[article.topic] >= 15]
    if not kept:
        raise _damaged(path, "no topic has 15 articles")
    labels = {topic: at for at, topic in enumerate(dict.fromkeys(article.topic for article in kept))}
    order = np.arange(len(kept))
    np.random.RandomState(113).shuffle(order)  # Keras's own shuffle
    rows = [kept[at] for at in order]
    train = int(0.8 * len(rows))
    return {
        "reuters46": _table(
            {
                "text": ([row.text for row in rows], pa.string()),
                "label": ([labels[row.topic] for row in rows], pa.int8()),
                "label_name": ([row.topic for row in rows], pa.string()),
                "split": (["train"] * train + ["test"] * (len(rows) - train), pa.string()),
                "title": ([row.title for row in rows], pa.string()),
                "newid": ([row.number for row in rows], pa.int32()),
            }
        )
    }


def _articles(content: str, name: str, path: Path) -> Iterator[_Article]:
    """Return the articles of one SGML file that have a topic."""
    found = re.findall(r"<REUTERS\b([^>]*)>(.*?)</REUTERS>", content, re.DOTALL)
    if not found or len(found) != content.count("<REUTERS"):
        raise _damaged(path, f"{name} has {content.count('<REUTERS')} articles, of which {len(found)} are complete")
    for head, inside in found:
        number = re.search(r'\bNEWID="(\d+)"', head)
        if number is None:
            raise _damaged(path, f"{name} has an article without NEWID")
        topics = re.findall("<D>(.*?)</D>", _element(inside, "TOPICS"))
        if topics:
            whole = _element(inside, "TEXT")
            title = _plain(_element(whole, "TITLE"))
            rest = re.sub(r"<([A-Z]+)>.*?</\1>", "", whole, flags=re.DOTALL)
            yield _Article(int(number[1]), topics[0], title, _plain(_element(whole, "BODY")) or title or _plain(rest))


def _element(content: str, tag: str) -> str:
    match = re.search(rf"<{tag}\b[^>]*>(.*?)</{tag}>", content, re.DOTALL)
    return match[1] if match else ""


def _plain(content: str) -> str:
    """Decode the entities that SGML uses here, and drop control characters and the blank around."""
    named = {"lt": "<", "gt": ">", "amp": "&"}

    def decoded(match: re.Match[str]) -> str:
        return named.get(match[1]) or chr(int(match[1][1:]))

    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", re.sub(r"&(lt|gt|amp|#\d{1,5});", decoded, content)).strip()


def customer_review(files: Files, progress: Progress) -> Tables:
    """Read lines of text, tab, 0 (negative) or 1 (positive); the text is kept as it is."""
    rows = []
    for split, path, line in _lines(files, REVIEWS, progress):
        text, tab, label = line.rpartition("\t")
        if not tab or label.strip() not in {"0", "1"}:
            raise _damaged(path, "it has a line that does not end in a tab and 0 or 1")
        rows.append((text, int(label), split))
    texts, labels, splits = zip(*rows, strict=True)
    columns = {"text": (texts, pa.string()), "label": (labels, pa.int8()), "split": (splits, pa.string())}
    return {"customer_review": _table(columns)}


def reuters_r52(files: Files, progress: Progress) -> Tables:
    """Read lines of topic, tab, text; labels are alphabetical."""
    rows = []
    for split, path, line in _lines(files, R52, progress):
        name, tab, text = line.partition("\t")
        if not tab or not name:
            raise _damaged(path, "it has a line that does not begin with a topic and a tab")
        rows.append((text.strip(), name, split))
    texts, names, splits = zip(*rows, strict=True)
    numbers = {name: at for at, name in enumerate(sorted(set(names)))}
    columns = {"text": (texts, pa.string()), "label": ([numbers[name] for name in names], pa.int8())}
    return {"reuters_r52": _table(columns | {"label_name": (names, pa.string()), "split": (splits, pa.string())})}


def ptb(files: Files, progress: Progress) -> Tables:
    """Read Penn TreeBank, a row a line, without the blank that stands around every line."""
    texts: dict[str, list[str]] = {split: [] for split in PTB}
    for split, _, line in _lines(files, PTB, progress):
        texts[split].append(line.strip())
    return {f"ptb_{split}": _table({"text": (rows, pa.string())}) for split, rows in texts.items()}


def _lines(files: Files, names: Mapping[str, str], progress: Progress) -> Iterator[tuple[str, Path, str]]:
    """Return the split, the path and each line of text files, which may be gzipped."""
    for at, (split, name) in enumerate(names.items(), start=1):
        path = _given(files, name)
        with _reading(path):
            content = (_gunzipped(path) if path.suffix == ".gz" else path.read_bytes()).decode()
        # Not splitlines(): the texts hold control characters at which it would cut.
        lines = content.removesuffix("\n").split("\n")
        if lines == [""]:
            raise _damaged(path, "it is empty")
        for line in lines:
            yield split, path, line.removesuffix("\r")
        progress(Tick(f"read {name}", at, len(names)))


def _table(columns: Mapping[str, tuple[Any, Any]]) -> pa.Table:
    return pa.table({name: pa.array(values, kind) for name, (values, kind) in columns.items()})


# Archives


def _damaged(path: Path, problem: str) -> DataError:
    return DataError(f"{path} is damaged or not the original: {problem}; delete it and download it again")


def _given(files: Files, name: str) -> Path:
    path = files.get(name)
    if path is None or not path.is_file():
        raise DataNotFoundError(f"the original file {name} is not among {sorted(files)}; download it first")
    return path


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong while `path` is read inside the block into one error that names it."""
    try:
        yield
    except _DAMAGE as error:
        raise _damaged(path, str(error) or type(error).__name__) from error


def _gunzipped(path: Path) -> bytes:
    with _reading(path), gzip.open(path) as file:
        return file.read()


def _matching(path: Path, wanted: re.Pattern[str], progress: Progress) -> Iterator[tuple[re.Match[str], bytes]]:
    """Return the content of those plain files of a .tar.gz whose names match, in the archive's order.

    The archive is read to its end even when nothing more is wanted: only there stands the checksum of what was read.
    """
    total = path.stat().st_size
    told = 0
    with _reading(path), path.open("rb") as raw, gzip.GzipFile(fileobj=raw) as plain:
        # tarfile's own gzip stream takes a cut-off file for a complete one; GzipFile raises.
        with tarfile.open(fileobj=plain, mode="r|") as tar:
            for member in tar:
                if raw.tell() - told >= _STEP:
                    told = raw.tell()
                    progress(Tick(f"read {path.name}", told // 2**20, total // 2**20))
                match = wanted.fullmatch(member.name) if member.isfile() else None
                file = tar.extractfile(member) if match else None
                if match is not None and file is not None:
                    yield match, file.read()
        while plain.read(2**20):
            pass
    progress(Tick(f"read {path.name}", total // 2**20, total // 2**20))


def _members(path: Path, names: Sequence[str], progress: Progress) -> dict[str, bytes]:
    """Return the members of a .tar.gz that have these file names, in whatever folder; all of them must be there."""
    wanted = re.compile(rf"(?:.*/)?({'|'.join(map(re.escape, names))})")
    found = {match[1]: content for match, content in _matching(path, wanted, progress)}
    missing = ", ".join(name for name in names if name not in found)
    if missing:
        raise _damaged(path, f"it holds no {missing}")
    return found
