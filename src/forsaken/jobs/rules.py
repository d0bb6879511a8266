"""What must hold between the keys of a job file, beyond the type of each."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from forsaken.errors import SettingsError, UnknownNameError
from forsaken.jobs.lines import Where
from forsaken.jobs.problems import Problem, label, missing, settings_of, shown, unknown, wrong
from forsaken.jobs.settings import ORIGINS, SETS, SOURCES, origin_problem
from forsaken.unlearning.forsaken.aims import OUT_OF_FOLD
from forsaken.unlearning.methods import METHODS, build

_STATES, _WHOLE = (".safetensors", ".pt", ".pth"), (".pt2", ".skops")
_PICKLES = (".pkl", ".pickle", ".joblib", ".bin", ".ckpt")
_KNOWN = ".safetensors, .pt, .pth, .pt2, .skops or the folder of a Hugging Face model"
_FACTORY = 'a function that builds the network, as "package.module:function"'
_SHADOW = ("weights", "members", "nonmembers")
_STRANGERS = ("audit", "nonmembers")
_NEW = {("data", "reference"): "references", _STRANGERS: "nonmembers"}
_CONVERT = (
    'convert it once, where you trust it: safetensors.torch.save_file(model.state_dict(), "model.safetensors"), '
    'or for scikit-learn skops.io.dump(model, "model.skops")'
)


class Given:
    """What the file says, less the values that were found wrong already."""

    def __init__(self, raw: Mapping[str, Any], wrong_at: Collection[Where]) -> None:
        self.raw = raw
        self.wrong_at = wrong_at

    def value(self, *at: str) -> Any:
        """Return what stands at a place, right or wrong; None where nothing does."""
        value: Any = self.raw
        for part in at:
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def table(self, *at: str) -> dict[str, Any]:
        """Return the table at a place, empty where there is none; a set that is a plain path counts as one."""
        value = self.value(*at)
        if isinstance(value, str):
            return {"path": value} if at in SOURCES else {}
        return value if isinstance(value, dict) else {}

    def has(self, *at: str) -> bool:
        """Return whether a key is there, right or wrong."""
        return at[-1] in self.table(*at[:-1])

    def get(self, *at: str) -> Any:
        """Return a value that is right in itself, or None."""
        return None if at in self.wrong_at else self.table(*at[:-1]).get(at[-1])


def broken_rules(given: Given) -> list[Problem]:
    """Return every rule between keys that a file breaks."""
    return [
        *_model(given),
        *_sets(given),
        *_method(given),
        *_references(given),
        *_oracle(given),
        *_output(given),
    ]


def _model(given: Given) -> Iterator[Problem]:
    weights = given.get("model", "weights")
    if weights is None:
        return
    yield from _suffix(("model", "weights"), weights)
    suffix = _suffix_of(weights)
    if suffix in _STATES and not given.has("model", "factory"):
        yield missing(("model", "factory"), f"{_FACTORY}, since {suffix} files hold weights only")
    for key in ("factory", "arguments") if suffix in (*_WHOLE, "") else ():
        if given.has("model", key):
            what = f"a {suffix} file" if suffix else "a Hugging Face folder"
            yield Problem(
                ("model", key), f"[model] {key} means nothing for {what}, which holds the whole model; leave it out"
            )
    if given.get("model", "trusted") is not None and suffix in (*_STATES, ".pt2", ""):
        yield Problem(
            ("model", "trusted"), "[model] trusted means nothing for weights that do not end in .skops; leave it out"
        )


def _suffix_of(weights: str) -> str:
    """Return the suffix in small letters; the empty one means a folder."""
    return "" if weights.endswith(("/", os.sep)) else PurePath(weights).suffix.lower()


def _suffix(at: Where, weights: str) -> Iterator[Problem]:
    suffix = _suffix_of(weights)
    if suffix in _PICKLES:
        yield Problem(
            at, f"{label(at)} is {shown(weights)}, a pickle, which may carry code and is never opened; {_CONVERT}"
        )
    elif suffix and suffix not in (*_STATES, *_WHOLE):
        yield wrong(at, weights, f"{_KNOWN} (end the name of a folder with / if it has a dot)")


def _sets(given: Given) -> Iterator[Problem]:
    for at in SOURCES:
        if isinstance(given.value(*at), str | dict):
            yield from _source(given, at)


def _source(given: Given, at: Where) -> Iterator[Problem]:
    keys = given.table(*at)
    if problem := origin_problem([name for name in ORIGINS if name in keys]):
        yield Problem(at, f"{label(at)} {problem}")
    if "arguments" in keys and "python" not in keys:
        yield Problem((*at, "arguments"), f"{label(at)}.arguments belongs to python, which is not given; leave it out")
    if "ids" in keys and "count" in keys:
        yield Problem(
            (*at, "count"), f"{label(at)} has ids and count, expected one of them: rows by name, or so many at random"
        )
    other = given.get(*at, "of")
    if other is None:
        return
    place = (*at, "of")
    sets = [name for name in SETS if name in given.table("data")]
    if at == ("data", other):
        yield Problem(place, f"{label(place)} names the set itself, expected another set of [data]")
    elif other in SETS and other not in sets:
        yield Problem(
            place, f"{label(place)} is {other!r}, which [data] does not give; add it (given: {', '.join(sets)})"
        )
    elif other not in SETS:
        yield Problem(place, f"{label(place)}: {_no_such('set', other, SETS)}")
    elif at in _NEW and "train" in (other, *_trail(given, other)):
        yield Problem(
            place, f"{label(place)} is {other!r}, but the model was trained on those, and {_NEW[at]} must be new to it"
        )
    elif at == _STRANGERS and other in ("forget", "retain"):
        yield Problem(place, f"{label(place)} is {other!r}, expected samples that the model was never trained on")
    elif at[0] == "data" and at[1] in (circle := _trail(given, at[1])):
        way = " of ".join((at[1], *circle[: circle.index(at[1]) + 1]))
        yield Problem(place, f"{label(place)} leads in a circle ({way}); give one of them a path")


def _no_such(kind: str, name: str, known: Iterable[str]) -> str:
    return str(UnknownNameError(kind, name, known)).replace(repr(name), shown(name), 1)


def _trail(given: Given, start: str) -> list[str]:
    """Return the sets that `start` is drawn from, one after the other, until one repeats."""
    trail: list[str] = []
    name = given.get("data", start, "of")
    while isinstance(name, str) and name not in trail:
        trail.append(name)
        name = given.get("data", name, "of")
    return trail


def _method(given: Given) -> Iterator[Problem]:
    table = given.table("method")
    name = given.get("method", "name") if "name" in table else "forsaken"
    if name is None:
        return
    if name not in METHODS:
        yield Problem(("method", "name"), f"[method] {_no_such('method', name, METHODS)}")
        return
    known = settings_of(name)
    settings = {key: value for key, value in table.items() if key not in ("name", "seed")}
    for key in settings:
        if key not in known:
            yield unknown(("method", key), {*known, "name", "seed"})
    settings = {key: value for key, value in settings.items() if key in known}
    names = settings.get("parameters", "*")
    if not names or not all(isinstance(one, str) and one for one in (names if isinstance(names, list) else [names])):
        yield wrong(
            ("method", "parameters"), settings.pop("parameters"), 'a pattern such as "layer4.*", or a list of them'
        )
    try:
        build(name, settings, references=given.has("references"))
    except SettingsError as error:
        yield from _of_method(str(error), settings)


def _references(given: Given) -> Iterator[Problem]:
    there = given.has("references")
    if given.get("method", "target") == OUT_OF_FOLD and not there:
        yield Problem(
            ("method", "target"),
            f"[method] target is {OUT_OF_FOLD!r}, which goes by a table of references that the job does not name; add "
            "a table [references], and make its file with: forsaken references fit",
        )
    if there and given.has("references", "group") and not given.has("data", "train"):
        yield Problem(
            ("references", "group"),
            "[references] group names a column of train, which [data] does not give; add train, or leave group out",
        )
    known = given.has("references", "view") or given.has("audit", "recipe", "augmentation")
    if given.get("references", "views") and not known:
        yield missing(
            ("references", "view"),
            'what the views are, such as "mirror-shift", since [audit] recipe has no augmentation; or leave views out',
        )


def _of_method(text: str, settings: Mapping[str, Any]) -> Iterator[Problem]:
    """Tell the problems of a method apart; each names its setting first."""
    for problem in text.split("\n  - ")[1:] or [text]:
        key = next((word for word in re.findall(r"\w+", problem) if word in settings), None)
        if key is None:
            yield Problem(("method",), f"[method] {problem}")
        else:
            yield Problem(("method", key), f"[method] {problem.replace(repr(settings[key]), shown(settings[key]), 1)}")


def _oracle(given: Given) -> Iterator[Problem]:
    if not given.has("oracle") or given.get("oracle") is None:
        return
    keys = given.table("oracle")
    shadow = [key for key in _SHADOW if key in keys]
    if "file" in keys and shadow:
        yield Problem(
            ("oracle", "file"),
            f"[oracle] has file and {' and '.join(shadow)}, expected either a file or a shadow model",
        )
    elif shadow:
        for key in _SHADOW:
            if key not in keys:
                yield missing(("oracle", key), "weights, members and nonmembers of a shadow model together")
    elif not {"file", "retrained"} & set(keys):
        yield Problem(
            ("oracle",),
            '[oracle] has neither file nor weights nor retrained, expected one of them, such as file = "oracle.json"; '
            "or leave the table out",
        )
    for key in ("weights", "retrained"):
        value = given.get("oracle", key)
        if value is not None:
            yield from _suffix(("oracle", key), value)
            if _suffix_of(value) in _STATES and not given.has("model", "factory"):
                yield Problem(
                    ("oracle", key),
                    f"[oracle] {key} is {shown(value)}, which needs the factory of [model]; give {_FACTORY}",
                )


def _output(given: Given) -> Iterator[Problem]:
    name = given.get("method", "name") or "forsaken"
    if given.get("output", "mask") is True and name in METHODS and not METHODS[name].keeps_mask:
        yield Problem(("output", "mask"), f"[output] mask is true, but {name} has no mask; leave mask out")
    cleaned = given.get("output", "cleaned")
    if cleaned not in (None, "none") and not given.has("data", "train"):
        yield Problem(
            ("output", "cleaned"),
            f"[output] cleaned is {shown(cleaned)}, but [data] has no train to clean; add train, or leave cleaned out",
        )
