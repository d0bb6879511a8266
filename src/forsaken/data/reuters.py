"""The 46-topic Reuters newswires: 35 topics as the task, eleven as strangers."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import torch
from sklearn.feature_extraction.text import CountVectorizer

from forsaken.data.folder import dataset_file
from forsaken.data.samples import Samples
from forsaken.data.scenario import OodSizes, Scenario, ood_rows, ood_scenario

FILE = "reuters46.parquet"
VOCABULARY = 10_000
OOD_TOPICS = (8, 9, 10, 11, 13, 16, 27, 33, 35, 42, 44)
CLASSES = 46 - len(OOD_TOPICS)
_SIZES = OodSizes(forget=200, shadow_in=200, shadow_out=200, reference=1000, train_share=0.8, retain_share=0.01)


def reuters_35_11(seed: int) -> Scenario:
    """Return the scenario `reuters-35-11`: 200 newswires on eleven other topics, randomly labelled, are forgotten.

    All 11,228 documents are pooled; those on the 35 task topics are halved into target and shadow, each
    split 80/20 into train and test. Inputs are binary bags of the 10,000 words most frequent in the training
    parts. References that equal a forgotten document word for word are left out.
    """
    table = pq.read_table(dataset_file(FILE), columns=["text", "label"])
    texts = np.array(table["text"].to_pylist(), dtype=object)
    topics = table["label"].to_numpy()
    in_task = ~np.isin(topics, OOD_TOPICS)
    split = ood_rows(in_task, _SIZES, seed)
    words = CountVectorizer(max_features=VOCABULARY, binary=True, dtype=np.float32)
    words.fit(texts[np.concatenate([split["train"], split["shadow_train"]])])
    bags = torch.from_numpy(words.transform(texts).toarray())
    # Task topics become 0 to 34 in their order; the strangers' own labels are never used.
    numbers = np.cumsum(np.isin(np.arange(46), OOD_TOPICS, invert=True)) - 1
    samples = Samples(bags, torch.from_numpy(numbers[topics]))
    return ood_scenario("reuters-35-11", samples, split, CLASSES, _SIZES, seed)
