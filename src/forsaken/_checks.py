"""Checks of settings that collect every problem and raise once."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable

from forsaken.errors import SettingsError, UnknownNameError


class Problems:
    """Problems found in the settings of `owner`, raised together by `report`.

    >>> found = Problems("Forsaken")
    >>> found.number("penalty", -1.0, least=0.0)
    >>> found.choice("distance", "logit", ("kl", "logits"))
    >>> found.report()
    Traceback (most recent call last):
    ...
    forsaken.errors.SettingsError: Forsaken: 2 problems
      - penalty is -1.0, expected a number >= 0
      - unknown distance 'logit'; did you mean 'logits'? (known: kl, logits)
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.found: list[SettingsError] = []

    def add(self, problem: str, *, field: str = "") -> None:
        """Note a problem in the caller's own words, and the setting that it is about."""
        self.found.append(SettingsError(problem, field=field))

    def _expect(self, name: str, value: object, expected: str) -> None:
        self.found.append(SettingsError(field=name, value=value, expected=expected))

    def number(self, name: str, value: object, *, least: float, most: float = math.inf) -> None:
        """Note unless `value` is a finite number from `least` to `most`."""
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if not fits or not least <= value <= min(most, sys.float_info.max):  # type: ignore[operator]
            within = f"from {least:g} to {most:g}" if math.isfinite(most) else f">= {least:g}"
            self._expect(name, value, f"a number {within}")

    def whole(self, name: str, value: object, *, least: int, most: int | None = None) -> None:
        """Note unless `value` is a whole number from `least` to `most`."""
        fits = isinstance(value, int) and not isinstance(value, bool)
        if not fits or value < least or (most is not None and value > most):  # type: ignore[operator]
            within = f">= {least}" if most is None else f"from {least} to {most}"
            self._expect(name, value, f"a whole number {within}")

    def choice(self, name: str, value: object, known: Iterable[str]) -> None:
        """Note unless `value` is one of `known`."""
        choices = tuple(known)
        if not isinstance(value, str) or value not in choices:
            self.found.append(UnknownNameError(name, value, choices))

    def report(self) -> None:
        """Raise all problems as one `SettingsError`, if there are any."""
        if self.found:
            raise SettingsError.of(self.owner, self.found)
