"""Every error that Forsaken raises on purpose.

An error carries data: the field it is about, the value, what was expected, and the remedy. Its text is made from them
when it is shown, so whoever catches an error reads its attributes and never takes its text apart. Each class also has a
standard parent, so ``except ValueError`` works for callers who do not import this module.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Sequence
from typing import Self

__all__ = [
    "CertificateError",
    "DataError",
    "DataNotFoundError",
    "DownloadError",
    "EmptyError",
    "ForsakenError",
    "InputError",
    "MaskError",
    "ModelError",
    "NonFiniteError",
    "NotHeldOutError",
    "NothingForgottenError",
    "OracleError",
    "OutputError",
    "OverlapError",
    "SettingsError",
    "UndefinedMetricError",
    "UnknownNameError",
]


class ForsakenError(Exception):
    """Parent of every error that Forsaken raises on purpose.

    Parameters
    ----------
    problem : str
        What is wrong, in one clause. Without it the text says that `field` is `value`.
    field : str
        The argument, setting or key that the error is about, such as "retain"; empty where there is none.
    value : object
        What was given. Leave it out where it could be, or could hold, a record that is to be forgotten.
    expected : str
        What would have been right.
    remedy : str
        What to do, in terms of the Python interface. The command line shows its own by field (`with_remedy`).

    Examples
    --------
    >>> str(ForsakenError(field="seed", value=-1, expected="a whole number >= 0", remedy="leave it out"))
    'seed is -1, expected a whole number >= 0; leave it out'
    """

    problem: str = ""
    field: str = ""
    value: object = None
    expected: str = ""
    remedy: str = ""

    def __init__(
        self, problem: str = "", *, field: str = "", value: object = None, expected: str = "", remedy: str = ""
    ) -> None:
        super().__init__(problem or f"{field} is {value!r}")
        self.problem = problem or f"{field} is {value!r}"
        self.field, self.value, self.expected, self.remedy = field, value, expected, remedy

    def __str__(self) -> str:
        expected = f", expected {self.expected}" if self.expected else ""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{self.problem}{expected}{remedy}"

    def with_remedy(self, remedy: str) -> Self:
        """Return a copy of this error with another remedy: a job file has other words for it than Python.

        >>> str(ForsakenError("there are no retain samples", remedy="give retain=").with_remedy("name [data] retain"))
        'there are no retain samples; name [data] retain'
        """
        other = copy.copy(self)
        other.__cause__, other.__traceback__, other.remedy = self.__cause__, self.__traceback__, remedy
        return other

    def __reduce__(self) -> tuple[object, ...]:
        # Copying and sending to another process must not call `__init__`, whose parameters differ from class to class.
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[ForsakenError], args: tuple[object, ...], state: dict[str, object]) -> ForsakenError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class InputError(ForsakenError, ValueError):
    """Data that cannot be used as they are: wrong type, shape, dtype, labels or values."""


class EmptyError(InputError):
    """A set of samples that must not be empty is empty."""


class OverlapError(InputError):
    """Reference or retain samples that are also to be forgotten.

    Attributes
    ----------
    rows : tuple of int
        The rows of the offending set to leave out.
    """

    rows: tuple[int, ...]

    def __init__(self, problem: str, rows: Sequence[int], *, field: str = "", remedy: str = "") -> None:
        super().__init__(problem, field=field, remedy=remedy)
        self.rows = tuple(rows)


class NotHeldOutError(InputError):
    """Samples that no reference model is known to have been kept from.

    Attributes
    ----------
    rows : tuple of int
        Which of the samples.
    """

    rows: tuple[int, ...]

    def __init__(self, problem: str, rows: Sequence[int], *, field: str = "", remedy: str = "") -> None:
        super().__init__(problem, field=field, remedy=remedy)
        self.rows = tuple(rows)


class ModelError(ForsakenError, ValueError):
    """A model that cannot be unlearned: no trainable parameter, or outputs that are not logits."""


class SettingsError(ForsakenError, ValueError):
    """One or more settings are wrong.

    Attributes
    ----------
    problems : tuple of SettingsError
        One error for each wrong setting, where several were collected (`SettingsError.of`); else empty.
    """

    problems: tuple[SettingsError, ...] = ()

    @classmethod
    def of(cls, owner: str, problems: Sequence[SettingsError]) -> SettingsError:
        """Return one error for all the problems found in the settings of `owner`.

        >>> print(SettingsError.of("Recipe", [SettingsError(field="epochs", value=0, expected="a number > 0")]))
        Recipe: 1 problem
          - epochs is 0, expected a number > 0
        """
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        found = cls(f"{owner}: {count}" + "".join(f"\n  - {problem}" for problem in problems))
        found.problems = tuple(problems)
        return found


class UnknownNameError(SettingsError):
    """A name that is in no table.

    >>> raise UnknownNameError("distance", "logit", ["kl", "logits"])
    Traceback (most recent call last):
    ...
    forsaken.errors.UnknownNameError: unknown distance 'logit'; did you mean 'logits'? (known: kl, logits)
    """

    def __init__(self, kind: str, name: object, known: Iterable[str]) -> None:
        choices = sorted(known)
        close = difflib.get_close_matches(str(name), choices, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        known_names = ", ".join(choices)
        super().__init__(f"unknown {kind} {name!r}{hint} (known: {known_names})", field=kind, value=name, expected="")


class NonFiniteError(ForsakenError, ArithmeticError):
    """A loss, a logit or a gradient is NaN or infinite."""


class NothingForgottenError(ForsakenError, RuntimeError):
    """The samples were memorised, and yet no weight would change."""


class MaskError(ForsakenError, ValueError):
    """A mask that does not fit the weights, cannot be undone, or cannot be read."""


class OracleError(ForsakenError, ValueError):
    """A membership oracle that cannot be fitted, read or asked."""


class UndefinedMetricError(ForsakenError, ArithmeticError):
    """A metric whose denominator is zero for these data."""


class DataNotFoundError(ForsakenError, FileNotFoundError):
    """A dataset's file is not where it was looked for."""


class DataError(ForsakenError, ValueError):
    """A dataset's file that is damaged, or is not what its name says."""


class DownloadError(ForsakenError, OSError):
    """A download that failed; what has arrived is kept, so that a second try goes on from there."""


class OutputError(ForsakenError, OSError):
    """A result that cannot be read or written."""


class CertificateError(OutputError):
    """A certificate that is damaged, was changed, or is not signed by whom it must be."""
