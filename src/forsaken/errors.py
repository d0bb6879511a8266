"""Everything that Forsaken raises on purpose.

Each error names the value, what was expected and what to do, and each has a standard parent, so that
``except ValueError`` keeps working for those who do not import this module.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

__all__ = [
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
    """Parent of every error that Forsaken raises on purpose."""


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

    def __init__(self, message: str, rows: Sequence[int]) -> None:
        super().__init__(message)
        self.rows = tuple(rows)


class NotHeldOutError(InputError):
    """Samples that no reference model is known to have been kept from.

    Attributes
    ----------
    rows : tuple of int
        Which of the samples.
    """

    def __init__(self, message: str, rows: Sequence[int]) -> None:
        super().__init__(message)
        self.rows = tuple(rows)


class ModelError(ForsakenError, ValueError):
    """A model that cannot be unlearned: no trainable parameter, or outputs that are not logits."""


class SettingsError(ForsakenError, ValueError):
    """One or more settings of a method are wrong; the message lists all of them."""


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
        super().__init__(f"unknown {kind} {name!r}{hint} (known: {', '.join(choices)})")


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
