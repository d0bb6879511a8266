"""Remedies in the words of a job file: `forsaken.audit` names its own arguments, which nobody who wrote a job knows."""

from __future__ import annotations

import re

# What a remedy of the audit says, and which key of a job file it means; tried in this order.
_KEYS = (
    (r"oracle=ShadowOracle\.fit\([^)]*\)", "[oracle] in the job file"),
    (r"oracle=", "[oracle]"),
    (r"retrained=", "[oracle] retrained"),
    (r"models=(\d+)", r"[audit] models = \1"),
    (r"models=", "[audit] models"),
    (r"training=forsaken\.Training\((?:[^()]|\([^)]*\))*\)", "[audit] recipe"),
    (r", or a function \(samples, seed\) -> model", ""),
    (r", or a training function that [^;]*", ""),
    (r"training=", "[audit] recipe"),
    (r", and retain=\(inputs, labels\) for those that the method used", ""),
    (r"kept=\(inputs, labels\)", "[data] train with labels"),
    (r"kept=", "[data] train"),
    (r"nonmembers=\(inputs, labels\)", "[audit] nonmembers with labels"),
    (r"nonmembers=", "[audit] nonmembers"),
    (r"(forget|retain|test|reference)=\(inputs, labels\)", r"[data] \1 with labels"),
    (r"(forget|retain|test|reference)=", r"[data] \1"),
)


def in_job_words(text: str) -> str:
    """Return a message of an audit with the keys of a job file in place of the arguments of `forsaken.audit`.

    Parameters
    ----------
    text : str
        A warning, or the text of an error.

    Examples
    --------
    >>> in_job_words("there is no oracle; give oracle=ShadowOracle.fit(...)")
    'there is no oracle; give [oracle] in the job file'
    >>> in_job_words("passing it shows little (models=16)")
    'passing it shows little ([audit] models = 16)'
    >>> in_job_words("give how the model was trained: training=forsaken.Training(build, forsaken.Recipe(...))")
    'give how the model was trained: [audit] recipe'
    """
    for argument, key in _KEYS:
        text = re.sub(rf"(?<![\w.]){argument}" if argument[0] != "," else argument, key, text)
    return text
