"""What a job file says, typed: one frozen class a table. `forsaken.jobs.reading.read_job` reads and checks a file."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Sequence
from datetime import date, time
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from forsaken.auditing.result import Profile

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
