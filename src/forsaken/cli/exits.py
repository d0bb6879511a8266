"""The exit codes of every verb, in one table (docs/guide/verdict.md)."""

from __future__ import annotations

from enum import IntEnum

from forsaken.result import Verdict, Word


class Exit(IntEnum):
    """How a command ended."""

    DONE = 0
    BAD_INPUT = 2
    CHECK_FAILED = 3
    FAILED = 4
    NOT_SHOWN = 5
    UNMET = 6
    STOPPED = 7
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS = {
    Exit.DONE: "done; for verify: no check failed, and the certificate says: forgotten",
    Exit.BAD_INPUT: "wrong input, settings or usage; nothing was changed",
    Exit.CHECK_FAILED: "a check failed: verify found a mismatch or damage, report a changed file, datasets check a "
    "damaged file",
    Exit.FAILED: "the forgetting failed: the verdict of unlearn, of audit, of the verified certificate or of an audit "
    "beside it is failed, or an audit raised an alarm",
    Exit.NOT_SHOWN: "verify: no check failed, but the certificate says that forgetting was not shown",
    Exit.UNMET: "unlearn, audit: a --require was not met; the results were written",
    Exit.STOPPED: "unlearn: stopped before anything was written, since the accuracy would fall too far",
    Exit.INTERRUPTED: "interrupted by Ctrl-C",
    Exit.TERMINATED: "interrupted by a signal to end",
}

_OF_CERTIFICATE: dict[Word, Exit] = {"forgotten": Exit.DONE, "not shown": Exit.NOT_SHOWN, "failed": Exit.FAILED}


def of_certificate(stated: Verdict, *, passed: bool) -> Exit:
    """Return the exit code of verify: a certificate that holds is told apart by what it says about the forgetting."""
    return _OF_CERTIFICATE[stated.word] if passed else Exit.CHECK_FAILED


def of_work(verdict: Verdict, *, alarmed: bool = False, unmet: bool = False) -> Exit:
    """Return the exit code of unlearn and audit. That nothing was shown is no error unless it was required."""
    if alarmed or verdict.word == "failed":
        return Exit.FAILED
    return Exit.UNMET if unmet else Exit.DONE
