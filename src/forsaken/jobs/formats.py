"""Models of the user, read from a file: what is unlearned, how it takes records, and how it is written back.

No format unpickles anything but tensors, and none runs code that comes with a file. There is one class for each kind of
file: named tensors with a factory, exported programs, scikit-learn estimators, and Hugging Face folders.
"""

from __future__ import annotations

import copy
import io
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from forsaken._files import copy_path, create, make_folder
from forsaken._untrusted import (
    UnreadableError,
    check_zip,
    library_reading,
    parse_json,
    read_at_most,
    read_safetensors,
)
from forsaken.data.records import Records
from forsaken.errors import DataNotFoundError, InputError, ModelError, SettingsError
from forsaken.jobs.archive import checked_archive
from forsaken.jobs.code import call, find
from forsaken.jobs.configuration import Job, ModelSettings
from forsaken.models.logits import Forward, LinearModel

SAFETENSORS, STATE_DICT, PROGRAM, SKOPS = (".safetensors",), (".pt", ".pth"), (".pt2",), (".skops",)
_HALF = (torch.float16, torch.bfloat16)
_MOST_BYTES = 2**24  # of a configuration
_FEW = 4  # names that an error message lists
_CONFIG = "config.json"  # of a Hugging Face folder, as are the next three
_WEIGHTS = (".safetensors", ".safetensors.index.json")
_PROCESSOR = "preprocessor_config.json"
_TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json")
_ADAPTER, _ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # of a folder that PEFT wrote
_OFFLINE = {"local_files_only": True, "use_safetensors": True, "trust_remote_code": False}
_BESIDES = ("*.json", "*.txt", "*.model")  # tokenizers and notes; weights are written anew


class Format(ABC):
    """A model in one file format. Subclasses read it in the constructor.

    Attributes
    ----------
    name : str
        What a certificate calls the format.
    model : Module or estimator
        What is unlearned.
    forward : callable or None
        How to call it, where its output is not the logits themselves.
    classes : array or None
        The labels that the model itself knows, in the order of its logits.
    """

    name: str
    model: Any
    forward: Forward | None = None
    classes: Any = None

    @abstractmethod
    def write(self, model: Any, goal: Path) -> None:
        """Write a model of this kind to `goal`, a draft, as the original was written."""

    def prepare(self, parts: Sequence[Records]) -> list[Any] | None:  # noqa: ARG002
        """Return what the model takes for each of these sets of records; None where the format does not know."""
        return None


@contextmanager
def _reading(path: Path, what: str, expected: str, *, detail: bool = False) -> Iterator[None]:
    """Raise a `ModelError` for whatever a damaged or hostile file makes a reader raise; `detail` adds its words."""
    try:
        with library_reading():
            yield
    except UnreadableError as error:
        cause = error.__cause__
        words = str(cause).strip().splitlines() if detail and cause is not None else []
        reason = f"{error}{f': {words[0][:200]}' if words else ''}"
        raise ModelError(f"{path} cannot be read as {what} ({reason})", expected=expected) from cause or error


class TensorFile(Format):
    """A network that a factory builds, with weights from a file of named tensors."""

    def __init__(self, path: Path, factory: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        self._about: dict[str, str] | None = None
        if path.suffix.lower() in SAFETENSORS:
            self.name = "safetensors"
            wrote = "a file that safetensors.torch.save_file wrote: is it complete?"
            with _reading(path, "safetensors", wrote):
                about, tensors = read_safetensors(path)
            self._about = dict(about) or None
        else:
            self.name = "torch state dict"
            tensors = _read_state_dict(path)
        model = call(factory, "[model] factory", **arguments)
        if not isinstance(model, nn.Module):
            raise ModelError(
                f"[model] factory returned {type(model).__name__}, expected a torch.nn.Module; return the network"
            )
        if any(weight.is_meta or isinstance(weight, UninitializedParameter) for weight in model.parameters()):
            raise ModelError(
                "[model] factory returned a network whose weights are not there yet (lazy, or on the meta device); "
                "build it on the CPU and, where it is lazy, call it once"
            )
        _load(model, tensors, path)
        self._names = tuple(tensors)
        self.model = model

    def write(self, model: Any, goal: Path) -> None:
        """Write the tensors under the names that the original file has."""
        state = model.state_dict()
        tensors = {name: state[name].detach().cpu().contiguous() for name in self._names}
        if self.name == "safetensors":
            # Shared tensors are stored once; where the original kept copies of them, so does this file.
            separate = {name: tensor.clone() for name, tensor in tensors.items()}
            content = safetensors.torch.save(separate, metadata=self._about)
            with create(goal) as file:
                file.write(content)
        else:
            with create(goal) as file:
                torch.save(tensors, file)


def _read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read a state dict without unpickling anything but tensors."""
    wrote = "a file that torch.save(model.state_dict(), path) wrote: is it complete?"
    try:
        with _reading(path, "a state dict", wrote):
            check_zip(path)
            found = torch.load(path, map_location="cpu", weights_only=True)
    except ModelError as error:
        if "weights_only" not in str(error.__cause__) and "Weights only" not in str(error.__cause__):
            raise
        raise ModelError(
            f"{path} holds more than tensors, so opening it could run code, and it was not opened; where you trust "
            "its source, save the weights alone with safetensors.torch.save_file(model.state_dict(), path)"
        ) from None
    if not isinstance(found, Mapping) or not found or not all(isinstance(each, Tensor) for each in found.values()):
        keys = ", ".join(repr(key) for key in list(found)[:_FEW]) if isinstance(found, Mapping) else ""
        raise ModelError(
            f"{path} holds a {type(found).__name__}{f' with {keys}' if keys else ''}, expected named tensors alone; "
            "save the state dict by itself: torch.save(model.state_dict(), path)"
        )
    return {str(name): tensor for name, tensor in found.items()}


def _load(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    own = model.state_dict()
    shapes = [name for name in tensors if name in own and own[name].shape != tensors[name].shape]
    if shapes:
        first = shapes[0]
        raise ModelError(
            f"{path}: {first} has shape {tuple(tensors[first].shape)}, but the factory's model has "
            f"{tuple(own[first].shape)} ({len(shapes)} tensors differ); build the model that was trained"
        )
    strange = [name for name in tensors if name not in own]
    # Tied weights may be stored once: a missing name is fine where it shares the storage of one that is there.
    there = {own[name].data_ptr() for name in tensors if name in own}
    missing = [name for name in own if name not in tensors and own[name].data_ptr() not in there]
    if strange or missing:
        raise ModelError(
            f"{path} and the factory's model do not fit: {_some('missing in the file', missing)}"
            f"{'; ' if strange and missing else ''}{_some('unknown to the model', strange)}; build the model that was "
            "trained"
        )
    if any(own[name].dtype != tensors[name].dtype for name in tensors):
        model.to(_common_dtype(tensors, path))
    model.load_state_dict(dict(tensors), strict=False)


def _common_dtype(tensors: Mapping[str, Tensor], path: Path) -> torch.dtype:
    kinds = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(kinds) != 1:
        raise ModelError(
            f"{path} holds {' and '.join(sorted(map(str, kinds)))}, but the factory's model has other types; build it "
            "with the types of the file"
        )
    return kinds.pop()


def _some(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return f"{what}: {', '.join(names[:_FEW])}{more}"


class ExportedModule(nn.Module):
    """An exported program as a module. Its mode was fixed when it was exported: `train` and `eval` change nothing."""

    def __init__(self, program: Any) -> None:
        super().__init__()
        # The archive carries conditions on the inputs as text that torch would run; they are left out.
        self.program = program.module(check_guards=False)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return what the program returns."""
        return self.program(*inputs, **named)

    def train(self, mode: bool = True) -> ExportedModule:
        """Note the mode; the program itself has only one."""
        self.training = mode
        return self


_EXPORTED = (
    f"a file that torch.export.save wrote with a torch no newer than this one ({torch.__version__}): is it complete?"
)


class ProgramFile(Format):
    """A program that `torch.export.save` wrote, for any number of samples."""

    name = "torch.export"

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror}; check the path") from error
        self._bytes = checked_archive(content, path)
        program = self._load()
        if not any(parameter.requires_grad for parameter in program.parameters()):
            raise ModelError(
                f"the program {path} has no parameters that can be changed: they were made constants; export the "
                "trained module itself, with torch.export.export(model, ...)"
            )
        _refuse_fixed_batch(program, path)
        with _reading(path, "an exported program", _EXPORTED):
            self.model = ExportedModule(program)

    def write(self, model: Any, goal: Path) -> None:
        """Write the same program with the new weights."""
        program = self._load()
        new = model.program.state_dict()
        with torch.no_grad():
            for name, tensor in program.state_dict.items():
                if isinstance(tensor, Tensor):
                    tensor.copy_(new[name])
        with create(goal) as file:
            torch.export.save(program, file)

    def _load(self) -> Any:
        log = logging.getLogger("torch.export")
        before, log.disabled = log.disabled, True  # it would print a traceback over a damaged file
        try:
            with _reading(self._path, "an exported program", _EXPORTED):
                return torch.export.load(io.BytesIO(self._bytes))
        finally:
            log.disabled = before


def _refuse_fixed_batch(program: Any, path: Path) -> None:
    """Refuse a program that takes one number of samples only."""
    names = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and node.name in names and isinstance(value, Tensor) and value.dim():
            if isinstance(value.shape[0], int):
                raise ModelError(
                    f"the program {path} takes batches of exactly {value.shape[0]} samples; export it for any number: "
                    "torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))"
                )
            return


class EstimatorFile(Format):
    """An estimator; of a pipeline the last step is unlearned, and the steps before it prepare the records."""

    name = "skops"

    def __init__(self, path: Path, trusted: Sequence[str] = ()) -> None:
        self._whole = _read_skops(path, trusted)
        with _reading(path, "a fitted classifier", "parts that fit together: save the fitted one again"):
            pipeline = isinstance(self._whole, Pipeline)
            if pipeline and len(self._whole) == 0:
                raise ModelError(f"{path} holds an empty pipeline; save the fitted one")
            self._steps = self._whole[:-1] if pipeline and len(self._whole) > 1 else None
            self.model = self._whole[-1] if pipeline else self._whole
            if not isinstance(self.model, BaseEstimator):
                kind = type(self.model).__name__
                raise ModelError(f"{path} holds a {kind}, expected a fitted scikit-learn classifier")
            weight = LinearModel(self.model).weight  # says what is wrong with an estimator that cannot be unlearned
            self.classes = np.asarray(self.model.classes_)
            if self.classes.shape != (max(2, len(weight)),):
                raise ModelError(f"{path} holds an estimator whose classes do not fit its weights; save it again")

    def write(self, model: Any, goal: Path) -> None:
        """Write the estimator, in its pipeline where it came in one."""
        import skops.io  # noqa: PLC0415 (slow to import, and only this format needs it)

        whole = model
        if isinstance(self._whole, Pipeline):
            whole = copy.copy(self._whole)
            whole.steps = [*self._whole.steps[:-1], (self._whole.steps[-1][0], model)]
        with create(goal) as file:
            skops.io.dump(whole, file)

    @property
    def pipeline(self) -> Any:
        """The whole pipeline; None where the file holds a classifier alone."""
        return None if self._steps is None else self._whole

    def with_pipeline(self, whole: Any) -> EstimatorFile:
        """Return the same format with another pipeline of the same steps."""
        twin = copy.copy(self)
        twin._whole, twin._steps, twin.model = whole, whole[:-1], whole[-1]
        return twin

    def prepare(self, parts: Sequence[Records]) -> list[Any] | None:
        """Return what the pipeline's earlier steps make of the records."""
        return [self._transformed(records) for records in parts]

    def _transformed(self, records: Records) -> Any:
        content = records.content
        given = content.tolist() if records.kind == "text" else content.reshape(len(records), -1)
        if self._steps is None:
            return None if records.kind == "text" else given
        try:
            found = self._steps.transform(given)
            # Counts of words are whole numbers, which a linear layer does not multiply.
            return found.astype(self.model.coef_.dtype) if found.dtype.kind in "iub" else found
        except (ValueError, TypeError, AttributeError) as error:
            # the type alone: scikit-learn's own text may quote a value
            raise InputError(
                f"the pipeline's steps cannot transform {records.kind} records of shape {content.shape[1:]} "
                f"({type(error).__name__}); give the data that it was fitted on"
            ) from None


def _read_skops(path: Path, trusted: Sequence[str]) -> Any:
    import skops.io  # noqa: PLC0415

    wrote = "one that skops.io.dump(estimator, path) wrote with a scikit-learn of this version: is it complete?"
    with _reading(path, "a skops file", wrote):
        check_zip(path)
        unknown = [name for name in skops.io.get_untrusted_types(file=path) if name not in trusted]
        if not unknown:
            return skops.io.load(path, trusted=list(trusted))
    names = ", ".join(repr(name) for name in unknown[:5])
    raise ModelError(
        f"{path} holds types that skops does not trust, so it was not opened: {names}; where you trust them, name them "
        f"in the job file: trusted = [{names}]"
    )


class HuggingFaceFolder(Format):
    """A folder that `save_pretrained` wrote: a classifier of texts or of pictures, or a LoRA adapter of one.

    It is read without the network and without code of its own.

    Parameters
    ----------
    folder : Path
        The classifier; or an adapter that PEFT wrote, of which the weights of the adapter alone may change.
    base : Path, optional
        What the training started from: the folder of a model, or the configuration of one with random weights. An
        adapter needs the folder of the classifier that it adapts.
    """

    name = "hugging face folder"

    def __init__(self, folder: Path, base: Path | None = None) -> None:
        self._folder, self._base, self._adapter = folder, base, None
        if (folder / _ADAPTER).is_file():
            self._adapter = _adapter_settings(folder)
            self.model = self._adapted(folder)
        else:
            self.model = _read_classifier(folder)
        names = self.model.config.id2label
        self.classes = np.array([str(names.get(at, at)) for at in range(len(names))], dtype=object)

    def build(self) -> Any:
        """Return a model as it was before its training on the user's data; new weights follow torch's seed."""
        if self._base is None:
            raise ModelError(f"nothing says what {self._folder} was trained from; give base in [model]")
        if self._adapter is not None:
            return self._adapted(None)
        model = _from_base(self._base, self.model)
        ours, theirs = self.model.state_dict(), model.state_dict()
        other = [name for name in ours if name not in theirs or ours[name].shape != theirs[name].shape]
        if other or len(ours) != len(theirs):
            raise ModelError(
                f"[model] base {self._base} and {self._folder} are not of one shape "
                f"({_some('differs', other) or 'the base has more weights'}); name what the training started from"
            )
        return model.to(next(self.model.parameters()).device)

    def _adapted(self, folder: Path | None) -> Any:
        """Return the base with the adapter of `folder`, or with a new one of the same settings."""
        peft = _peft()
        if self._base is None:
            raise ModelError(
                f"{self._folder} holds an adapter alone; name the folder of the classifier that it adapts: "
                'base = "folder" in [model]'
            )
        classifier = _read_classifier(self._base)
        if folder is None:
            return peft.get_peft_model(classifier, copy.deepcopy(self._adapter))
        with _reading(folder, "a LoRA adapter", "a folder that PEFT's model.save_pretrained wrote", detail=True):
            return peft.PeftModel.from_pretrained(classifier, str(folder), is_trainable=True, local_files_only=True)

    def write(self, model: Any, goal: Path) -> None:
        """Write the weights with the configuration and tokenizer of the original."""
        make_folder(goal)
        model.save_pretrained(goal)
        for pattern in _BESIDES:
            for path in sorted(self._folder.glob(pattern)):
                plain = path.is_file() and not path.is_symlink() and not path.name.endswith(_WEIGHTS)
                if plain and not (goal / path.name).exists():
                    copy_path(path, goal / path.name)

    def prepare(self, parts: Sequence[Records]) -> list[Any] | None:
        """Return the tokens of texts, padded to the longest of all sets, or what the image processor makes of pictures.

        Pictures stay as they are where the folder has no image processor.
        """
        kinds = {records.kind for records in parts}
        if getattr(self.model, "main_input_name", "") == "pixel_values":
            return self._pictures(parts, kinds)
        if kinds != {"text"}:
            raise InputError(f"the model takes text, but records are {', '.join(sorted(kinds))}; give a column 'text'")
        tokenizer = self._tokenizer()
        longest = min(int(tokenizer.model_max_length), self._positions())
        texts = [text for records in parts for text in records.content.tolist()]
        lengths = [len(tokens) for tokens in tokenizer(texts, truncation=True, max_length=longest)["input_ids"]]
        settings = {"padding": "max_length", "truncation": True, "max_length": max(lengths), "return_tensors": "pt"}
        return [dict(tokenizer(records.content.tolist(), **settings)) for records in parts]

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is a tokenizer in the folder."""
        return any((self._folder / name).is_file() for name in _TOKENIZERS) or bool(list(self._folder.glob("*.model")))

    def _tokenizer(self) -> Any:
        if not self.has_tokenizer:
            raise ModelError(
                f"{self._folder} has no tokenizer; save it there with tokenizer.save_pretrained(folder), or name a "
                "function with prepare ="
            )
        with _reading(self._folder, "a folder with a tokenizer", "what tokenizer.save_pretrained(folder) wrote"):
            return _library().AutoTokenizer.from_pretrained(
                self._folder, local_files_only=True, trust_remote_code=False
            )

    def _pictures(self, parts: Sequence[Records], kinds: Set[str]) -> list[Any] | None:
        if kinds != {"image"}:
            raise InputError(f"the model takes pictures, but records are {', '.join(sorted(kinds))}")
        if not (self._folder / _PROCESSOR).is_file():
            return None
        with _reading(self._folder, "a folder with an image processor", "what processor.save_pretrained wrote"):
            processor = _library().AutoImageProcessor.from_pretrained(
                self._folder, local_files_only=True, trust_remote_code=False
            )
            return [processor(images=list(part.content), return_tensors="pt")["pixel_values"] for part in parts]

    def _positions(self) -> int:
        return int(getattr(self.model.config, "max_position_embeddings", None) or 512)


def _read_classifier(folder: Path) -> Any:
    """Read a classifier of texts or pictures with all of its weights."""
    if not (folder / _CONFIG).is_file():
        raise ModelError(f"{folder} has no {_CONFIG}, expected a folder that model.save_pretrained wrote")
    if not any(path.name.endswith(_WEIGHTS) for path in folder.iterdir()):
        raise ModelError(
            f"{folder} holds no .safetensors file; older formats can carry code: save it anew with "
            "model.save_pretrained(folder, safe_serialization=True)"
        )
    named = _checked_config(folder / _CONFIG).get("architectures")
    pictures = isinstance(named, list) and any("ForImageClassification" in str(name) for name in named)
    library = _library()
    kind = library.AutoModelForImageClassification if pictures else library.AutoModelForSequenceClassification
    what = "an image-classification model" if pictures else "a sequence-classification model"
    with _reading(folder, what, "a folder that model.save_pretrained wrote", detail=True):
        model, found = kind.from_pretrained(folder, output_loading_info=True, **_OFFLINE)
    absent = sorted(str(name) for name in (*found["missing_keys"], *found["mismatched_keys"]))
    if absent:
        raise ModelError(
            f"{folder} lacks {len(absent)} of the model's weights ({', '.join(absent[:3])}), which would be made "
            f"up; expected {what} that was trained, with its head"
        )
    return model


def _from_base(base: Path, like: Any) -> Any:
    """Return a model of the class and the labels of `like`, with the weights of `base` where it has some."""
    file = base / _CONFIG if base.is_dir() else base
    if not file.is_file():
        raise ModelError(f"[model] base {base} has no {_CONFIG}, expected a model's folder, or its configuration")
    _checked_config(file)
    with _reading(base, "what a model is trained from", "a folder or configuration that save_pretrained wrote"):
        config = type(like.config).from_pretrained(file.parent if base.is_dir() else file, local_files_only=True)
        config.id2label, config.label2id = dict(like.config.id2label), dict(like.config.label2id)
        if not base.is_dir() or not any(path.name.endswith(_WEIGHTS) for path in base.iterdir()):
            return type(like)(config)
        settings = {name: value for name, value in _OFFLINE.items() if name != "trust_remote_code"}
        model, found = type(like).from_pretrained(
            base, config=config, output_loading_info=True, ignore_mismatched_sizes=True, **settings
        )
    if len(found["missing_keys"]) >= len(model.state_dict()):
        raise ModelError(f"[model] base {base} has none of the model's weights; name what the training started from")
    return model


def _adapter_settings(folder: Path) -> Any:
    """Return the settings of an adapter; only LoRA is read."""
    settings = _checked_config(folder / _ADAPTER)
    if settings.get("peft_type") != "LORA":
        raise ModelError(f"{folder / _ADAPTER} is of type {settings.get('peft_type')!r}, expected a LoRA adapter")
    if not (folder / _ADAPTER_WEIGHTS).is_file():
        raise ModelError(
            f"{folder} holds no {_ADAPTER_WEIGHTS}; older formats can carry code: save it anew with "
            "model.save_pretrained(folder)"
        )
    with _reading(folder, "a LoRA adapter", "a folder that PEFT's model.save_pretrained wrote"):
        found = _peft().LoraConfig.from_pretrained(str(folder), local_files_only=True)
        found.inference_mode = False
        return found


def _peft() -> Any:
    try:
        import peft  # noqa: PLC0415 (optional, and slow to import)
    except ImportError as error:
        raise ModelError("a LoRA adapter needs peft", remedy="pip install 'forsaken[peft]'") from error
    return peft


def _checked_config(path: Path) -> dict[str, Any]:
    """Return a configuration; one that names code of its own is refused."""
    try:
        config = parse_json(read_at_most(path, _MOST_BYTES))
    except (OSError, UnreadableError) as error:
        raise ModelError(f"{path} cannot be read: {error}; get the folder again") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path} holds no table; get the folder again")
    if "auto_map" in config:
        raise ModelError(
            f"{path.parent} needs code of its own (auto_map in {path.name}), which is not run; use a factory and "
            "safetensors"
        )
    return config


def _library() -> Any:
    try:
        import transformers  # noqa: PLC0415 (optional, and slow to import)
    except ImportError as error:
        raise ModelError(
            "a Hugging Face folder needs transformers; install it with: pip install transformers"
        ) from error
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # ours are shown
    return transformers


def load_model(job: Job, weights: Path | None = None) -> Format:
    """Read the job's model, or one of the same kind from other `weights`, onto the job's device."""
    settings = job.model
    path = job.resolve(settings.weights) if weights is None else weights
    if not path.exists():
        raise DataNotFoundError(f"no weights {path}; check the path, which is relative to the job file")
    loaded = _read(path, settings, None if settings.base is None else job.resolve(settings.base))
    if settings.forward:
        loaded.forward = find(settings.forward, "[model] forward")
    _place(loaded, settings.device)
    return loaded


def _read(path: Path, settings: ModelSettings, base: Path | None) -> Format:
    suffix = path.suffix.lower()
    if path.is_dir():
        return HuggingFaceFolder(path, base)
    if suffix in PROGRAM:
        return ProgramFile(path)
    if suffix in SKOPS:
        return EstimatorFile(path, settings.trusted)
    if suffix not in (*SAFETENSORS, *STATE_DICT):
        known = ", ".join((*SAFETENSORS, *STATE_DICT, *PROGRAM, *SKOPS))
        raise ModelError(f"{path} ends in {path.suffix!r}, expected {known} or a Hugging Face folder")
    if settings.factory is None:
        raise SettingsError(f'{path} needs a factory that builds its network: factory = "package.module:function"')
    return TensorFile(path, find(settings.factory, "[model] factory"), settings.arguments)


def _place(loaded: Format, device: str) -> None:
    if device == "cpu":
        if isinstance(loaded.model, nn.Module):
            loaded.model.to("cpu")
            if any(weight.dtype in _HALF for weight in loaded.model.parameters()):
                raise ModelError(
                    'the weights are in half precision, which a CPU is not up to; set device = "cuda", or save them as '
                    "float32"
                )
        return
    if not isinstance(loaded.model, nn.Module):
        raise SettingsError(f"device is {device!r}, but a scikit-learn estimator runs on the CPU; leave device out")
    try:
        loaded.model.to(device)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(f'device is {device!r}, which is not usable here; use device = "cpu"') from error
