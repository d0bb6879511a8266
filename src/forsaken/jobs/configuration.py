"""A job file: one pydantic model for each table, the rules between keys on the models, and `read_job`.

Validators report what is wrong as `Problem`s, which name a key by its place in the file. `read_job` collects the
problems of all tables, adds the line of each key, and raises them as one `SettingsError`.
"""

from __future__ import annotations

import difflib
import json
import keyword
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, time
from pathlib import Path, PurePath
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_serializer,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from forsaken.auditing.result import Profile
from forsaken.errors import DataNotFoundError, SettingsError
from forsaken.references.table import BUDGET
from forsaken.unlearning.base import Unlearner
from forsaken.unlearning.forsaken.method import GAUSS_NEWTON, Forsaken
from forsaken.unlearning.forsaken.targets import OUT_OF_FOLD
from forsaken.unlearning.methods import METHODS, build
from forsaken.unlearning.stops import STOPS, Stop

NAME = "forsaken.toml"
LARGEST_SEED = 2**32 - 1
LEAST, MOST = 4, 4096  # models of an audit

_STATES, _WHOLE = (".safetensors", ".pt", ".pth"), (".pt2", ".skops")
_PICKLES = (".pkl", ".pickle", ".joblib", ".bin", ".ckpt")
_CONVERT = (
    'convert it once, where you trust it: safetensors.torch.save_file(model.state_dict(), "model.safetensors"), '
    'or for scikit-learn skops.io.dump(model, "model.skops")'
)
_MOST_BYTES = 2**20
_DEEPEST = 32
_LARGEST = 2**63  # TOML has no larger whole numbers
_LONGEST = 60  # characters of a value in a message
_LONGEST_CASE = 80

Where = tuple[str, ...]  # the place of a key, such as ("data", "forget", "count")


class Problem(NamedTuple):
    """Something wrong at a key of the file, or at a table.

    Attributes
    ----------
    at : tuple of str
        The place of the key; in a validator, below the table or value that is validated.
    what : str
        What is wrong, to be read after the name of the key; empty: the key "is" `value`.
    value, expected, remedy
        As in `forsaken.errors.ForsakenError`. The value is left out where it could hold ids, which may name people.
    name : str
        What the message calls the key; by default as in "[data] forget.count".
    """

    at: Where
    what: str = ""
    value: object = None
    expected: str = ""
    remedy: str = ""
    name: str = ""

    def line(self, lines: Mapping[Where, int]) -> int | None:
        """Return the line of the key, or of the table that lacks it; None where the table is missing as well."""
        return next((lines[self.at[:end]] for end in range(len(self.at), 0, -1) if self.at[:end] in lines), None)

    def error(self, line: int | None) -> SettingsError:
        """Return the problem as an error."""
        table, *keys = map(_short, self.at)
        field = f"[{table}] {'.'.join(keys)}".rstrip()
        text = f"{self.name or field} {self.what or f'is {_shown(self.value)}'}"
        return SettingsError(
            text if line is None else f"line {line}: {text}",
            field=field,
            value=self.value,
            expected=self.expected,
            remedy=self.remedy,
        )


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = value.isoformat() if isinstance(value, date | time) else repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _short(name: str) -> str:
    return _shown(name)[1:-1]


def _near(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def _refuse(*problems: Problem) -> PydanticCustomError:
    """Return the error that hands problems from a validator to `read_job`."""
    told = "; ".join(f"{'.'.join(each.at)} {each.what}, expected {each.expected}" for each in problems)
    return PydanticCustomError("problems", told, {"problems": problems})


def _check(fits: Callable[[str], bool]) -> AfterValidator:
    """Return a validator of texts; the description of the field says what is expected."""

    def checked(text: str) -> str:
        if not fits(text):
            raise ValueError("not as expected")
        return text

    return AfterValidator(checked)


def _folds(value: Any) -> Any:
    if value != "auto" and (isinstance(value, bool) or not isinstance(value, int) or not 2 <= value <= _MOST_FOLDS):
        raise ValueError("not as expected")
    return value


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def _is_function(text: str) -> bool:
    module, colon, function = text.partition(":")
    return bool(colon) and _is_name(function) and all(map(_is_name, module.split(".")))


def _is_case(text: str) -> bool:
    return len(text) <= _LONGEST_CASE and text.isprintable()


def _is_type(text: str) -> bool:
    return "." in text and all(map(_is_name, text.split(".")))


def _place(text: str) -> str:
    if "\0" in text:
        raise _refuse(Problem((), "holds a NUL character, which no path can", remedy="remove it"))
    try:
        Path(text).expanduser()
    except RuntimeError:
        what = "names the home folder of a user that is not known here"
        raise _refuse(Problem((), what, remedy="write the path in full")) from None
    return text


def _suffix(weights: str) -> str:
    """Return the suffix in small letters; the empty one means a folder."""
    return "" if weights.endswith(("/", os.sep)) else PurePath(weights).suffix.lower()


def _weights(text: str) -> str:
    suffix = _suffix(text)
    if suffix in _PICKLES:
        what = f"is {_shown(text)}, a pickle, which may carry code and is never opened"
        raise _refuse(Problem((), what, text, remedy=_CONVERT))
    if suffix and suffix not in (*_STATES, *_WHOLE):
        known = ".safetensors, .pt, .pth, .pt2, .skops or the folder of a Hugging Face model"
        raise _refuse(Problem((), "", text, f"{known} (end the name of a folder with / if it has a dot)"))
    return text


def _ids(value: list[Any] | str) -> list[Any] | str:
    """Check ids without quoting one: they may name people."""
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("not as expected")
        return _place(value)
    if not value:
        raise _refuse(Problem((), "is empty", expected="at least one id", remedy="leave it out to take every row"))
    for at, one in enumerate(value):
        if isinstance(one, bool) or not isinstance(one, int | str) or one == "":
            kind = "an empty string" if one == "" else f"a value of type {type(one).__name__}"
            raise _refuse(Problem((), f"has {kind} at position {at}", expected="whole numbers or strings"))
    return value


_A_FUNCTION = 'a function as "package.module:function"'

Text = Annotated[str, Field(strict=True), _check(lambda text: bool(text.strip()))]
PathText = Annotated[Text, AfterValidator(_place)]
WeightsPath = Annotated[PathText, AfterValidator(_weights)]
Function = Annotated[str, _check(_is_function), Field(description=_A_FUNCTION)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED, description=f"a whole number from 0 to {LARGEST_SEED}")]
Side = Annotated[int, Field(strict=True, ge=1, le=10_000)]
Limit = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Augmentation = Annotated[Literal["mirror-shift", "word-dropout"], Field(description='"mirror-shift" or "word-dropout"')]

_MOST_FOLDS = 512
_ORIGINS = ("path", "python", "of")
_SETS = ("forget", "reference", "retain", "train", "test")
_TRUE_OR_FALSE = "true or false"


class Settings(BaseModel):
    """A table of the job file. The description of a field is what an error message says was expected.

    Attributes
    ----------
    expected : str
        The same for the table itself.
    """

    expected: ClassVar[str]

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="strings")

    @model_validator(mode="after")
    def _follow_rules(self) -> Self:
        if problems := tuple(self._rules()):
            raise _refuse(*problems)
        return self

    def _rules(self) -> Iterator[Problem]:
        """Yield what is wrong between keys that are right in themselves."""
        yield from ()

    @model_serializer(mode="wrap")
    def _without_blanks(self, serialised: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialised(self).items() if value not in (None, {}, [], ())}


_SECRET = re.compile(r"pass|pwd|secret|token|key|cred|auth|salt", re.IGNORECASE)


def told(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as files and pages show them: their names, and of the values only numbers, true and false.

    A text may be a password, or an address that holds one, whatever its name is; and a number may be, by its name.

    >>> told({"classes": 10, "source": "db://anna:pw@host", "api_token": 123456})
    {'classes': 10, 'source': 'not kept', 'api_token': 'not kept'}
    """
    return {
        name: value if isinstance(value, bool | int | float) and not _SECRET.search(name) else "not kept"
        for name, value in arguments.items()
    }


class Source(Settings):
    """A set of data: a file or folder, a function, or a part of another set."""

    expected = 'a path such as "samples.parquet" or a table such as { of = "train", ids = [1, 2] }'

    path: PathText | None = Field(default=None, description='a path such as "forget.parquet"')
    python: Function | None = None
    of: str | None = Field(default=None, description='the name of another set of [data], such as "train"')
    arguments: dict[str, Any] = Field(default={}, repr=False, description="a table such as { year = 2024 }")
    ids: Annotated[list[Any] | str, AfterValidator(_ids)] | None = Field(
        default=None, repr=False, description='a list such as [1, 2], or a file with one id a line such as "ids.txt"'
    )
    count: int | None = Field(default=None, ge=1, description="a whole number >= 1")

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @field_serializer("arguments")
    def _without_secrets(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return told(arguments)

    @field_serializer("ids")
    def _count_ids(self, ids: list[Any] | str | None) -> int | str | None:
        return len(ids) if isinstance(ids, list) else ids

    def _rules(self) -> Iterator[Problem]:
        given = [name for name in _ORIGINS if getattr(self, name) is not None]
        if len(given) != 1:
            what = f"has {' and '.join(given)}" if given else "does not say where its data come from"
            yield Problem((), what, expected=f"exactly one of {', '.join(_ORIGINS)}")
        if "arguments" in self.model_fields_set and self.python is None:
            yield Problem(("arguments",), "belongs to python, which is not given", remedy="leave it out")
        if self.ids is not None and self.count is not None:
            expected = "one of them: rows by name, or so many at random"
            yield Problem((), "has ids and count", expected=expected)


class ModelSettings(Settings):
    """[model]: the trained model, and how to call it."""

    expected = "a table with the model's weights"

    weights: WeightsPath = Field(description='a path such as "model.safetensors"')
    factory: Function | None = None
    arguments: dict[str, Any] = Field(default={}, repr=False, description="a table such as { classes = 10 }")
    base: PathText | None = Field(default=None, description='a path such as "bert-base" or "config.json"')
    forward: Function | None = None
    device: str = Field(
        default="cpu", pattern=r"^(cpu|mps|cuda(:[0-9]{1,3})?)$", description='"cpu", "cuda", "cuda:1" or "mps"'
    )
    trusted: tuple[Annotated[str, Field(strict=True), _check(_is_type)], ...] = Field(
        default=(), strict=False, description='a list of types such as ["package.Type"]'
    )

    @field_serializer("arguments")
    def _without_secrets(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return told(arguments)

    def _rules(self) -> Iterator[Problem]:
        suffix = _suffix(self.weights)
        if suffix in _STATES and self.factory is None:
            builds = f"{_A_FUNCTION} that builds the network, since {suffix} files hold weights only"
            yield Problem(("factory",), "is missing", expected=builds)
        for key in ("factory", "arguments"):
            if key in self.model_fields_set and suffix not in _STATES:
                what = f"a {suffix} file" if suffix else "a Hugging Face folder"
                what = f"means nothing for {what}, which holds the whole model"
                yield Problem((key,), what, remedy="leave it out")
        if self.base is not None and suffix:
            what = "means nothing for weights that are no Hugging Face folder"
            yield Problem(("base",), what, remedy="leave it out")
        if "trusted" in self.model_fields_set and suffix != ".skops":
            what = "means nothing for weights that do not end in .skops"
            yield Problem(("trusted",), what, remedy="leave it out")


class DataSettings(Settings):
    """[data]: the sets, and how to read them."""

    expected = "a table with the samples to forget"

    forget: Source
    reference: Source | None = None
    retain: Source | None = None
    train: Source | None = None
    test: Source | None = None
    prepare: Function | None = None
    label: Text = Field(default="label", description='the name of a column, such as "label"')
    id: Text | None = Field(default=None, description='the name of a column, such as "id"')
    classes: tuple[Text, ...] | None = Field(
        default=None, strict=False, description='the names of the classes in the model\'s order, such as ["cat", "dog"]'
    )
    size: tuple[Side, Side] | None = Field(
        default=None, strict=False, description="height and width from 1 to 10000, such as [32, 32]"
    )

    @property
    def sets(self) -> dict[str, Source]:
        """The sets that are given, by name."""
        return {name: source for name in _SETS if (source := getattr(self, name)) is not None}


class MethodSettings(Settings):
    """[method]: the unlearning method by name, the seed, and the method's own settings, which the method checks."""

    expected = "a table with the settings of the method"

    model_config = ConfigDict(extra="allow")

    name: str = Field(default="forsaken", description='the name of a method, such as "forsaken"')
    seed: Seed = 0

    @property
    def settings(self) -> dict[str, Any]:
        """The method's own settings."""
        return self.model_extra or {}


class ReferenceSettings(Settings):
    """[references]: the table of what models that never saw a row say about it, and how it is made."""

    expected = "a table with settings such as folds = 4"

    file: PathText = Field(default="references.safetensors", description='a path such as "references.safetensors"')
    folds: Annotated[Any, AfterValidator(_folds)] = Field(
        default="auto", description=f'"auto", or a whole number from 2 to {_MOST_FOLDS}, such as 4'
    )
    budget: int = Field(default=BUDGET, ge=3, le=512, description="how many trainings in all, from 3 to 512, such as 8")
    group: Text | None = Field(default=None, description='the name of a column of train, such as "person"')
    views: int = Field(default=0, ge=0, le=64, description="a whole number from 0 to 64, such as 3")
    view: Augmentation | None = None
    keep_models: bool = Field(default=False, description=_TRUE_OR_FALSE)
    seed: Seed = 0


class OracleSettings(Settings):
    """[oracle]: who judges membership, and the yardstick."""

    expected = "a table with the file of an oracle, or a shadow model"

    file: PathText | None = Field(default=None, description='a path such as "oracle.json"')
    weights: WeightsPath | None = Field(default=None, description='a path such as "shadow.safetensors"')
    members: Source | None = None
    nonmembers: Source | None = None
    retrained: WeightsPath | None = Field(default=None, description='a path such as "retrained.safetensors"')

    def _rules(self) -> Iterator[Problem]:
        needed = ("weights", "members", "nonmembers")
        shadow = [key for key in needed if key in self.model_fields_set]
        if self.file is not None and shadow:
            what = f"stands beside {' and '.join(shadow)}"
            yield Problem(("file",), what, expected="either the file of an oracle or a shadow model")
        elif shadow:
            for key in needed:
                if key not in shadow:
                    together = "weights, members and nonmembers of a shadow model together"
                    yield Problem((key,), "is missing", expected=together)
        elif self.file is None and self.retrained is None:
            one = 'one of them, such as file = "oracle.json"'
            yield Problem((), "has neither file nor weights nor retrained", expected=one, remedy="or leave it out")


class RecipeSettings(Settings):
    """[audit] recipe: how the model was trained, as `forsaken.Recipe` takes it."""

    expected = "a table such as { epochs = 20, batch_size = 64, learning_rate = 1e-3 }"

    epochs: int = Field(ge=1, description="a whole number >= 1")
    batch_size: int = Field(ge=1, description="a whole number >= 1")
    learning_rate: float = Field(gt=0, allow_inf_nan=False, description="a number > 0, such as 1e-3")
    weight_decay: Limit = Field(default=0.0, description="a number >= 0")
    optimiser: Literal["adam", "sgd"] = Field(default="adam", description='"adam" or "sgd"')
    schedule: Literal["constant", "one-cycle"] = Field(default="constant", description='"constant" or "one-cycle"')
    clip: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="a number > 0, such as 1.0")
    augmentation: Augmentation | None = None


class AuditSettings(Settings):
    """[audit]: how hard `forsaken audit` tries to tell that something was forgotten."""

    expected = 'a table with a profile such as "standard"'

    profile: Profile = Field(default="quick", description='"quick", "standard" or "full"')
    models: int | None = Field(
        default=None, ge=LEAST, le=MOST, description=f"a whole number from {LEAST} to {MOST}, such as 16"
    )
    recipe: RecipeSettings | None = None
    nonmembers: Source | None = None
    neighbours: Literal["auto", "none", "mirror-shift", "word-dropout"] = Field(
        default="auto", description='"auto", "none", "mirror-shift" or "word-dropout"'
    )


class RequestSettings(Settings):
    """[request]: what the owner's own books say about the request."""

    expected = 'a table such as { case = "2026-117", due = 2026-12-01 }'

    case: Annotated[Text, _check(_is_case)] | None = Field(
        default=None, description=f'a case number of at most {_LONGEST_CASE} characters on one line, such as "2026-117"'
    )
    due: date | None = Field(default=None, description="a date without quotes, such as 2026-12-01")


class ChainSettings(Settings):
    """[chain]: the requests before this one, and when to advise retraining."""

    expected = "a table with limits such as max_drift = 2.0"

    previous: PathText | None = Field(default=None, description='a path such as "../first/certificate.json"')
    signers: list[PathText] | Literal["anyone"] = Field(
        default=[], description='a list of public keys such as ["first.pem.pub"], or "anyone"'
    )
    max_drift: Limit | None = Field(default=None, description="a number >= 0, such as 2.0")
    max_accuracy_loss: Limit | None = Field(default=None, description="a number >= 0, such as 0.02")


class OutputSettings(Settings):
    """[output]: where the results go, and which."""

    expected = "a table with the folder of the results"

    folder: PathText = Field(description='a folder such as "forgotten"')
    mask: bool = Field(default=False, description=_TRUE_OR_FALSE)
    batch_norm: Literal["recompute"] | None = Field(default=None, description='"recompute", or nothing')
    cleaned: Literal["dataset", "rows", "none"] = Field(default="dataset", description='"dataset", "rows" or "none"')
    per_record: bool = Field(default=False, description=_TRUE_OR_FALSE)
    record_key: PathText | None = Field(default=None, description='a path such as "records.key"')
    signing_key: PathText | None = Field(default=None, description='a path such as "signing.pem"')
    allow: tuple[Stop, ...] = Field(
        default=(), strict=False, description=f"a list of stops to override, of {', '.join(STOPS)}"
    )


class Job(Settings):
    """A job file. Paths in it stay as they were written; `resolve` says where they lead."""

    path: Path = Field(exclude=True)
    model: ModelSettings
    data: DataSettings
    request: RequestSettings = RequestSettings()
    method: MethodSettings = MethodSettings()
    references: ReferenceSettings | None = None
    oracle: OracleSettings | None = None
    audit: AuditSettings = Field(default=AuditSettings(), exclude=True)
    chain: ChainSettings = ChainSettings()
    output: OutputSettings

    @property
    def folder(self) -> Path:
        """The folder of the job file, to which its paths are relative."""
        return self.path.parent

    def resolve(self, text: str) -> Path:
        """Return where a path of the job file leads; "~" is the home folder."""
        return self.folder / Path(text).expanduser()

    def to_dict(self) -> dict[str, Any]:
        """Return the settings JSON-ready, as the tables of the file; of ids only their count, no text of arguments.

        [audit] is left out: it decides nothing of a run, and may be written after it.
        """
        tables: dict[str, Any] = json.loads(self.model_dump_json())
        return tables

    @property
    def sources(self) -> dict[Where, Source]:
        """Every set that the job names, by its place in the file."""
        found = {("data", name): source for name, source in self.data.sets.items()}
        others = (("oracle", "members"), ("oracle", "nonmembers"), ("audit", "nonmembers"))
        named = {(table, key): getattr(getattr(self, table), key, None) for table, key in others}
        return found | {at: source for at, source in named.items() if source is not None}

    def _rules(self) -> Iterator[Problem]:
        for at, source in self.sources.items():
            if source.of is not None:
                yield from self._broken_origin(at, source.of)
        yield from self._broken_references()
        for key in ("weights", "retrained"):
            value = getattr(self.oracle, key, None)
            if value is not None and _suffix(value) in _STATES and self.model.factory is None:
                what = f"is {_shown(value)}, which needs the factory of [model]"
                yield Problem(("oracle", key), what, value, remedy=f"give {_A_FUNCTION} there")
        method = METHODS.get(self.method.name)
        if self.output.mask and method is not None and not method.keeps_mask:
            what = f"is true, but {self.method.name} has no mask"
            yield Problem(("output", "mask"), what, remedy="leave mask out")
        if self.output.batch_norm == "recompute":
            what = 'is "recompute", which '
            if self.data.train is None:
                needs = f"{what}measures on the kept rows of train, and [data] has none"
                yield Problem(("output", "batch_norm"), needs, remedy="add train, or leave batch_norm out")
            if self.output.mask:
                needs = f"{what}changes more than weights, so no mask leads back to the old model"
                yield Problem(("output", "batch_norm"), needs, remedy="leave mask or batch_norm out")
        cleaned = self.output.cleaned
        if "cleaned" in self.output.model_fields_set and cleaned != "none" and self.data.train is None:
            what = f"is {cleaned!r}, but [data] has no train to clean"
            yield Problem(("output", "cleaned"), what, cleaned, remedy="add train, or leave cleaned out")

    def _broken_origin(self, at: Where, other: str) -> Iterator[Problem]:
        place, sets = (*at, "of"), self.data.sets
        known = [name for name in sets if at != ("data", name)]
        if other not in known:
            remedy = f"add {other} to [data]" if other in _SETS and other not in sets else _near(other, known)
            yield Problem(place, "", other, f"another set that [data] gives: {', '.join(known) or 'none yet'}", remedy)
            return
        trail = [other]  # the sets that this one is taken from, one after the other, until one repeats
        while (base := sets[trail[-1]].of) in sets and base not in trail:
            trail.append(str(base))
        strange = at == ("audit", "nonmembers")
        if "train" in trail and (strange or at == ("data", "reference")):
            yield Problem(place, f"is {other!r}, but the model was trained on those", other, "samples new to the model")
        elif strange and other in ("forget", "retain"):
            yield Problem(place, "", other, "samples that the model was never trained on")
        elif at[0] == "data" and at[1] in trail:
            way = " of ".join((at[1], *trail[: trail.index(at[1]) + 1]))
            yield Problem(place, f"leads in a circle ({way})", remedy="give one of them a path")

    def _broken_references(self) -> Iterator[Problem]:
        table, recipe = self.references, self.audit.recipe
        if table is None:
            if self.method.settings.get("target") == OUT_OF_FOLD:
                what = f"is {OUT_OF_FOLD!r}, which goes by a table of references that the job does not name"
                remedy = "add a table [references], and make its file with: forsaken references fit"
                yield Problem(("method", "target"), what, OUT_OF_FOLD, remedy=remedy)
            return
        if table.group is not None and self.data.train is None:
            what = "names a column of train, which [data] does not give"
            yield Problem(("references", "group"), what, remedy="add train, or leave group out")
        if table.views and table.view is None and (recipe is None or recipe.augmentation is None):
            what = 'what the views are, such as "mirror-shift", since [audit] recipe has no augmentation'
            yield Problem(("references", "view"), "is missing", expected=what, remedy="or leave views out")


def _model_in(annotation: Any) -> type[Settings] | None:
    """Return the table that a field holds; None for a field that holds a value."""
    kinds = (annotation, *get_args(annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Settings)), None)


TABLES = {name: kind for name, field in Job.model_fields.items() if (kind := _model_in(field.annotation))}


def method_of(job: Job, **changes: Any) -> Unlearner:
    """Return a job's method, with `changes` to its settings; where there is a [references] table, it goes by that."""
    return build(job.method.name, {**job.method.settings, **changes}, references=job.references is not None)


def target_of(job: Job) -> str | None:
    """Return where the answers on forgotten samples go; None for a method that has no such setting."""
    return getattr(method_of(job), "target", None)


def by_references(job: Job) -> bool:
    """Return whether the method goes by the table of references, and not only keeps it up to date."""
    return target_of(job) == OUT_OF_FOLD


def by_curvature(job: Job) -> bool:
    """Return whether the curvature of the training data holds the other answers, in a job without references.

    It does less damage than single samples do (decision 16), so that it is the default where there are training data.
    Any setting but those that it shares with the method by samples (`parameters`, `batch_size`) or has for itself asks
    for samples, unless the job names the optimiser.
    """
    method = method_of(job)
    if not isinstance(method, Forsaken) or job.references is not None or job.data.train is None:
        return False
    own = {name: getattr(method, name) for name in ("solver", "parameters", "batch_size")}
    return method.optimiser == GAUSS_NEWTON or method == Forsaken(**own)


def trains_again(job: Job) -> bool:
    """Return whether the method trains a new model on all of the remaining training data, as "retrain" does."""
    return "training" in METHODS[job.method.name].about.needs


def read_job(path: str | os.PathLike[str]) -> Job:
    """Read and check a job file.

    Raises
    ------
    DataNotFoundError
        There is no such file.
    SettingsError
        It cannot be read, is not TOML, or some of what it says is wrong; `problems` has an error for each problem.
        Rules between keys are checked once the keys themselves are right.
    """
    place = Path(path)
    text = _read(place)
    raw = _parse(text, place)
    problems = [_unknown((name,)) for name in raw if name not in TABLES]
    if isinstance(method := raw.get("method", {}), dict):
        problems += _method_problems(method, references="references" in raw)
    job = None
    try:
        job = Job(path=place, **{name: raw[name] for name in TABLES if name in raw})
    except ValidationError as error:
        problems += _found(error, raw)
    if problems or job is None:
        raise _collected(place, problems, text)
    return job


def _read(place: Path) -> str:
    content = b""
    try:
        there, regular = place.exists(), place.is_file()
        if regular:
            with place.open("rb") as file:
                content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"cannot read the job file {place}: {error.strerror}", remedy="check the path") from error
    if not there:
        raise DataNotFoundError(f"no job file {place}", remedy="check the path, or write one with: forsaken init")
    if not regular:
        named = place / NAME if place.is_dir() else NAME
        raise SettingsError(f"{place} is not a file", expected=f"a job file such as {named}")
    if len(content) > _MOST_BYTES:
        raise SettingsError(
            f"{place} is larger than 1 MiB",
            expected="a job file of some lines",
            remedy='put long lists of ids into a file and name it, as in ids = "ids.txt"',
        )
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{place}: line {line} is not UTF-8", remedy="save the file as UTF-8 text") from error


def _parse(text: str, place: Path) -> dict[str, Any]:
    as_written = "a file such as forsaken init writes"
    try:
        raw = tomllib.loads(text)
        large = [at for at, value in _leaves(raw) if isinstance(value, int) and not -_LARGEST <= value < _LARGEST]
    except tomllib.TOMLDecodeError as error:
        lines = 'lines such as weights = "model.safetensors"'
        raise SettingsError(f"{place} is not TOML: {error}", expected=lines) from error
    except RecursionError as error:
        raise SettingsError(f"{place} is nested too deeply", expected=as_written) from error
    except ValueError as error:  # tomllib leaks Python's own limit
        raise SettingsError(f"{place} holds a number of too many digits", expected=as_written) from error
    if large:
        what = "is a whole number of more than 64 bits"
        raise _collected(place, [Problem(at, what, expected="a smaller one") for at in large], text)
    return raw


def _leaves(value: Any, at: Where = (), depth: int = 0) -> Iterator[tuple[Where, Any]]:
    """Yield every value with the key that it stands under."""
    if depth > _DEEPEST:
        raise RecursionError
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _leaves(one, (*at, key), depth + 1)
    elif isinstance(value, list):
        for one in value:
            yield from _leaves(one, at, depth + 1)
    else:
        yield at, value


def _method_problems(table: Mapping[str, Any], *, references: bool) -> Iterator[Problem]:
    """Yield what the method finds wrong with its settings, and the keys that it does not know."""
    name = table.get("name", "forsaken")
    if not isinstance(name, str):
        return
    if name not in METHODS:
        yield Problem(("method", "name"), "", name, f"one of {', '.join(METHODS)}", _near(name, METHODS))
        return
    known = {"name", "seed", *_settings_of(name)}
    yield from (_unknown(("method", key), known) for key in table if key not in known)
    settings = {key: value for key, value in table.items() if key in known - {"name", "seed"}}
    names = settings.get("parameters", "*")
    if not names or not all(isinstance(one, str) and one for one in (names if isinstance(names, list) else [names])):
        expected = 'a pattern such as "layer4.*", or a list of them'
        yield Problem(("method", "parameters"), "", settings.pop("parameters"), expected)
    try:
        build(name, settings, references=references)
    except SettingsError as error:
        for one in error.problems or (error,):
            key = one.field if one.field in settings else METHODS[name].flat.get(one.field, ("",))[0]
            at = ("method", key) if key in settings else ("method",)
            what = one.problem.replace(repr(one.value), _shown(one.value), 1)
            yield Problem(at, what, one.value, one.expected, one.remedy, name="[method]")


def _settings_of(method: str) -> set[str]:
    return set(METHODS[method].names())


def _found(error: ValidationError, raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what pydantic found. Its own messages are never shown, since they may quote ids."""
    for one in error.errors(include_url=False):
        loc = tuple(map(str, one["loc"]))
        at, value = _walk(raw, loc)
        if one["type"] == "problems":
            yield from (problem._replace(at=(*at, *problem.at)) for problem in one["ctx"]["problems"])
        elif one["type"] == "extra_forbidden":
            yield _unknown(at)
        elif isinstance(value, Mapping) and one["type"] == "missing":  # an item of a list may be missing as well
            yield Problem(loc, "is missing", expected=_expected(loc))
        else:
            yield _wrong(at, value)


def _walk(raw: Any, loc: Where) -> tuple[Where, Any]:
    """Return as much of a place as the file itself has, and what stands there."""
    for count, part in enumerate(loc):
        if not isinstance(raw, Mapping) or part not in raw:
            return loc[:count], raw
        raw = raw[part]
    return loc, raw


def _field(at: Where) -> FieldInfo:
    fields = Job.model_fields
    for part in at[:-1]:
        fields = (_model_in(fields[part].annotation) or Settings).model_fields
    return fields[at[-1]]


def _expected(at: Where) -> str:
    """Return the description of a field, of its type, or of the table that it holds."""
    field = _field(at)
    types = [each for kind in get_args(field.annotation) for each in get_args(kind) if isinstance(each, FieldInfo)]
    found = next((each.description for each in (field, *types) if each.description), None)
    return found or (_model_in(field.annotation) or Settings).expected


def _wrong(at: Where, value: object) -> Problem:
    may_hold_ids = isinstance(value, dict | list) and (len(at) != 2 or _model_in(_field(at).annotation) is not None)
    if at[-1] not in ("ids", "arguments") and not may_hold_ids:
        return Problem(at, "", value, _expected(at))
    kind = "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else None
    return Problem(at, f"is {kind or f'a value of type {type(value).__name__}'}", expected=_expected(at))


def _unknown(at: Where, known: Iterable[str] | None = None) -> Problem:
    """Return the problem of a key or table that nobody knows, with the table that it belongs to, or one like it."""
    if known is None:
        known = TABLES if len(at) == 1 else (_model_in(_field(at[:-1]).annotation) or Settings).model_fields
    keys = {name: set(kind.model_fields) for name, kind in TABLES.items()}
    keys["method"].update(*map(_settings_of, METHODS))
    homes = [f"[{name}]" for name in TABLES if at[-1] in keys[name] and (name != at[0] or len(at) > 2)]
    if at[0] == "method":
        homes += [f"the method {name}" for name in METHODS if at[-1] in _settings_of(name)][:3]
    remedy = f"the key belongs to {' or '.join(homes)}" if homes else _near(at[-1], known)
    return Problem(at, "is unknown", expected=f"one of {', '.join(sorted(known))}", remedy=remedy)


def _collected(place: Path, problems: Iterable[Problem], text: str) -> SettingsError:
    """Return one error for all problems, in the order of their lines; what is missing and has no line comes last."""
    lines = _lines(text)
    ordered = sorted(problems, key=lambda problem: problem.line(lines) or math.inf)
    errors = [problem.error(problem.line(lines)) for problem in ordered]
    return SettingsError.of(str(place), list({str(error): error for error in errors}.values()))


_WORD = r"""(?:[A-Za-z0-9_-]+|"(?:\\.|[^"\\])*"|'[^']*')"""
_WORDS = rf"{_WORD}(?:[ \t]*\.[ \t]*{_WORD})*"
_KEY = re.compile(rf"[ \t]*(?:\[\[?[ \t]*({_WORDS})[ \t]*\]\]?[ \t]*(?:#|$)|({_WORDS})[ \t]*=)")
_LONG_TEXT = re.compile(r'"{3}.*?"{3}|\'{3}.*?\'{3}', re.DOTALL)


def _lines(text: str) -> dict[Where, int]:
    r"""Return the line, counted from 1, of every table and of every key that begins a line of TOML text.

    >>> _lines('[model]\nweights = "a"\n[data]\nforget = { of = "train" }\n')[("data", "forget")]
    4
    """
    found: dict[Where, int] = {}
    table: Where = ()
    blank = _LONG_TEXT.sub(lambda match: "\n" * match[0].count("\n"), text)
    for number, line in enumerate(blank.split("\n"), 1):
        if match := _KEY.match(line):
            path = tuple(word.strip("\"'") for word in re.findall(_WORD, match[1] or match[2]))
            if match[1]:
                table = path
            else:
                path = (*table, *path)
            for end in range(1, len(path) + 1):
                found.setdefault(path[:end], number)
    return found
