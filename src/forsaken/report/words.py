"""What a result says in plain words: what was forgotten, at what cost, how sure we are, what cannot be claimed.

Pure functions of a checked result. An engineer hands these sentences on, so none of them says more than was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from forsaken.jobs.certificate import Certificate
from forsaken.jobs.disclosure import TOO_FEW
from forsaken.result import Result, Retrained, Verdict

MEMBER = 0.5  # a sample with a higher membership score is taken for a member
OUT_OF_FOLD = "out-of-fold"  # as in forsaken.unlearning.forsaken.targets, which takes long to import
WEAK = 0.6  # an oracle of less balanced accuracy is hardly better than a coin
_FEW = 30  # records of which a rate says little
_APART = 0.1  # of an AUC from 0.5, from which on the page says so
_ALIKE = 0.5  # of the others' spread, below which the forgotten samples stand out by being alike
_BEYOND = 0.05  # by which a rate passes the retrained model's before the page says so
_NOTHING = Retrained(fr=None, cfr=None, accuracy=None, seconds=None)

AGAINST = {"test": "test samples", "reference": "reference samples"}
STOPPED = {
    "iterations": "it used all the iterations that it was allowed",
    "converged": "the objective no longer changed",
    "calibrated": "the records had come as near to their targets as samples that were never seen are",
    "tolerance": "the records were closer to their targets than two models that never saw them are to each other",
    "line-search": "no further step made the objective smaller",
    "not-memorised": "by the method's own measure the records were not memorised, so nothing was changed",
}


# What the page's own words mean, for those who meet them here.
GLOSSARY = (
    ("record, sample", "one row of the training data: a picture, a text, a line of a table"),
    ("memorised", "the model is surer of a record than it is of records that it was never trained on"),
    ("retrained model", "a model trained in the same way without the records: the yardstick for forgetting"),
    ("reference", "what a model that never saw a record answers about it, or a sample that was never trained on"),
    ("oracle", "a program that guesses from a model's answers whether it was trained on a record"),
    ("member", "a record that an oracle takes for training data"),
    ("FR, forgetting rate", "of the records that the oracle took for members before, the share that it no longer does"),
    ("CFR", "the same for records that should be kept, so it counts damage: lower is better"),
    ("AUC", "how well a test tells two groups apart: 0.5 is chance; 1 is always, and 0 tells as much"),
    ("confidence, posterior", "the share that the model gives to its answer, from 0 to 1"),
    ("floor", "the range in which retrained models lie among themselves: nothing can be nearer than that"),
    ("U-LiRA, LiRA, RMIA", "attacks that try to tell, record by record, what a model was trained on"),
    ("drift", "how far the weights have moved, as a share of their size"),
    ("keyed hash", "a code for a record that only the holder of the key can make or compare"),
    ("certificate", "a signed statement of what was done to which weights; it holds no record"),
)


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
    count = counted(result.counts.forget, "record")
    name, target = clipped(method(result), 40), clipped(result.target.target, 40)
    if changed(result):
        headline = f"A request to forget {count}, which took {duration(result.seconds)}"
        done = (
            f"The model was changed to forget {count} of its training data without being retrained (method {name}, "
            f"target {target})."
        )
        not_shown = result.target.not_shown
        limits: tuple[str, ...] = (result.target.shown, f"Not shown: {not_shown[:1].lower()}{not_shown[1:]}")
    else:
        was = "was" if result.counts.forget == 1 else "were"
        known = evidence(result)
        headline = f"Nothing was changed, and nothing shows that the {count} {was} not memorised"
        if known is not None:
            headline = f"Nothing was changed: the {count} {was} not found memorised"
        done = (
            f"By the method's own measure, the model knew the {count} no better than samples that it was never trained "
            "on, so no weight was changed."
        )
        limits = (
            f"This rests on the method's own measure and on {known}, and does not prove that the model holds no trace "
            "of the records."
            if known is not None
            else "The method's own measure spares work, and does not prove that the model holds no trace of the "
            "records: it compares averages, and an attack that takes each record by itself may still recognise all of "
            "them. A table of references (forsaken references fit), an oracle of a shadow model ([oracle]) or forsaken "
            "audit would show it.",
        )
    return Summary(headline, (done, *_verdict(result), *_separation(result)), _cost(result), _sure(result), limits)


_FOUND = {
    "forgotten": "Tests found that it now answers about them like models that had never been trained on them.",
    "not shown": "It has not been shown whether it now answers about them like a model never trained on them.",
    "failed": "Tests found that this did not succeed: do not use the new file as one that has forgotten them.",
}


def plain(result: Result, verdict: Verdict, certificate: Certificate | None = None) -> tuple[str, ...]:
    """Return what happened, for somebody who knows data protection and not machine learning."""
    count = counted(result.counts.forget, "record")
    case = "" if result.request is None or result.request.case is None else f" (case {result.request.case})"
    asked = f"On {moment(result, certificate)} the model was asked to forget {count} of its training data{case}."
    done = (
        f"Its inner numbers were changed to make it forget them; it was not trained again. {_FOUND[verdict.word]}"
        if changed(result)
        else "The method's own test found no sign that it knew them better than others, so it was left as it was. "
        f"{_FOUND[verdict.word] if verdict.word == 'failed' else 'That does not prove that it holds no trace of them.'}"
    )
    if result.accuracy_before is None or result.accuracy_after is None:
        cost = "How well it still does its work was not measured."
    else:
        was, now = (f"{100 * share:.1f} %" for share in (result.accuracy_before, result.accuracy_after))
        tried = counted(result.counts.test, "sample")
        cost = f"On {tried} that it had never seen it was right in {was} of the cases before and in {now} after."
    safe = (
        "Neither this page nor the certificate shows a record: they are named by codes that mean nothing without the "
        "key."
        if certificate is not None
        else "This page shows no record."
    )
    rest = (
        "This changes one file. Other copies of the old model, and the training data, still hold the records until "
        "somebody deletes them: the list below says what is left to do."
    )
    return (asked, done, cost, safe, rest)


def moment(result: Result, certificate: Certificate | None = None) -> str:
    """Return the day of the run for people, as the certificate or else the result tells it."""
    text = result.provenance.get("time") if certificate is None else certificate.time
    try:
        told = datetime.fromisoformat(str(text))
    except ValueError:
        return "an unknown day"
    return f"{told.day} {told:%B %Y}"


def heading(result: Result, certificate: Certificate | None = None) -> list[tuple[str, str]]:
    """Return the facts at the top of the page: whose request, of which model, when, and who answers for it."""
    request = result.request
    found = [
        ("case", None if request is None else request.case),
        ("due", None if request is None else request.due),
        ("model", None if certificate is None else clipped(certificate.weights.new.name, 60)),
        ("records", f"{result.counts.forget:,}"),
        ("date", moment(result, certificate)),
        ("request", None if result.chain is None else f"number {len(result.chain.links)} on this model"),
    ]
    if certificate is not None:
        signature = certificate.signature
        found.append(("signed by", "nobody" if signature is None else f"key {clipped(signature.keyid, 40)}"))
    return [(name, value) for name, value in found if value is not None]


def left_to_do(result: Result, certificate: Certificate | None = None) -> list[str]:
    """Return what the owner of the model still has to do, most urgent first."""
    found = list(result.chain.advice) if result.chain else []
    if changed(result):
        found.append(
            "Replace every copy of the old weights, backups and deployments included: the old weights still remember."
        )
    found += _cleaning(result)
    found += result.stays
    if changed(result) and (certificate is None or certificate.mask.kept):
        found.append(
            "Delete the mask, if one was kept, once it is no longer needed: together with the new weights it restores "
            "the memory."
        )
    if certificate is not None or (result.samples is not None and result.samples.hash is not None):
        found.append(
            "Keep the key of the keyed hashes apart from this page and the certificate: whoever holds it can test "
            "whether a given record was forgotten."
        )
    if certificate is not None and certificate.signature is None:
        found.append("Sign the certificate if others are to rely on it: anyone could have written an unsigned one.")
    return found


def evidence(result: Result) -> str | None:
    """Return what besides the method's own measure says that the samples were not memorised; None if nothing does.

    References do, which are the answers of models that never saw the samples, and so does an oracle that takes none of
    the samples for a member.
    """
    if result.target.target == OUT_OF_FOLD:
        return "the answers of models that never saw the records"
    return "an oracle that takes none of them for a member" if result.counts.memorised_before == 0 else None


def changed(result: Result) -> bool:
    """Return whether the method changed the model; it does not where nothing was memorised."""
    return result.stopped != "not-memorised"


def members(result: Result) -> tuple[int, int] | None:
    """Return how many forget samples the oracle takes for members before and after; None without an oracle."""
    before, after = result.counts.memorised_before, result.counts.memorised_after
    return None if before is None or after is None else (before, after)


def withheld(result: Result) -> bool:
    """Return whether numbers over the records are left out since they would say too much about each of them."""
    return result.forget_confidence is None


def why_none(result: Result, name: str) -> str:
    """Return why a number of the result is missing."""
    if name == "accuracy":
        return "no test data"
    if result.counts.memorised_before is None:
        return "no oracle"
    if name == "cfr" and not result.counts.kept_judged:
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
    return "over 99 %" if 0.99 < share < 1 else f"{100 * share:.0f} %"


def rate(value: float) -> str:
    """Return a rate with two digits, and never 1 for one that is not.

    >>> rate(0.875), rate(0.9995), rate(1.0)
    ('0.88', 'over 0.99', '1.00')
    """
    return "over 0.99" if 0.995 <= value < 1 else f"{value:.2f}"


def method(result: Result) -> str:
    """Return the name of the method."""
    return str(result.settings.get("name", "forsaken"))


def clipped(text: str, most: int) -> str:
    """Return a text, cut where it is longer than the page has room for."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _verdict(result: Result) -> list[str]:
    found = members(result)
    if found is None:
        return ["No membership oracle was given, so there is no forgetting rate."]
    count = counted(result.counts.forget, "record")
    took = f"A membership oracle took {found[0]:,} of the {count} for training members before and {found[1]:,} after"
    yardstick = (result.retrain or _NOTHING).fr
    if result.fr is None:
        return [f"{took}. The forgetting rate is undefined: the oracle saw nothing memorised to begin with."]
    if yardstick is None:
        return [f"{took} (forgetting rate {rate(result.fr)}; no retrained model was there to compare with)."]
    said = [f"{took} (forgetting rate {rate(result.fr)}; a model retrained without them: {rate(yardstick)})."]
    if result.fr > yardstick + _BEYOND:
        said.append(
            "A rate above the retrained model's is not better: to a model that never saw the records, some would look "
            "like members."
        )
    elif result.fr < yardstick - _BEYOND:
        said.append("The rate is below the retrained model's: more is left of the records than retraining would leave.")
    return said


def _separation(result: Result) -> list[str]:
    found = result.separation
    if found is None:
        return []
    retrained = "" if found.retrained is None else f"; retrained: {found.retrained:.2f}"
    whose = "" if result.counts.train is not None else ", as the user says,"
    said = [
        f"A threshold on the confidence tells them from {found.n:,} {AGAINST[found.against]}, which the model{whose} "
        f"never saw, with an AUC of {found.before:.2f} before and {found.after:.2f} after (0.5: no threshold helps"
        f"{retrained}; 0 tells as much as 1)."
    ]
    if abs(found.after - 0.5) > _APART:
        said.append("So they can still be told apart to some degree.")
    if changed(result) and found.spread.after < _ALIKE * found.spread_of_others:
        said.append(
            f"Their confidences are more alike (standard deviation {found.spread.after:.3f}) than those of the "
            f"others ({found.spread_of_others:.3f}): whoever looks for that can still find them."
        )
    return said


def _cost(result: Result) -> tuple[str, ...]:
    retrain = result.retrain or _NOTHING
    took = f"It took {duration(result.seconds)}"
    if retrain.seconds is not None and result.speedup is not None:
        took += f"; retraining took {duration(retrain.seconds)}, {result.speedup:.1f} times as long"
    said = [f"{took}. {percent(result.mask_density)} of the trainable weights changed."]
    if result.accuracy_before is None or result.accuracy_after is None:
        said.append("There were no test data, so what it cost in accuracy is not known.")
    else:
        beside = "" if retrain.accuracy is None else f" (retrained: {100 * retrain.accuracy:.1f} %)"
        said.append(
            f"The accuracy on {counted(result.counts.test, 'test sample')} went from "
            f"{100 * result.accuracy_before:.1f} % to {100 * result.accuracy_after:.1f} %{beside}."
        )
    if result.cfr is not None:
        beside = "" if retrain.cfr is None else f"; retrained: {retrain.cfr:.3f}"
        known = result.counts.kept_members_before
        base = "" if known is None or result.cfr <= 0 else f" ({known:,} looked like members)"
        fewer = f"{100 * result.cfr:.1f} % fewer" if result.cfr > 0 else "no fewer"
        said.append(
            f"Of {counted(result.counts.kept_judged, 'training record')} that were to be kept{base}, the oracle took "
            f"{fewer} for members than before (collateral forgetting rate {result.cfr:.3f}{beside}; lower is better)."
        )
    elif changed(result):
        said.append(f"What else was forgotten was not measured ({why_none(result, 'cfr')}).")
    return tuple(said)


def _sure(result: Result) -> tuple[str, ...]:
    said = [f"These are the numbers of one run (seed {result.seed}); another seed would give somewhat other ones."]
    found = members(result)
    if found is not None:
        quality = result.oracle.balanced_accuracy if result.oracle else None
        if quality is None:
            said.append("How well the oracle tells members from others is not known, so its verdict is a hint at most.")
        elif quality < WEAK:
            said.append(
                f"The oracle's verdict is weak: its balanced accuracy is {quality:.2f} (a coin: 0.50). That it no "
                "longer sees a record says little."
            )
        else:
            said.append(f"The oracle is one black-box test with a balanced accuracy of {quality:.2f} (a coin: 0.50).")
        if 0 < found[0] < _FEW:
            said.append(f"The forgetting rate rests on {counted(found[0], 'record')} only.")
    elif withheld(result):
        said.append(f"Without an oracle nothing here tests for memory: numbers on the confidence are {TOO_FEW}.")
    elif result.separation is None:
        said.append("Without an oracle, and without samples that were never trained on, nothing here tests for memory.")
    else:
        said.append("Without an oracle the confidence is the only test here, and a stronger attack may see more.")
    if result.retrain is None and changed(result):
        said.append("There is no retrained model as a yardstick.")
    return tuple(said)


def _cleaning(result: Result) -> list[str]:
    cleaning = result.cleaning
    if cleaning is None:
        return [
            "Delete the records from the training data, and near copies of them too, or the next training brings them "
            "back. This run did not look at the training data."
        ]
    belong = "belongs" if cleaning.rows == 1 else "belong"
    gone = f"{counted(cleaning.rows, 'row')} of the training data {belong} to the forgotten records"
    found = [
        f"{gone}: see {cleaning.file} in this folder, and train on nothing that still holds them."
        if cleaning.file
        else f"{gone}: delete them, or the next training brings them back."
    ]
    for count, kind in ((cleaning.exact, "an exact"), (cleaning.near, "a near")):
        if count:
            found.append(
                f"{count:,} other training row{'' if count == 1 else 's'} that stayed: each is {kind} duplicate of a "
                "forgotten record. Look at them: the model may know the records from there."
            )
    return found
