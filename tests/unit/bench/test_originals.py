"""Archives in their original formats, built here and compared value by value; damaged ones are named."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from forsaken.bench.datasets.originals import (
    cifar10,
    cifar100,
    customer_review,
    imdb,
    mnist,
    newsgroups,
    ptb,
    reuters46,
    reuters_r52,
    stl10,
    tiny_imagenet,
)
from forsaken.bench.datasets.registry import DATASETS
from forsaken.errors import DataError, DataNotFoundError
from forsaken.types import Tick, silent

Files = dict[str, Path]
DRAW = random.Random(0)
real_data = pytest.mark.skipif("FORSAKEN_DATA" not in os.environ, reason="FORSAKEN_DATA is not set")


def data(name: str) -> Path:
    return Path(os.environ["FORSAKEN_DATA"]) / name


def tar_gz(path: Path, members: dict[str, bytes]) -> Files:
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return {path.name: path}


def pixels_of(table: Any, row: int) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(table["image"][row].as_py()["bytes"])))


def cifar10_members(label: int = 7) -> dict[str, bytes]:
    records = {f"data_batch_{n}.bin": [bytes([n]) + DRAW.randbytes(3072) for _ in range(2)] for n in (3, 1, 2, 5, 4)}
    records["test_batch.bin"] = [bytes([label]) + DRAW.randbytes(3072)]
    members = {"cifar-10-batches-bin/readme.html": b"<html>"}
    return members | {f"cifar-10-batches-bin/{name}": b"".join(rows) for name, rows in records.items()}


def cifar10_files(folder: Path) -> Files:
    return tar_gz(folder / "cifar-10-binary.tar.gz", cifar10_members())


def test_cifar10_is_read_in_the_order_of_its_batches(tmp_path: Path) -> None:
    members = cifar10_members()
    tables = cifar10(tar_gz(tmp_path / "cifar-10-binary.tar.gz", members), silent)
    assert tables.keys() == {"cifar10_train", "cifar10_test"}
    train = tables["cifar10_train"]
    assert train["label"].to_pylist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert train.schema.names == ["image", "label"]
    raw = members["cifar-10-batches-bin/data_batch_2.bin"][3073:]
    picture = Image.open(io.BytesIO(train["image"][3].as_py()["bytes"]))
    assert (picture.format, picture.mode, picture.size) == ("PNG", "RGB", (32, 32))
    for x, y in ((0, 0), (31, 0), (0, 31), (5, 17)):
        assert picture.getpixel((x, y)) == tuple(raw[1 + 1024 * channel + 32 * y + x] for channel in range(3))
    assert tables["cifar10_test"]["label"].to_pylist() == [7]


def cifar100_files(folder: Path) -> Files:
    train = b"".join(bytes([coarse, fine]) + DRAW.randbytes(3072) for coarse, fine in ((19, 99), (0, 4)))
    test = bytes([3, 55]) + bytes(range(256)) * 12
    members = {"cifar-100-binary/train.bin": train, "cifar-100-binary/test.bin": test}
    return tar_gz(folder / "cifar-100-binary.tar.gz", members)


def test_cifar100_has_its_fine_labels(tmp_path: Path) -> None:
    tables = cifar100(cifar100_files(tmp_path), silent)
    assert tables["cifar100_train"]["label"].to_pylist() == [99, 4]
    assert tables["cifar100_test"]["label"].to_pylist() == [55]
    assert pixels_of(tables["cifar100_test"], 0)[1, 2].tolist() == [34, 34, 34]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("test_batch.bin", bytes(3072), "test_batch.bin has 3072 bytes, expected a multiple of 3073"),
        ("test_batch.bin", b"", "test_batch.bin has 0 bytes"),
        ("test_batch.bin", bytes([10]) + bytes(3072), "label 10, expected labels below 10"),
        ("test_batch.bin", None, "holds no test_batch.bin"),
        ("data_batch_4.bin", None, "holds no data_batch_4.bin"),
    ],
)
def test_a_strange_cifar_is_refused(tmp_path: Path, name: str, content: bytes | None, problem: str) -> None:
    members = cifar10_members()
    del members[f"cifar-10-batches-bin/{name}"]
    if content is not None:
        members[f"cifar-10-batches-bin/{name}"] = content
    with pytest.raises(DataError, match=problem):
        cifar10(tar_gz(tmp_path / "cifar-10-binary.tar.gz", members), silent)


def stl_members() -> dict[str, bytes]:
    return {
        "stl10_binary/test_X.bin": DRAW.randbytes(3 * 96 * 96),
        "stl10_binary/test_y.bin": bytes([3]),
        "stl10_binary/train_X.bin": DRAW.randbytes(2 * 3 * 96 * 96),
        "stl10_binary/train_y.bin": bytes([10, 1]),
        "stl10_binary/unlabeled_X.bin": DRAW.randbytes(50_000),
    }


def stl_files(folder: Path) -> Files:
    return tar_gz(folder / "stl10_binary.tar.gz", stl_members())


def test_stl10_is_read_column_by_column(tmp_path: Path) -> None:
    members = stl_members()
    tables = stl10(tar_gz(tmp_path / "stl10_binary.tar.gz", members), silent)
    assert tables["stl10_train"]["label"].to_pylist() == [9, 0]
    assert tables["stl10_test"]["label"].to_pylist() == [2]
    raw = members["stl10_binary/train_X.bin"][3 * 96 * 96 :]
    picture = Image.open(io.BytesIO(tables["stl10_train"]["image"][1].as_py()["bytes"]))
    for x, y in ((0, 0), (95, 0), (0, 95), (20, 70)):
        assert picture.getpixel((x, y)) == tuple(raw[9216 * channel + 96 * x + y] for channel in range(3))


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("train_X.bin", bytes(27648), r"train_X.bin has 27648 bytes, expected 55296 for 2 labels"),
        ("test_y.bin", bytes([0]), r"labels 0 to 0, expected 1 to 10"),
        ("test_y.bin", bytes([11]), r"labels 11 to 11, expected 1 to 10"),
    ],
)
def test_a_strange_stl10_is_refused(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    members = stl_members() | {f"stl10_binary/{name}": content}
    with pytest.raises(DataError, match=problem):
        stl10(tar_gz(tmp_path / "stl10_binary.tar.gz", members), silent)


def idx(shape: tuple[int, ...], content: bytes) -> bytes:
    return struct.pack(f">{1 + len(shape)}I", 2048 + len(shape), *shape) + content


def mnist_contents() -> dict[str, bytes]:
    return {
        "mnist-train-images-idx3-ubyte.gz": idx((3, 28, 28), DRAW.randbytes(3 * 784)),
        "mnist-train-labels-idx1-ubyte.gz": idx((3,), bytes([5, 0, 9])),
        "mnist-t10k-images-idx3-ubyte.gz": idx((1, 28, 28), DRAW.randbytes(784)),
        "mnist-t10k-labels-idx1-ubyte.gz": idx((1,), bytes([7])),
    }


def written(folder: Path, contents: dict[str, bytes]) -> Files:
    for name, content in contents.items():
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return {name: folder / name for name in contents}


def mnist_files(folder: Path) -> Files:
    return written(folder, mnist_contents())


def test_mnist_is_read_as_grey_pictures(tmp_path: Path) -> None:
    contents = mnist_contents()
    tables = mnist(written(tmp_path, contents), silent)
    assert tables["mnist_train"]["label"].to_pylist() == [5, 0, 9]
    assert tables["mnist_test"]["label"].to_pylist() == [7]
    raw = np.frombuffer(contents["mnist-train-images-idx3-ubyte.gz"], np.uint8)[16:]
    assert np.array_equal(pixels_of(tables["mnist_train"], 2), raw[2 * 784 :].reshape(28, 28))


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("mnist-train-labels-idx1-ubyte.gz", idx((2,), bytes(2)), "3 pictures for 2 labels"),
        ("mnist-train-labels-idx1-ubyte.gz", idx((3,), bytes(2)), "2 bytes of data, expected 3"),
        ("mnist-train-labels-idx1-ubyte.gz", idx((3, 1), bytes(3)), "magic number is 2050, expected 2049"),
        ("mnist-train-images-idx3-ubyte.gz", b"12", "2 bytes, expected a header of 16"),
    ],
)
def test_a_strange_mnist_is_refused(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    with pytest.raises(DataError, match=rf"mnist-train.*{problem}"):
        mnist(written(tmp_path, mnist_contents() | {name: content}), silent)


def jpeg(mark: str) -> bytes:
    return b"\xff\xd8\xff\xe0" + mark.encode()


def tiny_members() -> dict[str, bytes]:
    train = [("n02", 10), ("n02", 9), ("n01", 0), ("n03", 1)]
    return {
        "tiny-imagenet-200/wnids.txt": b"n03\nn01\nn02\n",
        "tiny-imagenet-200/words.txt": b"n00\tentity\nn01\tgoldfish, Carassius auratus\nn02\tbull frog\nn03\tlemon\n",
        "tiny-imagenet-200/train/n02/n02_boxes.txt": b"n02_9.JPEG\t0\t0\t1\t1\n",
        **{f"tiny-imagenet-200/train/{w}/images/{w}_{n}.JPEG": jpeg(f"{w}{n}") for w, n in train},
        "tiny-imagenet-200/val/val_annotations.txt": b"val_0.JPEG\tn03\t0\t0\t1\t1\nval_11.JPEG\tn01\t0\t0\t1\t1\n"
        b"val_2.JPEG\tn01\t0\t0\t1\t1\n",
        **{f"tiny-imagenet-200/val/images/val_{n}.JPEG": jpeg(f"val{n}") for n in (0, 11, 2)},
        "tiny-imagenet-200/test/images/test_0.JPEG": jpeg("test"),
    }


def tiny_zip(folder: Path, members: dict[str, bytes]) -> Files:
    path = folder / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return {path.name: path}


def tiny_files(folder: Path) -> Files:
    return tiny_zip(folder, tiny_members())


def test_tiny_imagenet_keeps_the_bytes_and_sorts_by_class_and_number(tmp_path: Path) -> None:
    tables = tiny_imagenet(tiny_files(tmp_path), silent)
    assert tables["tiny_imagenet_train"].to_pylist() == [
        {"image": {"bytes": jpeg(f"{w}{n}"), "path": f"{w}_{n}.JPEG"}, "label": label, "wnid": w, "label_name": name}
        for w, n, label, name in (
            ("n01", 0, 0, "goldfish"),
            ("n02", 9, 1, "bull frog"),
            ("n02", 10, 1, "bull frog"),
            ("n03", 1, 2, "lemon"),
        )
    ]
    val = tables["tiny_imagenet_val"]
    assert [row["path"] for row in val["image"].to_pylist()] == ["val_2.JPEG", "val_11.JPEG", "val_0.JPEG"]
    assert val["label"].to_pylist() == [0, 0, 2]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("val/images/val_2.JPEG", None, r"no tiny-imagenet-200/val/images/val_2.JPEG"),
        ("val/val_annotations.txt", b"val_0.JPEG\tn99\n", "n99 is not in wnids.txt"),
        ("train/n01/images/n01_0.JPEG", b"GIF89a", "n01_0.JPEG is no JPEG"),
        ("train/n01/images/n01_x.JPEG", jpeg(""), "does not end in a number"),
        ("words.txt", b"n01\tgoldfish\n", "no name for n02"),
        ("wnids.txt", None, "no tiny-imagenet-200/wnids.txt"),
    ],
)
def test_a_strange_tiny_imagenet_is_refused(tmp_path: Path, name: str, content: bytes | None, problem: str) -> None:
    members = tiny_members()
    members.pop(f"tiny-imagenet-200/{name}", None)
    if content is not None:
        members[f"tiny-imagenet-200/{name}"] = content
    with pytest.raises(DataError, match=problem):
        tiny_imagenet(tiny_zip(tmp_path, members), silent)


def imdb_members() -> dict[str, bytes]:
    reviews = {
        "train/pos/2_9": "Très bien\x85",
        "train/pos/10_7": "fine<br />",
        "train/neg/3_1": "bad",
        "test/neg/0_2": "no",
    }
    reviews |= {"test/pos/0_10": " yes ", "train/unsup/0_0": "who knows"}
    return {"aclImdb/README": b"read me", **{f"aclImdb/{name}.txt": text.encode() for name, text in reviews.items()}}


def imdb_files(folder: Path) -> Files:
    return tar_gz(folder / "aclImdb_v1.tar.gz", imdb_members())


def test_imdb_is_sorted_by_label_and_number_and_left_as_it_is(tmp_path: Path) -> None:
    tables = imdb(imdb_files(tmp_path), silent)
    assert tables["imdb_train"].to_pylist() == [
        {"text": "bad", "label": 0, "rating": 1, "doc_id": 3},
        {"text": "Très bien\x85", "label": 1, "rating": 9, "doc_id": 2},
        {"text": "fine<br />", "label": 1, "rating": 7, "doc_id": 10},
    ]
    assert tables["imdb_test"]["text"].to_pylist() == ["no", " yes "]


def test_imdb_without_a_class_is_refused(tmp_path: Path) -> None:
    members = imdb_members()
    del members["aclImdb/test/pos/0_10.txt"]
    with pytest.raises(DataError, match="test part holds 1 reviews"):
        imdb(tar_gz(tmp_path / "aclImdb_v1.tar.gz", members), silent)


def test_imdb_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    members = imdb_members() | {"aclImdb/test/pos/1_9.txt": b"\xff"}
    with pytest.raises(DataError, match=r"1_9\.txt is not UTF-8"):
        imdb(tar_gz(tmp_path / "aclImdb_v1.tar.gz", members), silent)


def news_members() -> dict[str, bytes]:
    messages = {"train/sci.med/9": b"caf\xe9\r\n", "train/sci.med/10": b"two", "train/alt.atheism/5": b"one"}
    messages |= {"test/alt.atheism/7": b"three", "test/sci.med/11": b"four"}
    return {f"20news-bydate-{name}": text for name, text in messages.items()}


def news_files(folder: Path) -> Files:
    return tar_gz(folder / "20news-bydate.tar.gz", news_members())


def test_newsgroups_are_latin1_and_sorted(tmp_path: Path) -> None:
    tables = newsgroups(news_files(tmp_path), silent)
    assert tables["20newsgroups_train"].to_pylist() == [
        {"text": "one", "label": 0, "label_name": "alt.atheism", "doc_id": 5},
        {"text": "café\r\n", "label": 1, "label_name": "sci.med", "doc_id": 9},
        {"text": "two", "label": 1, "label_name": "sci.med", "doc_id": 10},
    ]
    assert tables["20newsgroups_test"]["doc_id"].to_pylist() == [7, 11]


def test_newsgroups_whose_parts_disagree_are_refused(tmp_path: Path) -> None:
    members = news_members()
    del members["20news-bydate-test/sci.med/11"]
    with pytest.raises(DataError, match="same groups"):
        newsgroups(tar_gz(tmp_path / "20news-bydate.tar.gz", members), silent)


def article(number: int, topics: list[str], title: str, text: str) -> str:
    def escaped(content: str) -> str:
        return content.replace("&", "&amp;").replace("<", "&lt;")

    head = f'<REUTERS TOPICS="YES" LEWISSPLIT="TRAIN" CGISPLIT="TRAINING-SET" OLDID="{number + 5543}" NEWID="{number}">'
    lists = f"<TOPICS>{''.join(f'<D>{topic}</D>' for topic in topics)}</TOPICS>\n<PLACES><D>usa</D></PLACES>"
    if not title:
        body = f'<TEXT TYPE="UNPROC">&#2;\n{escaped(text)}\n\n&#3;\n</TEXT>'
    elif title == text:
        body = f'<TEXT TYPE="BRIEF">&#2;\n******<TITLE>{escaped(title)}</TITLE>\n&#3;\n\n</TEXT>'
    else:
        dateline = "<DATELINE>    NEW YORK, March 2 - </DATELINE>"
        body = f"<TEXT>&#2;\n<TITLE>{escaped(title)}</TITLE>\n{dateline}<BODY>{escaped(text)}\n&#3;</BODY></TEXT>"
    return f"{head}\n<DATE>26-FEB-1987</DATE>\n{lists}\n<UNKNOWN>\n&#5;&#5;&#5;C T</UNKNOWN>\n{body}\n</REUTERS>\n"


def reuters_members(articles: list[str]) -> dict[str, bytes]:
    size = -(-len(articles) // 22)
    heads = '<!DOCTYPE lewis SYSTEM "lewis.dtd">\n'
    members = {
        f"reut2-{at:03d}.sgm": (heads + "".join(articles[at * size : at * size + size])).encode("latin-1")
        for at in reversed(range(22))
    }
    return {"README.txt": b"read me", "lewis.dtd": b"<!ELEMENT>"} | members


def small_reuters() -> list[str]:
    topics = ["late" if at % 4 else "early" for at in range(1, 61)]
    articles = [article(at, [topic, "earn"], f"T{at}", f"B{at}") for at, topic in enumerate(topics, start=101)]
    rare = [article(at, ["rare", "early"], "R", "rare") for at in range(1, 15)]
    return rare + [article(50 + at, [], "N", "none") for at in range(14)] + articles


def reuters_files(folder: Path) -> Files:
    return tar_gz(folder / "reuters21578.tar.gz", reuters_members(small_reuters()))


def test_reuters_keeps_frequent_first_topics_in_the_order_of_keras(tmp_path: Path) -> None:
    table = reuters46(reuters_files(tmp_path), silent)["reuters46"]
    order = np.random.RandomState(113).permutation(60) + 101
    assert table["newid"].to_pylist() == order.tolist()
    assert table["text"].to_pylist() == [f"B{number}" for number in order]
    assert table["title"].to_pylist() == [f"T{number}" for number in order]
    names = ["late" if (number - 100) % 4 else "early" for number in order]
    assert table["label_name"].to_pylist() == names
    assert table["label"].to_pylist() == [0 if name == "late" else 1 for name in names]
    assert table["split"].to_pylist() == ["train"] * 48 + ["test"] * 12


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("</REUTERS>", "", r"reut2-\d+.sgm has \d+ articles, of which \d+ are complete"),
        (' NEWID="', ' NO="', "an article without NEWID"),
        ('NEWID="101"', 'NEWID="102"', "the same NEWID"),
        ("<D>", "<d>", "no topic has 15 articles"),
    ],
)
def test_a_strange_reuters_is_refused(tmp_path: Path, old: str, new: str, problem: str) -> None:
    members = {
        name: text.replace(old.encode(), new.encode()) for name, text in reuters_members(small_reuters()).items()
    }
    with pytest.raises(DataError, match=problem):
        reuters46(tar_gz(tmp_path / "reuters21578.tar.gz", members), silent)


@real_data
def test_reuters_gives_the_file_that_is_there(tmp_path: Path) -> None:
    expected = pq.read_table(data("reuters46.parquet"))
    rows = {row["newid"]: row for row in expected.to_pylist()}
    articles = []
    rare = 0
    for number in range(1, 21_579):
        row = rows.get(number)
        if row is not None:
            more = ["earn"] if number % 7 == 0 else []
            articles.append(article(number, [row["label_name"], *more], row["title"], row["text"]))
        elif number % 50 == 0 and rare < 14:
            rare += 1
            articles.append(article(number, ["rapeseed", "earn"], "RARE", "A rare topic."))
        elif number % 10 == 0:
            articles.append(article(number, [], "NO TOPIC", "No topic."))
    assert rare == 14
    table = reuters46(tar_gz(tmp_path / "reuters21578.tar.gz", reuters_members(articles)), silent)["reuters46"]
    assert table.schema.names == expected.schema.names
    assert table.schema.types == expected.schema.types
    for name in expected.schema.names:
        assert table[name].to_pylist() == expected[name].to_pylist()


def review_files(folder: Path) -> Files:
    contents = {"CR.train": b"great phone . \t1\nodd \x1a\tmark\t0\n", "CR.dev": b"bad\t0\r\n", "CR.test": b"good\t1\n"}
    return written(folder, contents)


def test_customer_reviews_are_left_as_they_are(tmp_path: Path) -> None:
    assert customer_review(review_files(tmp_path), silent)["customer_review"].to_pylist() == [
        {"text": "great phone . ", "label": 1, "split": "train"},
        {"text": "odd \x1a\tmark", "label": 0, "split": "train"},
        {"text": "bad", "label": 0, "split": "dev"},
        {"text": "good", "label": 1, "split": "test"},
    ]


def r52_files(folder: Path) -> Files:
    return written(folder, {"r52-train.txt": b"earn\tprofit up \nacq\tbought \n", "r52-test.txt": b"earn\tloss \n"})


def test_r52_numbers_topics_alphabetically(tmp_path: Path) -> None:
    table = reuters_r52(r52_files(tmp_path), silent)["reuters_r52"]
    assert table.schema.names == ["text", "label", "label_name", "split"]
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        ("profit up", 1, "earn", "train"),
        ("bought", 0, "acq", "train"),
        ("loss", 1, "earn", "test"),
    ]


def ptb_files(folder: Path) -> Files:
    contents = {"ptb.train.txt": b" no it was n't \n a <unk> N \n", "ptb.valid.txt": b" b \n", "ptb.test.txt": b" c \n"}
    return written(folder, contents)


def test_ptb_is_a_row_a_line(tmp_path: Path) -> None:
    tables = ptb(ptb_files(tmp_path), silent)
    assert tables["ptb_train"].to_pydict() == {"text": ["no it was n't", "a <unk> N"]}
    assert tables.keys() == {"ptb_train", "ptb_valid", "ptb_test"}


@pytest.mark.parametrize(
    ("parse", "make", "name", "content", "problem"),
    [
        (customer_review, review_files, "CR.dev", b"no label\n", "0 or 1"),
        (customer_review, review_files, "CR.dev", b"two\t2\n", "0 or 1"),
        (customer_review, review_files, "CR.dev", b"", "it is empty"),
        (customer_review, review_files, "CR.test", b"\xff\t1\n", "utf-8"),
        (reuters_r52, r52_files, "r52-test.txt", b"no tab\n", "a topic and a tab"),
        (ptb, ptb_files, "ptb.test.txt", b"", "it is empty"),
    ],
)
def test_strange_lines_are_refused(
    tmp_path: Path, parse: Any, make: Callable[[Path], Files], name: str, content: bytes, problem: str
) -> None:
    files = make(tmp_path)
    files[name].write_bytes(content)
    with pytest.raises(DataError, match=rf"{name} is damaged .*{problem}.*download it again"):
        parse(files, silent)


MAKERS: dict[str, Callable[[Path], Files]] = {
    "cifar10": cifar10_files,
    "cifar100": cifar100_files,
    "stl10": stl_files,
    "tiny-imagenet": tiny_files,
    "imdb": imdb_files,
    "20newsgroups": news_files,
    "reuters46": reuters_files,
    "reuters-r52": r52_files,
    "customer-review": review_files,
    "ptb": ptb_files,
    "mnist": mnist_files,
}
PACKED = [name for name in MAKERS if name not in {"reuters-r52", "customer-review", "ptb"}]


def test_every_dataset_is_made_here() -> None:
    assert MAKERS.keys() == DATASETS.keys()


@pytest.mark.parametrize("name", MAKERS)
def test_the_registry_names_what_is_read_and_what_comes_out(tmp_path: Path, name: str) -> None:
    dataset = DATASETS[name]
    files = MAKERS[name](tmp_path)
    assert files.keys() == {archive.file for archive in dataset.archives}
    ticks: list[Tick] = []
    tables = dataset.parse(files, ticks.append)
    assert tables.keys() == set(dataset.parts.values())
    splits = {row["split"] for table in tables.values() if "split" in table.schema.names for row in table.to_pylist()}
    assert splits in (set(), set(dataset.parts))
    assert ticks
    assert all(0 <= tick.done <= tick.total for tick in ticks)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)


@real_data
@pytest.mark.parametrize("name", MAKERS)
def test_the_columns_are_those_of_the_files_that_are_there(tmp_path: Path, name: str) -> None:
    for stem, table in DATASETS[name].parse(MAKERS[name](tmp_path), silent).items():
        for file in sorted(data("").glob(f"{stem}*.parquet")):
            assert table.schema.equals(pq.read_schema(file))


@pytest.mark.parametrize("name", MAKERS)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    files = MAKERS[name](tmp_path)
    last = DATASETS[name].archives[-1].file
    files[last].unlink()
    with pytest.raises(DataNotFoundError, match=rf"{last} is not among"):
        DATASETS[name].parse(files, silent)


@pytest.mark.parametrize("damage", ["cut", "flipped", "text", "empty"])
@pytest.mark.parametrize("name", PACKED)
def test_a_damaged_archive_is_named(tmp_path: Path, name: str, damage: str) -> None:
    files = MAKERS[name](tmp_path)
    path = files[DATASETS[name].archives[0].file]
    whole = path.read_bytes()
    middle = whole.index(b"val11") if name == "tiny-imagenet" else len(whole) // 2
    flipped = whole[:middle] + bytes(byte ^ 255 for byte in whole[middle : middle + 8]) + whole[middle + 8 :]
    path.write_bytes(
        {"cut": whole[:middle], "flipped": flipped, "text": b"<html>Not found</html>", "empty": b""}[damage]
    )
    with pytest.raises(DataError, match=rf"{path.name} is damaged or not the original: .+; delete it and download"):
        DATASETS[name].parse(files, silent)


@real_data
def test_the_real_test_batch_of_cifar10_survives(tmp_path: Path) -> None:
    rows = pq.read_table(data("cifar10_test-00000-of-00001.parquet")).to_pylist()
    batch = io.BytesIO()
    for row in rows:
        pixels = np.asarray(Image.open(io.BytesIO(row["image"]["bytes"])).convert("RGB"))
        batch.write(bytes([row["label"]]) + pixels.transpose(2, 0, 1).tobytes())
    assert hashlib.md5(batch.getvalue()).hexdigest() == "803d5f7f4d78ea53de84dbe85f74fb6d"
    members = cifar10_members() | {"cifar-10-batches-bin/test_batch.bin": batch.getvalue()}
    table = cifar10(tar_gz(tmp_path / "cifar-10-binary.tar.gz", members), silent)["cifar10_test"]
    assert table["label"].to_pylist() == [row["label"] for row in rows]
    for at in range(0, 10_000, 97):
        original = np.asarray(Image.open(io.BytesIO(rows[at]["image"]["bytes"])).convert("RGB"))
        assert np.array_equal(pixels_of(table, at), original)


@real_data
def test_the_real_mnist_and_ptb_are_read(tmp_path: Path) -> None:
    kinds = ("images-idx3-ubyte.gz", "labels-idx1-ubyte.gz")
    paths = {f"mnist-{part}-{kind}": data(f"mnist-t10k-{kind}") for part in ("train", "t10k") for kind in kinds}
    checksums = {archive.file: archive.checksum for archive in DATASETS["mnist"].archives}
    for kind in kinds:
        content = data(f"mnist-t10k-{kind}").read_bytes()
        assert checksums[f"mnist-t10k-{kind}"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
    small = mnist_files(tmp_path)
    table = mnist(small | {name: path for name, path in paths.items() if "t10k" in name}, silent)["mnist_test"]
    assert table.num_rows == 10_000
    assert table["label"].to_pylist()[:5] == [7, 2, 1, 0, 4]
    contents = {
        f"ptb.{part}.txt": gzip.decompress(data(f"ptb.{part}.txt.gz").read_bytes()) for part in DATASETS["ptb"].rows
    }
    for archive in DATASETS["ptb"].archives:
        assert archive.checksum == f"md5:{hashlib.md5(contents[archive.file]).hexdigest()}"
    tables = ptb(written(tmp_path, contents), silent)
    assert {f"ptb_{split}": count for split, count in DATASETS["ptb"].rows.items()} == {
        stem: table.num_rows for stem, table in tables.items()
    }
    words = sum(len(text.split()) + 1 for text in tables["ptb_train"]["text"].to_pylist())
    assert words == 929_589
