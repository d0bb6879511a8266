"""The verdict on a request: one word and one line, by one table of rules (docs/guide/verdict.md).

**forgotten**: the numbers are where those of models that never saw the samples are. **failed**: they are beside that,
or the method moved away from its own aim. **not shown**: there is nothing to compare with, or nothing that could tell.

The yardstick is always a model that never saw the samples: a retrained one, an ensemble of them (the full audit), or
the out-of-fold answers in a table of references. An AUC of 0.5, or a forgetting rate of 1, is no yardstick by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from forsaken.errors import SettingsError
from forsaken.result import Check, Verdict, Word

ACCURACY_LOSS = 0.02  # by which accuracy may fall
YARDSTICKS = "run forsaken audit with the profile full, or give a retrained model or a table of references"
LEAST_RECORDS = 10  # below it a mean, a spread or an AUC says too much about each record, and is not told


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict rests on.

    Attributes
    ----------
    checks : tuple of Check
        Numbers of the model before and after beside the yardstick's.
    yardstick : str
        What the yardstick is, in words such as "a retrained model"; empty where there is none.
    unchanged : str
        That no weight, or no answer, changed, as a sentence; empty where some did.
    moved_away : str
        How the method moved away from its own aim, as a sentence; empty where it did not.
    alarm : str
        What an alarm about forgetting too much or too little says; empty where none was raised.
    own : str
        How far the method came by its own measure, as a sentence; empty where it has none.
    doubt : str
        Why a good outcome would show nothing, as a sentence: the yardstick is somebody's word, or too weak.
    remedy : str
        What to run for a yardstick, as a clause.
    records : int
        How many samples were to be forgotten.
    """

    checks: tuple[Check, ...] = ()
    yardstick: str = ""
    unchanged: str = ""
    moved_away: str = ""
    alarm: str = ""
    own: str = ""
    doubt: str = ""
    remedy: str = YARDSTICKS
    records: int = LEAST_RECORDS

    def those(self, outcome: str) -> list[Check]:
        """Return the checks with an outcome: the most telling ones come first, as they were given."""
        return [check for check in self.checks if check.outcome == outcome]


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table: the word, when it applies, and the line."""

    word: Word
    when: Callable[[Evidence], bool]
    line: Callable[[Evidence], str]


def _told(found: Evidence, check: Check) -> str:
    name = check.label[0].upper() + check.label[1:]
    if found.records < LEAST_RECORDS:
        return f"{name}: not told, since a number of so few records would tell about each of them."
    before = "" if check.before is None else f"{check.before:.2f} before, "
    colon = "" if name.endswith("AUC") else ":"
    return f"{name}{colon} {check.after:.2f} ({before}{check.usual:.2f} for {found.yardstick})."


def _failed(found: Evidence) -> str:
    first, *others = found.those("failed")
    more = f"{len(others)} more number{'s' * (len(others) > 1)} differ{'s' * (len(others) == 1)}." if others else ""
    head = f"The model does not answer like {found.yardstick}."
    return _joined(found.unchanged, head, _told(found, first), more if found.records >= LEAST_RECORDS else "")


def _joined(*sentences: str) -> str:
    return " ".join(each for each in sentences if each)


# The first row that applies gives the verdict.
RULES: tuple[Rule, ...] = (
    Rule("failed", lambda found: bool(found.those("failed")), _failed),
    Rule("failed", lambda found: bool(found.moved_away), lambda found: found.moved_away),
    Rule("failed", lambda found: bool(found.alarm), lambda found: found.alarm),
    Rule(
        "not shown",
        lambda found: bool(found.unchanged),
        lambda found: _joined(found.unchanged, found.own),
    ),
    Rule(
        "not shown",
        lambda found: not found.yardstick,
        lambda found: _joined(
            found.own, "There is no model that never saw the samples to compare with.", f"To know, {found.remedy}."
        ),
    ),
    Rule("not shown", lambda found: bool(found.doubt), lambda found: _joined(found.doubt, found.own)),
    Rule(
        "not shown",
        lambda found: not found.those("passed"),
        lambda found: _joined(
            f"The model before already answered like {found.yardstick}, by every number that was compared, so "
            "these numbers cannot show that anything was forgotten.",
            found.own,
        ),
    ),
    Rule(
        "forgotten",
        lambda found: True,  # noqa: ARG005 (the last row applies to all that is left)
        lambda found: _joined(f"The model answers like {found.yardstick}.", _told(found, found.those("passed")[0])),
    ),
)


def decide(found: Evidence) -> Verdict:
    """Return the verdict by the first rule that applies.

    >>> decide(Evidence()).word
    'not shown'
    """
    rule = next(rule for rule in RULES if rule.when(found))
    return Verdict(word=rule.word, line=rule.line(found), yardstick=found.yardstick or None, checks=list(found.checks))


def strictest(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on a run from several, the strongest test last: one failure is enough, and so is one proof.

    Of two that show nothing, one that had a yardstick says more about why.

    >>> known = [Verdict(word=word, line="") for word in ("not shown", "forgotten", "failed")]
    >>> strictest(known).word, strictest(known[:2]).word
    ('failed', 'forgotten')
    """
    order: tuple[Word, ...] = ("failed", "forgotten", "not shown")
    return min(reversed(list(verdicts)), key=lambda one: (order.index(one.word), one.yardstick is None))


@dataclass(frozen=True, slots=True)
class Requirement:
    """Something that a user requires of a run or an audit: forgotten, not-failed, or accuracy-loss=1.0 (points).

    >>> Requirement.parse("accuracy-loss=1.5")
    Requirement(name='accuracy-loss', most=1.5)
    """

    name: str
    most: float | None = None

    @classmethod
    def parse(cls, text: str) -> Requirement:
        """Read one requirement."""
        name, _, value = text.partition("=")
        if name in ("forgotten", "not-failed") and not value:
            return cls(name)
        try:
            most = float(value)
        except ValueError:
            most = -1.0
        if name != "accuracy-loss" or not 0 <= most <= 100:
            expected = "forgotten, not-failed, or accuracy-loss= and points from 0 to 100, such as accuracy-loss=1.0"
            raise SettingsError(field="--require", value=text, expected=expected)
        return cls(name, most)

    def unmet(self, verdict: Verdict, accuracy_before: float | None, accuracy_after: float | None) -> str:
        """Return why the requirement is not met, as a sentence; empty where it is."""
        if self.most is None:
            met = verdict.word == "forgotten" if self.name == "forgotten" else verdict.word != "failed"
            return "" if met else f"Required was {self.name}, and the verdict is {verdict.word}."
        if accuracy_before is None or accuracy_after is None:
            return f"Required was {self.name}={self.most:g}, and the accuracy is not known: there are no test samples."
        lost = 100 * (accuracy_before - accuracy_after)
        told = f"Required was {self.name}={self.most:g}, and the test accuracy fell by {lost:.2f} points."
        return told if lost > self.most + 1e-9 else ""
