"""What a model carries of forgotten records outside its weights: vocabularies, fitted steps, running statistics.

A vocabulary entry that occurs in forgotten documents alone leaves the pipeline before the method starts: otherwise the
method would move the coefficients of exactly these entries, since no other document notices. Batch-norm statistics are
measured anew where the job asks for it. What stays is listed in the result, the report and the certificate, by number
and never by content.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.preprocessing import MaxAbsScaler, Normalizer, StandardScaler

from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import OverlapError
from forsaken.jobs.configuration import Job
from forsaken.jobs.formats import EstimatorFile, Format, HuggingFaceFolder
from forsaken.jobs.sets import JobSets, prepared_again, prepared_rows
from forsaken.models.batch_norm import measure_statistics, statistics_of
from forsaken.models.logits import as_module
from forsaken.types import Array

_COLUMNWISE = (TfidfTransformer, Normalizer, MaxAbsScaler, StandardScaler)  # column j out is column j in
_SHAPES = ("n_features_in_", "feature_names_in_", "n_samples_seen_", "fixed_vocabulary_", "stop_words_")
_AGAIN = "fit it anew without the records when the model is next trained"


@dataclass(frozen=True, slots=True)
class Start:
    """What the method starts from.

    Attributes
    ----------
    loaded : Format
        The model, without the vocabulary entries that occur in forgotten documents alone.
    sets : JobSets
        The samples as this model takes them.
    removed : int
        How many entries left the vocabulary; 0 where the model and the sets are those that were read.
    left : int
        How many such entries were found, and had to stay.
    known : bool
        Whether it is known which entries occur in forgotten documents alone.
    """

    loaded: Format
    sets: JobSets
    removed: int = 0
    left: int = 0
    known: bool = False


def without_vocabulary(job: Job, loaded: Format, sets: JobSets) -> Start:
    """Take vocabulary entries that occur in forgotten documents alone out of a pipeline, where they are known.

    They stay where a table of references or a mask, which speak of the weights and inputs as they were, is in use.
    """
    alone = _alone(job, loaded, sets)
    if alone is None or not len(alone) or not isinstance(loaded, EstimatorFile):
        return Start(loaded, sets, known=alone is not None)
    if job.references is None and not job.output.mask:
        smaller = loaded.with_pipeline(_without(loaded.pipeline, alone))
        # Without these words every reference may be the same to the model as a forgotten document.
        with suppress(OverlapError):
            return Start(smaller, prepared_again(job, smaller, sets), removed=len(alone), known=True)
    return Start(loaded, sets, left=len(alone), known=True)


def _vectoriser(job: Job, loaded: Format) -> CountVectorizer | None:
    """Return the first step of a pipeline, where it is one that learnt a vocabulary from texts."""
    if not isinstance(loaded, EstimatorFile) or loaded.pipeline is None or job.data.prepare is not None:
        return None
    first = loaded.pipeline[0]
    learnt = isinstance(first, CountVectorizer) and not getattr(first, "fixed_vocabulary_", False)
    return first if learnt else None


def _alone(job: Job, loaded: Format, sets: JobSets) -> Array | None:
    """Return the columns of words in forgotten documents alone; None where that cannot be known."""
    first, train, forget = _vectoriser(job, loaded), sets.rows.get("train"), sets.rows["forget"]
    source = job.data.train
    if first is None or train is None or source is None or source.count is not None or source.ids is not None:
        return None
    kept = train.without([forget])
    parts = [forget.content, *([] if kept is None else [kept.content])]
    if not all(isinstance(part, Records) and part.kind == "text" for part in parts):
        return None
    # The counts themselves, also of a vectoriser that weighs them.
    found = [
        np.asarray((CountVectorizer.transform(first, part.content.tolist()) != 0).sum(axis=0)).ravel()  # type: ignore[union-attr]
        for part in parts
    ]
    elsewhere = found[1] if len(found) > 1 else np.zeros_like(found[0])
    return np.flatnonzero((found[0] > 0) & (elsewhere == 0))


def _without(pipeline: Any, columns: Array) -> Any:
    """Return a copy of a pipeline that no longer knows the words of `columns`; their columns are never used again."""
    whole = copy.deepcopy(pipeline)
    first, last = whole[0], whole[-1]
    gone = set(columns.tolist())
    # The number of columns must stay, so another name takes the place; no analyser makes a token with a NUL character.
    first.vocabulary_ = {f"\0removed {at}" if at in gone else word: at for word, at in first.vocabulary_.items()}
    if hasattr(first, "stop_words_"):  # words that earlier versions of scikit-learn keep for inspection alone
        del first.stop_words_
    if hasattr(first, "idf_"):
        first.idf_ = np.where(np.isin(np.arange(len(first.idf_)), columns), 1.0, first.idf_)
    if all(isinstance(step, _COLUMNWISE) for step in whole[1:-1]):
        last.coef_ = last.coef_.copy()
        last.coef_[:, columns] = 0
    return whole


def measured_again(job: Job, start: Start, after: Any) -> int:
    """Measure the batch-norm statistics of the model `after` on the kept training rows, where the job asks for it.

    The model is changed in place. Returns the number of rows; 0 where nothing was measured.
    """
    loaded, rows = start.loaded, start.sets.rows
    kept = None if "train" not in rows else rows["train"].without([rows["forget"]])
    if job.output.batch_norm != "recompute" or kept is None or not statistics_of(as_module(after)):
        return 0
    samples = prepared_rows(job, loaded, kept)
    names = measure_statistics(as_module(after), Samples(samples.inputs), forward=loaded.forward)
    return len(kept) if names else 0


def what_stays(job: Job, start: Start, measured: int) -> tuple[list[str], list[str]]:
    """Return what was done about things that saw the forgotten records, and a sentence on each that stays as it was.

    `measured` is what `measured_again` returned.
    """
    loaded, done, found = start.loaded, [], []
    if start.removed:
        done.append(
            f"{_entries(start.removed)} that {_occur(start.removed)} in forgotten documents alone left the vectoriser, "
            "and their coefficients are zero"
        )
    if start.left:
        found.append(
            f"{_entries(start.left)} that {_occur(start.left)} in forgotten documents alone "
            f"{_stay(start.left)} in the vectoriser, so the pipeline tells which words were in the documents: fit "
            "it anew without the records"
        )
    if isinstance(loaded, EstimatorFile) and loaded.pipeline is not None and job.data.prepare is None:
        found += _fitted(loaded.pipeline, known=start.known)
    if isinstance(loaded, HuggingFaceFolder) and job.data.prepare is None and loaded.has_tokenizer:
        found.append(
            "The tokenizer stays as it was: where it was trained on texts with the forgotten records, train it anew "
            "without them."
        )
    names = statistics_of(as_module(loaded.model))
    if names and measured:
        done.append(
            f"the running statistics of {_layers(len(names))} were measured anew on {measured:,} kept training rows"
        )
    elif names:
        remedy = 'set batch_norm = "recompute" in [output] to measure them on the kept rows'
        if job.data.train is None:
            remedy = 'give train in [data], and batch_norm = "recompute" in [output], to measure them on the kept rows'
        found.append(
            f"The running statistics of {_layers(len(names))} were measured on batches with the forgotten records, and "
            f"stay as they were: {remedy}."
        )
    return done, found


def _fitted(pipeline: Any, *, known: bool) -> list[str]:
    """Return a sentence for each step before the classifier that learnt something from the data.

    Where it is `known` which words occur in forgotten documents alone, the rest of a vocabulary is none of theirs.
    """
    found = []
    for name, step in pipeline.steps[:-1]:
        learnt = {each for each in vars(step) if each.endswith("_") and each[0] != "_" and each not in _SHAPES}
        learnt |= {"idf_"} if hasattr(step, "idf_") else set()
        learnt -= {"vocabulary_"} if known and isinstance(step, CountVectorizer) else set()
        if learnt:
            found.append(
                f"The step {name} ({type(step).__name__}) was fitted on data with the forgotten records, and "
                f"{', '.join(sorted(learnt))} {_stay(len(learnt))} as fitted: {_AGAIN}."
            )
    return found


def _layers(count: int) -> str:
    return "1 batch-norm layer" if count == 1 else f"{count} batch-norm layers"


def _entries(count: int) -> str:
    return "1 vocabulary entry" if count == 1 else f"{count:,} vocabulary entries"


def _occur(count: int) -> str:
    return "occurs" if count == 1 else "occur"


def _stay(count: int) -> str:
    return "stays" if count == 1 else "stay"


def forgotten_by_removal(start: Start, unlearned: Any) -> Any:
    """Return the outcome of a method that found nothing left to forget once the vocabulary entries were gone.

    The weights differ from those that were read, so that "nothing was changed" would be wrong: the records stand where
    samples that were never seen do.
    """
    if not start.removed or unlearned.stopped != "not-memorised":
        return unlearned
    note = "once the vocabulary entries were gone, the model knew the records no better than the references"
    details = replace(unlearned.details, stopped="calibrated", notes=(note,))
    return replace(unlearned, details=details)
