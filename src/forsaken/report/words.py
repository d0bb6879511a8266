"""What a result says in plain words: what was forgotten, at what cost, how sure we are, what cannot be claimed.

Pure functions of a checked result. An engineer hands these sentences on, so none of them says more than was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forsaken.jobs.certificate import Certificate

MEMBER = 0.5  # a sample with a higher membership score is taken for a member
WEAK = 0.6  # an oracle of less balanced accuracy is hardly better than a coin
_FEW = 30  # records of which a rate says little
_APART = 0.1  # of an AUC from 0.5, from which on the page says so
_ALIKE = 0.5  # of the others' spread, below which the forgotten samples stand out by being alike
_BEYOND = 0.05  # by which a rate passes the retrained model's before the page says so

Result = Mapping[str, Any]

AGAINST = {"test": "test samples", "reference": "reference samples"}
STOPPED = {
    "iterations": "it used all the iterations that it was allowed",
    "converged": "the objective no longer changed",
    "calibrated": "the records had come as near to their targets as samples that were never seen are",
    "tolerance": "the records had come so near to their targets that models which never saw them differ by more",
    "line-search": "no further step made the objective smaller",
    "not-memorised": "the records were not memorised, so nothing was changed",
}


@dataclass(frozen=True, slots=True)
class Summary:
    """The top of the page: a headline, and the sentences under each of four questions."""

    headline: str
    done: tuple[str, ...]
    cost: tuple[str, ...]
    sure: tuple[str, ...]
    limits: tuple[str, ...]


def summary(result: Result) -> Summary:
    """Return the plain words of a result."""
    if result["stopped"] == "not-memorised":
        headline = f"There was nothing to forget: the {records(result)} {_was(result)} not memorised"
    else:
        headline = f"A request to forget {records(result)}, carried out in {duration(result['seconds'])}"
    return Summary(headline, _done(result), _cost(result), _sure(result), _limits(result))


def left_to_do(result: Result, certificate: Certificate | None = None) -> list[str]:
    """Return what the owner of the model still has to do, most urgent first."""
    changed = result["stopped"] != "not-memorised"
    found = list(result["chain"]["advice"]) if result["chain"] else []
    if changed:
        found.append(
            "Replace every copy of the old weights, backups and deployments included: the old weights still remember."
        )
    found += _cleaning(result)
    if changed and (certificate is None or certificate.mask.kept):
        found.append(
            "Delete the mask, if one was kept, once it is no longer needed: together with the new weights it restores "
            "the memory."
        )
    if result["samples"]["hash"] is not None:
        found.append(
            "Keep the key of the keyed hashes apart from this page: whoever holds it can test whether a given record "
            "is among those in the table."
        )
    if certificate is not None and certificate.signature is None:
        found.append("Sign the certificate if others are to rely on it: anyone could have written an unsigned one.")
    return found


def records(result: Result) -> str:
    """Return "40 records", or "1 record"."""
    return counted(result["counts"]["forget"], "record")


def members(result: Result, when: str) -> int | None:
    """Return how many forget samples the oracle takes for members "before" or "after"; None without an oracle."""
    samples = result["samples"]
    if samples["score"] != "oracle":
        return None
    scores: list[float] = samples[f"score_{when}"]
    return sum(score > MEMBER for score in scores)


def why_none(result: Result, name: str) -> str:
    """Return why a number of the result is missing."""
    if name == "accuracy":
        return "no test data"
    if result["samples"]["score"] != "oracle":
        return "no oracle"
    if name == "cfr" and not result["counts"]["kept_judged"]:
        return "no further training data were given"
    return {"fr": "nothing was memorised", "cfr": "no record to keep looked like a member"}.get(name, "not measured")


def counted(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "record"), counted(2000, "record")
    ('1 record', '2,000 records')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a time for people.

    >>> duration(0.001), duration(0.76), duration(75), duration(7320)
    ('under 0.01 s', '0.76 s', '1 min 15 s', '2 h 2 min')
    """
    if seconds < 0.01:
        return "under 0.01 s"
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def percent(share: float) -> str:
    """Return a share in per cent, and never 0 or 100 for one that is not.

    >>> percent(0.4515), percent(0.9999), percent(0.0004), percent(1.0), percent(0.0)
    ('45 %', 'over 99 %', 'under 1 %', '100 %', '0 %')
    """
    if 0 < share < 0.01:
        return "under 1 %"
    if 0.99 < share < 1:
        return "over 99 %"
    return f"{100 * share:.0f} %"


def rate(value: float) -> str:
    """Return a rate with two digits, and never 1 for one that is not.

    >>> rate(0.875), rate(0.9995), rate(1.0)
    ('0.88', 'over 0.99', '1.00')
    """
    return "over 0.99" if 0.995 <= value < 1 else f"{value:.2f}"


def method(result: Result) -> str:
    """Return the name of the method."""
    return str(result["settings"].get("name", "forsaken"))


def clipped(text: str, most: int) -> str:
    """Return a text, cut where it is longer than the page has room for."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _was(result: Result) -> str:
    return "was" if result["counts"]["forget"] == 1 else "were"


def _done(result: Result) -> tuple[str, ...]:
    name, target = clipped(method(result), 40), clipped(result["target"]["target"], 40)
    if result["stopped"] == "not-memorised":
        said = [
            f"By the method's own measure, the {records(result)} {_was(result)} no nearer to memorised than samples "
            "that the model was never trained on, so no weight was changed and the model is as it was."
        ]
    else:
        said = [
            f"The model was changed to forget {records(result)} of its training data without being retrained "
            f"(method {name}, target {target})."
        ]
    return (*said, *_verdict(result), *_apart(result))


def _verdict(result: Result) -> list[str]:
    before, after = members(result, "before"), members(result, "after")
    if before is None or after is None:
        return ["No membership oracle was given, so there is no forgetting rate."]
    took = f"A membership oracle took {before:,} of the {records(result)} for training members"
    counts = f"{took} before and {after:,} after"
    if result["fr"] is None:
        return [f"{counts}. The forgetting rate is undefined: the oracle saw nothing memorised to begin with."]
    yardstick = (result["retrain"] or {}).get("fr")
    if yardstick is None:
        return [f"{counts} (forgetting rate {rate(result['fr'])}; no retrained model was there to compare with)."]
    said = [f"{counts} (forgetting rate {rate(result['fr'])}; a model retrained without them: {rate(yardstick)})."]
    if result["fr"] > yardstick + _BEYOND:
        said.append(
            "A rate above the retrained model's is not better: to a model that never saw the records, some would look "
            "like members."
        )
    elif result["fr"] < yardstick - _BEYOND:
        said.append("The rate is below the retrained model's: more is left of the records than retraining would leave.")
    return said


def _apart(result: Result) -> list[str]:
    apart = result["separation"]
    if apart is None:
        return []
    others = f"{apart['n']:,} {AGAINST[apart['against']]}"
    retrained = "" if apart["retrained"] is None else f"; retrained: {apart['retrained']:.2f}"
    whose = "" if result["counts"]["train"] is not None else ", by the word of whoever named them,"
    aimed = " and that the method aimed at" if apart["against"] == "reference" else ""
    said = [
        f"By a threshold on the confidence they can be told from {others} that the model{whose} was never trained on"
        f"{aimed} with an AUC of {apart['before']:.2f} before and {apart['after']:.2f} after (0.5: no threshold "
        f"helps{retrained}; 0 tells as much as 1)."
    ]
    if abs(apart["after"] - 0.5) > _APART:
        said.append("So they can still be told apart to some degree.")
    if result["stopped"] != "not-memorised" and apart["spread"]["after"] < _ALIKE * apart["spread_of_others"]:
        said.append(
            f"Their confidences are more alike (standard deviation {apart['spread']['after']:.3f}) than those of the "
            f"others ({apart['spread_of_others']:.3f}): whoever looks for that can still find them."
        )
    return said


def _cost(result: Result) -> tuple[str, ...]:
    retrain, said = result["retrain"] or {}, []
    took = f"It took {duration(result['seconds'])}"
    if retrain.get("seconds") is not None and result["speedup"] is not None:
        took += f"; retraining took {duration(retrain['seconds'])}, {result['speedup']:.1f} times as long"
    said.append(f"{took}. {percent(result['mask_density'])} of the trainable weights changed.")
    before, after, tests = result["accuracy_before"], result["accuracy_after"], result["counts"]["test"]
    if before is None or after is None:
        said.append("There were no test data, so what it cost in accuracy is not known.")
    else:
        yardstick = retrain.get("accuracy")
        beside = "" if yardstick is None else f" (retrained: {100 * yardstick:.1f} %)"
        on = counted(tests, "test sample")
        said.append(f"The accuracy on {on} went from {100 * before:.1f} % to {100 * after:.1f} %{beside}.")
    if result["cfr"] is not None:
        yardstick = retrain.get("cfr")
        beside = "" if yardstick is None else f"; retrained: {yardstick:.3f}"
        judged = counted(result["counts"]["kept_judged"], "training record")
        members_before = result["counts"]["kept_members_before"]
        base = "" if members_before is None else f" ({members_before:,} looked like members)"
        said.append(
            f"Of {judged} that were to be kept{base}, the oracle took {100 * result['cfr']:.1f} % fewer for members "
            f"than before (collateral forgetting rate {result['cfr']:.3f}{beside}; lower is better)."
            if result["cfr"] > 0
            else f"Of {judged} that were to be kept, the oracle took no fewer for members than before (collateral "
            f"forgetting rate {result['cfr']:.3f}{beside}; lower is better)."
        )
    elif result["stopped"] != "not-memorised":
        said.append(f"What else was forgotten was not measured ({why_none(result, 'cfr')}).")
    return tuple(said)


def _sure(result: Result) -> tuple[str, ...]:
    said = [f"These are the numbers of one run (seed {result['seed']}); another seed would give somewhat other ones."]
    if result["samples"]["score"] == "oracle":
        quality = (result["oracle"] or {}).get("balanced_accuracy")
        if quality is None:
            said.append("How well the oracle tells members from others is not known, so its verdict is a hint at most.")
        elif quality < WEAK:
            said.append(
                f"The oracle's verdict is weak: its balanced accuracy is {quality:.2f} (a coin: 0.50). That it no "
                "longer sees a record says little."
            )
        else:
            said.append(f"The oracle is one black-box test with a balanced accuracy of {quality:.2f} (a coin: 0.50).")
        memorised = members(result, "before") or 0
        if 0 < memorised < _FEW:
            said.append(f"The forgetting rate rests on {counted(memorised, 'record')} only.")
    elif result["separation"] is None:
        said.append("Without an oracle, and without samples that were never trained on, nothing here tests for memory.")
    else:
        said.append("Without an oracle the confidence is the only test here, and a stronger attack may see more.")
    if result["retrain"] is None and result["stopped"] != "not-memorised":
        said.append("There is no retrained model as a yardstick.")
    return tuple(said)


def _limits(result: Result) -> tuple[str, ...]:
    target = result["target"]
    if result["stopped"] == "not-memorised":
        return (
            "That nothing was found memorised is a finding of this one test; it does not prove that the model holds no "
            "trace of the records.",
        )
    return (target["shown"], f"Not shown: {_lower(target['not_shown'])}")


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _cleaning(result: Result) -> list[str]:
    cleaning = result["cleaning"]
    if cleaning is None:
        return [
            "Delete the records from the training data, and near copies of them too, or the next training brings them "
            "back. This run did not look at the training data."
        ]
    rows = counted(cleaning["rows"], "row")
    gone = f"{rows} of the training data {'belongs' if cleaning['rows'] == 1 else 'belong'} to the forgotten records"
    if cleaning["file"]:
        found = [f"{gone}: see {cleaning['file']} in this folder, and train on nothing that still holds them."]
    else:
        found = [f"{gone}: delete them, or the next training brings them back."]
    for count, kind in ((cleaning["exact"], "an exact"), (cleaning["near"], "a near")):
        if count:
            noun = "row" if count == 1 else "rows"
            found.append(
                f"{count:,} other training {noun} that stayed: each is {kind} duplicate of a forgotten record. Look at "
                "them: the model may know the records from there."
            )
    return found
