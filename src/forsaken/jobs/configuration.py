"""What a job file says, typed and checked: one frozen class a table. `read_job` reads a file."""

from __future__ import annotations

import dataclasses
import difflib
import keyword
import math
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from forsaken.auditing.result import Profile
from forsaken.errors import DataNotFoundError, SettingsError, UnknownNameError
from forsaken.unlearning.base import Unlearner
from forsaken.unlearning.forsaken.aims import OUT_OF_FOLD
from forsaken.unlearning.methods import METHODS, build

NAME = "forsaken.toml"
LARGEST_SEED = 2**32 - 1
LEAST, MOST = 4, 4096  # models of an audit
FEWEST_FOLDS, MOST_FOLDS, MOST_VIEWS = 2, 64, 64
_DEVICE = re.compile(r"cpu|mps|cuda(:[0-9]{1,3})?")


def _refusal(problem: str) -> PydanticCustomError:
    """Return an error in house words, that is shown as it stands after the name of the key."""
    return PydanticCustomError("house", "{problem}", {"problem": problem})


def _place(text: str) -> str:
    if not text.strip():
        raise ValueError("empty")
    if "\0" in text:
        raise _refusal("holds a NUL character, which no path can; remove it")
    try:
        Path(text).expanduser()
    except RuntimeError:
        raise _refusal("names the home folder of a user that is not known here; write the path in full") from None
    return text


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def _function(text: str) -> str:
    module, colon, function = text.partition(":")
    if not colon or not _is_name(function) or not all(map(_is_name, module.split("."))):
        raise ValueError("not a function")
    return text


def _type(text: str) -> str:
    parts = text.split(".")
    if len(parts) < 2 or not all(map(_is_name, parts)):
        raise ValueError("not a type")
    return text


def _device(text: str) -> str:
    if not _DEVICE.fullmatch(text):
        raise ValueError("not a device")
    return text


def _column(text: str) -> str:
    if not text:
        raise ValueError("empty")
    return text


def _ids(value: Any) -> Any:
    """Check ids without ever quoting one: they may name people."""
    if isinstance(value, str):
        return _place(value)
    for at, one in enumerate(value):
        if isinstance(one, bool) or not isinstance(one, int | str) or one == "":
            kind = "an empty string" if one == "" else f"a value of type {type(one).__name__}"
            raise _refusal(f"has {kind} at position {at}, expected whole numbers or strings")
    if not value:
        raise _refusal("is empty, expected at least one id; leave it out to take every row")
    return value


PathText = Annotated[str, AfterValidator(_place)]
Function = Annotated[str, AfterValidator(_function)]
Column = Annotated[str, AfterValidator(_column)]
Side = Annotated[int, Field(strict=True, ge=1, le=10_000)]
Limit = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Augmentation = Literal["mirror-shift", "word-dropout"]

ORIGINS = ("path", "python", "of")
A_SET = 'a path such as "forget.parquet" or a table such as { of = "train", ids = [1, 2] }'
_A_FUNCTION = 'a function as "package.module:function"'
_AN_AUGMENTATION = '"mirror-shift" or "word-dropout"'


class Settings(BaseModel):
    """A table of the job file. The description of a field is what an error message says was expected."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Source(Settings):
    """A set of data: a file or folder, a function, or a part of another set; read by `forsaken.jobs.data`."""

    path: PathText | None = Field(default=None, description='a path such as "forget.parquet"')
    python: Function | None = Field(default=None, description=_A_FUNCTION)
    of: str | None = Field(default=None, description='the name of another set of [data], such as "train"')
    arguments: dict[str, Any] = Field(default={}, description="a table such as { year = 2024 }")
    ids: Annotated[list[Any] | str, AfterValidator(_ids)] | None = Field(
        default=None, repr=False, description='a list such as [1, 2], or a file with one id a line such as "ids.txt"'
    )
    count: int | None = Field(default=None, ge=1, description="a whole number >= 1")

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _has_one_origin(self) -> Self:
        if problem := origin_problem([name for name in ORIGINS if getattr(self, name) is not None]):
            raise _refusal(problem)
        return self

    @property
    def origin(self) -> str:
        """Which of "path", "python" and "of" says where the data come from."""
        return next(name for name in ORIGINS if getattr(self, name) is not None)


def origin_problem(given: Sequence[str]) -> str | None:
    """Return what is wrong with a set that has these of path, python and of; None if nothing is."""
    if len(given) == 1:
        return None
    found = f"has {' and '.join(given)}" if given else "does not say where its data come from"
    return f"{found}, expected exactly one of {', '.join(ORIGINS)}"


class ModelSettings(Settings):
    """[model]: the trained model, and how to call it."""

    weights: PathText = Field(description='a path such as "model.safetensors"')
    factory: Function | None = Field(default=None, description=_A_FUNCTION)
    arguments: dict[str, Any] = Field(default={}, description="a table such as { classes = 10 }")
    forward: Function | None = Field(default=None, description=_A_FUNCTION)
    device: Annotated[str, AfterValidator(_device)] = Field(
        default="cpu", description='"cpu", "cuda", "cuda:1" or "mps"'
    )
    trusted: tuple[Annotated[str, Field(strict=True), AfterValidator(_type)], ...] = Field(
        default=(), strict=False, description='a list of types such as ["package.Type"]'
    )


class DataSettings(Settings):
    """[data]: the sets, and how to read them."""

    forget: Source = Field(description=A_SET)
    reference: Source | None = Field(default=None, description=A_SET)
    retain: Source | None = Field(default=None, description=A_SET)
    train: Source | None = Field(default=None, description=A_SET)
    test: Source | None = Field(default=None, description=A_SET)
    prepare: Function | None = Field(default=None, description=_A_FUNCTION)
    label: Column = Field(default="label", description='the name of a column, such as "label"')
    id: Column | None = Field(default=None, description='the name of a column, such as "id"')
    classes: tuple[Annotated[str, Field(strict=True), AfterValidator(_column)], ...] | None = Field(
        default=None, strict=False, description='the names of the classes in the model\'s order, such as ["cat", "dog"]'
    )
    size: tuple[Side, Side] | None = Field(
        default=None, strict=False, description="height and width from 1 to 10000, such as [32, 32]"
    )

    @property
    def sets(self) -> dict[str, Source]:
        """The sets that are given, by name."""
        return {name: source for name in SETS if (source := getattr(self, name)) is not None}


class MethodSettings(Settings):
    """[method]: the unlearning method by name, the seed, and the method's own settings."""

    name: str = Field(default="forsaken", description='the name of a method, such as "forsaken"')
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED, description=f"a whole number from 0 to {LARGEST_SEED}")
    settings: dict[str, Any] = {}


class ReferenceSettings(Settings):
    """[references]: the table of what models that never saw a row say about it, and how it is made."""

    file: PathText = Field(default="references.safetensors", description='a path such as "references.safetensors"')
    folds: int = Field(
        default=4,
        ge=FEWEST_FOLDS,
        le=MOST_FOLDS,
        description=f"a whole number from {FEWEST_FOLDS} to {MOST_FOLDS}, such as 4",
    )
    group: Column | None = Field(default=None, description='the name of a column of train, such as "person"')
    views: int = Field(default=0, ge=0, le=MOST_VIEWS, description=f"a whole number from 0 to {MOST_VIEWS}, such as 3")
    view: Augmentation | None = Field(default=None, description=_AN_AUGMENTATION)
    keep_models: bool = Field(default=False, description="true or false")
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED, description=f"a whole number from 0 to {LARGEST_SEED}")


class OracleSettings(Settings):
    """[oracle]: who judges membership, and the yardstick."""

    file: PathText | None = Field(default=None, description='a path such as "oracle.json"')
    weights: PathText | None = Field(default=None, description='a path such as "shadow.safetensors"')
    members: Source | None = Field(default=None, description=A_SET.replace("forget", "members"))
    nonmembers: Source | None = Field(default=None, description=A_SET.replace("forget", "nonmembers"))
    retrained: PathText | None = Field(default=None, description='a path such as "retrained.safetensors"')


class RecipeSettings(Settings):
    """[audit] recipe: how the model was trained, as `forsaken.Recipe` takes it."""

    epochs: int = Field(ge=1, description="a whole number >= 1")
    batch_size: int = Field(ge=1, description="a whole number >= 1")
    learning_rate: float = Field(gt=0, allow_inf_nan=False, description="a number > 0, such as 1e-3")
    weight_decay: Limit = Field(default=0.0, description="a number >= 0")
    optimiser: Literal["adam", "sgd"] = Field(default="adam", description='"adam" or "sgd"')
    schedule: Literal["constant", "one-cycle"] = Field(default="constant", description='"constant" or "one-cycle"')
    clip: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="a number > 0, such as 1.0")
    augmentation: Augmentation | None = Field(default=None, description=_AN_AUGMENTATION)


class AuditSettings(Settings):
    """[audit]: how hard `forsaken audit` tries to tell that something was forgotten."""

    profile: Profile = Field(default="quick", description='"quick", "standard" or "full"')
    models: int | None = Field(
        default=None, ge=LEAST, le=MOST, description=f"a whole number from {LEAST} to {MOST}, such as 16"
    )
    recipe: RecipeSettings | None = Field(
        default=None, description="a table such as { epochs = 20, batch_size = 64, learning_rate = 1e-3 }"
    )
    nonmembers: Source | None = Field(default=None, description=A_SET.replace("forget", "nonmembers"))


class ChainSettings(Settings):
    """[chain]: the requests before this one, and when to advise retraining."""

    previous: PathText | None = Field(default=None, description='a path such as "../first/certificate.json"')
    max_drift: Limit | None = Field(default=None, description="a number >= 0, such as 2.0")
    max_accuracy_loss: Limit | None = Field(default=None, description="a number >= 0, such as 0.02")


class OutputSettings(Settings):
    """[output]: where the results go, and which."""

    folder: PathText = Field(description='a folder such as "forgotten"')
    mask: bool = Field(default=False, description="true or false")
    cleaned: Literal["dataset", "rows", "none"] = Field(default="dataset", description='"dataset", "rows" or "none"')
    record_key: PathText | None = Field(default=None, description='a path such as "records.key"')
    signing_key: PathText | None = Field(default=None, description='a path such as "signing.pem"')


class Job(Settings):
    """A job file. Paths in it stay as they were written; `resolve` says where they lead."""

    path: Path
    model: ModelSettings = Field(description="a table with the model's weights")
    data: DataSettings = Field(description="a table with the samples to forget")
    method: MethodSettings = Field(default=MethodSettings(), description="a table with the settings of the method")
    references: ReferenceSettings | None = Field(default=None, description="a table with settings such as folds = 4")
    oracle: OracleSettings | None = Field(
        default=None, description="a table with the file of an oracle, or a shadow model"
    )
    audit: AuditSettings = Field(default=AuditSettings(), description='a table with a profile such as "standard"')
    chain: ChainSettings = Field(default=ChainSettings(), description="a table with limits such as max_drift = 2.0")
    output: OutputSettings = Field(description="a table with the folder of the results")

    @property
    def folder(self) -> Path:
        """The folder of the job file, to which its paths are relative."""
        return self.path.parent

    def resolve(self, text: str) -> Path:
        """Return where a path of the job file leads; "~" is the home folder."""
        return self.folder / Path(text).expanduser()

    def to_dict(self) -> dict[str, Any]:
        """Return the settings JSON-ready, as the tables of the file; of ids only their count.

        [audit] is left out: it decides nothing of a run, and may be written after it.
        """
        tables = {name: plain for name in TABLES if name != "audit" and (plain := _plain(getattr(self, name)))}
        tables["method"] |= tables["method"].pop("settings", {})
        return tables


TABLES: dict[str, type[Settings]] = {
    "model": ModelSettings,
    "data": DataSettings,
    "method": MethodSettings,
    "references": ReferenceSettings,
    "oracle": OracleSettings,
    "audit": AuditSettings,
    "chain": ChainSettings,
    "output": OutputSettings,
}
SETS = ("forget", "reference", "retain", "train", "test")
SOURCES = (*(("data", name) for name in SETS), ("oracle", "members"), ("oracle", "nonmembers"), ("audit", "nonmembers"))


def _plain(value: Any) -> Any:
    if isinstance(value, Source) and isinstance(value.ids, list):
        return _plain(value.model_copy(update={"ids": None})) | {"ids": len(value.ids)}
    if isinstance(value, Settings):
        pairs = ((name, getattr(value, name)) for name in type(value).model_fields)
        return {name: _plain(one) for name, one in pairs if one not in (None, {}, ())}
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, date | time):
        return value.isoformat()
    # JSON has no NaN and no infinity.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


_PIECE = re.compile(
    r"""
      (?P<comment> \#[^\n]* )
    | (?P<long> \"{3} (?:\\.|[^\\])*? \"{3,5} | '{3} .*? '{3,5} )
    | (?P<quoted> \" (?:\\.|[^"\\\n])* \" | '[^'\n]*' )
    | (?P<bare> [A-Za-z0-9_-]+ )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)

Where = tuple[str, ...]


def locate(text: str) -> dict[Where, int]:
    r"""Return the line, counted from 1, of every table and key of TOML text that `tomllib` accepts.

    Keys of an array of tables go by the path of the array, without an index, and the first of them counts.

    >>> locate('[model]\nweights = "a"\n[data]\nforget = { of = "train" }\n')[("data", "forget", "of")]
    4
    """
    scan = _Scan()
    for match in _PIECE.finditer(text + "\n"):
        scan.take(match.lastgroup or "", match[0])
    return scan.implied | scan.written


class _Scan:
    """Where a scan of TOML text is: in which nesting, before or after which equals sign."""

    def __init__(self) -> None:
        self.written: dict[Where, int] = {}
        self.implied: dict[Where, int] = {}  # tables that only a longer name mentions, such as a in [a.b]
        self.line = 1
        self.state = "key"  # or "header" or "value"
        self.parts: list[str] = []  # of the name that is being read
        self.path: Where = ()  # of the value that is being read
        self.nests: list[tuple[str, Where]] = [("file", ())]  # what each bracket opened, and the table it is in

    def take(self, kind: str, piece: str) -> None:
        """Read one more piece."""
        if kind in ("bare", "quoted") and self.state != "value":
            self.parts.append(piece if kind == "bare" else str(tomllib.loads(f"key = {piece}")["key"]))
        elif kind == "other":
            self._sign(piece)
        self.line += piece.count("\n")

    def _sign(self, piece: str) -> None:
        nest, table = self.nests[-1]
        if piece == "\n" and nest == "file":
            if self.state == "header":
                self.nests = [("file", self._note(()))]
            self._expect_key()
        elif self.state == "header":
            return
        elif piece == "[" and self.state == "key":
            self.state = "header"
        elif piece == "=" and self.state == "key":
            self.path = self._note(table)
            self.state = "value"
        elif piece in ("[", "{"):
            self.nests.append((piece, self.path))
            if piece == "{":
                self._expect_key()
        elif piece in ("]", "}"):
            self.path = self.nests.pop()[1]
            self.state = "value"
        elif piece == "," and nest == "{":
            self._expect_key()

    def _expect_key(self) -> None:
        self.state, self.parts = "key", []

    def _note(self, table: Where) -> Where:
        path = (*table, *self.parts)
        self.written.setdefault(path, self.line)
        for end in range(1, len(path)):
            self.implied.setdefault(path[:end], self.line)
        return path


_LONGEST = 60


@dataclass(frozen=True)
class Problem:
    """Something wrong at a place of the file."""

    at: Where
    text: str

    def line(self, lines: Mapping[Where, int]) -> int | None:
        """Return the line of the key, or of the table that lacks it; None where even that is not there."""
        return next((lines[self.at[:end]] for end in range(len(self.at), 0, -1) if self.at[:end] in lines), None)

    def told(self, lines: Mapping[Where, int]) -> str:
        """Return the problem with its line."""
        line = self.line(lines)
        return self.text if line is None else f"line {line}: {self.text}"


def label(at: Where) -> str:
    """Return how a key is called in messages.

    >>> label(("data", "forget", "count"))
    '[data] forget.count'
    """
    return f"[{at[0]}] {'.'.join(at[1:])}".rstrip()


def shown(value: object) -> str:
    """Return a value as a message shows it, of at most 60 characters."""
    if isinstance(value, bool):
        return str(value).lower()
    text = value.isoformat() if isinstance(value, date | time) else repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def short(name: str) -> str:
    """Return a name without quotes, of at most 60 characters on one line."""
    return shown(name)[1:-1]


def wrong(at: Where, value: object, expected: str) -> Problem:
    """Return the problem of a value that is not as expected."""
    return Problem(at, f"{label(at)} is {shown(value)}, expected {expected}")


def missing(at: Where, expected: str) -> Problem:
    """Return the problem of a key or table that is needed and not there."""
    return Problem(at, f"{label(at)} is missing, expected {expected}")


def unknown(at: Where, known: Iterable[str]) -> Problem:
    """Return the problem of a key that nobody knows, with the table it belongs to or the nearest that is known."""
    name, choices = at[-1], sorted(known)
    close = difflib.get_close_matches(name, choices, n=1)
    hint = ""
    if homes := homes_of(name):
        hint = f"; it belongs to {' or '.join(homes)}"
    elif close:
        hint = f"; did you mean {close[0]!r}?"
    inside = label(at[:-1]) + (":" if len(at) > 2 else "")
    return Problem(at, f"{inside} unknown key {shown(name)}{hint} (known: {', '.join(choices)})")


def keys_of(table: str) -> set[str]:
    """Return the keys that a table may have; of [method], those of any method."""
    keys = set(TABLES[table].model_fields)
    if table == "method":
        keys.remove("settings")
        keys.update(*(settings_of(name) for name in METHODS))
    return keys


def settings_of(method: str) -> set[str]:
    """Return the names of a method's own settings."""
    return {field.name for field in dataclasses.fields(METHODS[method])}  # type: ignore[arg-type]


def homes_of(key: str) -> list[str]:
    """Return the tables that may have a key, as messages name them."""
    return [f"[{table}]" for table in TABLES if key in keys_of(table)]


def strangers(raw: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of tables that nobody knows, and of keys that stand in no table."""
    found = []
    for name in raw:
        if name in TABLES:
            continue
        if isinstance(raw[name], dict):
            close = difflib.get_close_matches(name, TABLES, n=1)
            hint = f"; did you mean [{close[0]}]?" if close else ""
            known = ", ".join(f"[{table}]" for table in TABLES)
            found.append(Problem((name,), f"unknown table [{short(name)}]{hint} (known: {known})"))
        else:
            homes = homes_of(name)
            remedy = f"put it below {' or '.join(homes)}" if homes else "expected tables such as [model]"
            found.append(Problem((name,), f"key {shown(name)} stands in no table; {remedy}"))
    return found


def translate(error: ValidationError, raw: Mapping[str, Any]) -> list[Problem]:
    """Return what pydantic found, in house words; what it says itself is never shown."""
    found = []
    for one in error.errors(include_url=False):
        loc = tuple(str(part) for part in one["loc"])
        at, value = _walk(raw, loc)
        if one["type"] == "missing" and isinstance(value, Mapping):  # of a pair, a side may be missing too
            found.append(missing(loc, _expected(loc)))
            continue
        if one["type"] == "extra_forbidden":
            found.append(unknown(at, _inside(at).model_fields if len(at) > 2 else keys_of(at[0])))
        elif one["type"] == "house":
            found.append(Problem(at, f"{label(at)} {one['ctx']['problem']}"))
        elif at[-1] == "ids" or (isinstance(value, dict | list) and (len(at) != 2 or at in SOURCES)):
            # Such a value may be ids or hold them, and ids may name people.
            found.append(Problem(at, f"{label(at)} is {_kind(value)}, expected {_expected(at)}"))
        else:
            found.append(wrong(at, value, _expected(at)))
    return found


def _walk(raw: Any, loc: Where) -> tuple[Where, Any]:
    """Return as much of a place as the file itself has, and what stands there."""
    at: Where = ()
    for part in loc:
        if not isinstance(raw, Mapping) or part not in raw or len(at) == 3:
            break
        raw, at = raw[part], (*at, part)
    return at, raw


def _kind(value: object) -> str:
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return f"a value of type {type(value).__name__}"


def _expected(at: Where) -> str:
    fields = (Job, TABLES[at[0]], _inside(at))[len(at) - 1].model_fields
    return fields[at[-1]].description or "another value"


def _inside(at: Where) -> type[Settings]:
    """Return what a table within a table is: a set, but for the recipe."""
    return RecipeSettings if at[:2] == ("audit", "recipe") else Source


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


MOST_BYTES = 2**20
_LARGEST = 2**63  # TOML has no larger whole numbers
_DEEPEST = 32
_DEEP = "is nested too deeply"
_MODEL_FILE = "expected a file such as forsaken init writes"


def read_job(path: str | os.PathLike[str]) -> Job:
    """Read and check a job file.

    Raises
    ------
    DataNotFoundError
        There is no such file.
    SettingsError
        It cannot be read, is not TOML, or some of what it says is wrong; the message lists every problem.
    """
    place = Path(path)
    text = _read(place)
    raw = _parse(text, place)
    problems = strangers(raw)
    tables = {name: raw[name] for name in TABLES if name in raw}
    if isinstance(method := tables.get("method"), dict):
        own = {key: value for key, value in method.items() if key not in ("name", "seed")}
        tables["method"] = {key: value for key, value in method.items() if key not in own} | {"settings": own}
    job = None
    try:
        job = Job.model_validate({"path": place, **tables})
    except ValidationError as error:
        problems += translate(error, raw)
    problems += broken_rules(Given(raw, {problem.at for problem in problems}))
    if problems or job is None:
        raise SettingsError(_listed(place, problems, locate(text)))
    return job


def _read(place: Path) -> str:
    try:
        if place.is_dir():
            raise SettingsError(f"{place} is a folder, expected a job file such as {place / NAME}")
        if not place.exists():
            raise DataNotFoundError(f"no job file {place}; check the path, or write one with: forsaken init")
        if not place.is_file():
            raise SettingsError(f"{place} is not a regular file, expected a job file such as {NAME}")
        with place.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        if isinstance(error, DataNotFoundError):
            raise
        raise SettingsError(f"cannot read the job file {place}: {error.strerror}; check the path") from error
    if len(content) > MOST_BYTES:
        raise SettingsError(
            f"{place} is larger than 1 MiB, expected a job file of some lines; put long lists of ids into a file "
            'and name it, as in ids = "ids.txt"'
        )
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{place}: line {line} is not UTF-8; save the file as UTF-8 text") from error


def _parse(text: str, place: Path) -> dict[str, Any]:
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(
            f'{place} is not TOML: {error}; expected lines such as weights = "model.safetensors"'
        ) from error
    except (ValueError, RecursionError) as error:  # tomllib leaks both: numbers of many digits, deep nesting
        what = _DEEP if isinstance(error, RecursionError) else "holds a number of too many digits"
        raise SettingsError(f"{place} {what}; {_MODEL_FILE}") from error
    leaves = list(_leaves(raw))
    if any(len(at) > _DEEPEST for at, _ in leaves):
        raise SettingsError(f"{place} {_DEEP}; {_MODEL_FILE}")
    large = [at for at, value in leaves if isinstance(value, int) and not -_LARGEST <= value < _LARGEST]
    if large:
        words = "is a whole number of more than 64 bits, expected a smaller one"
        problems = [Problem(at, f"{short('.'.join(at))} {words}") for at in large]
        raise SettingsError(_listed(place, problems, locate(text)))
    return raw


def _leaves(raw: dict[str, Any]) -> Iterator[tuple[Where, Any]]:
    """Yield every value with its place, those of lists too; what is nested too deeply is not entered."""
    waiting: list[tuple[Where, Any]] = [((), raw)]
    while waiting:
        at, value = waiting.pop()
        if isinstance(value, dict) and len(at) <= _DEEPEST:
            waiting += [((*at, key), one) for key, one in value.items()]
        elif isinstance(value, list):
            waiting += [(at, one) for one in value]
        else:
            yield at, value


def _listed(place: Path, problems: list[Problem], lines: dict[Where, int]) -> str:
    # What has no line is missing, and comes last.
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: problem.line(lines) or math.inf)
    count = "1 problem" if len(ordered) == 1 else f"{len(ordered)} problems"
    return f"{place}: {count}" + "".join(f"\n  - {problem.told(lines)}" for problem in ordered)


def method_of(job: Job, **changes: Any) -> Unlearner:
    """Return a job's method, with `changes` to its settings; where there is a [references] table, it goes by that."""
    return build(job.method.name, {**job.method.settings, **changes}, references=job.references is not None)


def target_of(job: Job) -> str | None:
    """Return where the answers on forgotten samples go; None for a method that has no such setting."""
    return getattr(method_of(job), "target", None)


def by_references(job: Job) -> bool:
    """Return whether the method goes by the table of references, and not only keeps it up to date."""
    return target_of(job) == OUT_OF_FOLD
