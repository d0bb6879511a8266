"""A local Hugging Face folder with a sequence-classification model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forsaken.data.records import Records
from forsaken.errors import InputError, ModelError
from forsaken.jobs.formats.base import Checkpoint, Format

_CONFIG = "config.json"
_WEIGHTS = (".safetensors", ".safetensors.index.json")
_TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json")
_BESIDES = ("*.json", "*.txt", "*.model")  # tokenizers and notes; weights are written anew


class HuggingFaceFolder(Format):
    """A folder that `save_pretrained` wrote: read without the network and without code of its own."""

    name = "hugging face folder"

    def __init__(self, checkpoint: Checkpoint) -> None:
        folder = checkpoint.weights
        self._folder = folder
        if not (folder / _CONFIG).is_file():
            raise ModelError(f"{folder} has no {_CONFIG}, expected a folder that model.save_pretrained wrote")
        if not any(path.name.endswith(_WEIGHTS) for path in folder.iterdir()):
            raise ModelError(
                f"{folder} holds no .safetensors file; older formats can carry code: save it anew with "
                "model.save_pretrained(folder, safe_serialization=True)"
            )
        _refuse_code(folder)
        transformers = _library()
        try:
            self.model, told = transformers.AutoModelForSequenceClassification.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
        except Exception as error:  # a damaged folder may raise anything
            text = str(error).strip().splitlines()
            raise ModelError(
                f"{folder} cannot be read as a sequence-classification model ({type(error).__name__}"
                f"{f': {text[0][:200]}' if text else ''}); expected a folder that model.save_pretrained wrote"
            ) from error
        absent = sorted(str(name) for name in (*told["missing_keys"], *told["mismatched_keys"]))
        if absent:
            raise ModelError(
                f"{folder} lacks {len(absent)} of the model's weights ({', '.join(absent[:3])}), which would be made "
                "up; expected a trained sequence-classification model, with its head"
            )
        names = self.model.config.id2label
        self.classes = np.array([str(names.get(at, at)) for at in range(len(names))], dtype=object)

    def write(self, model: Any, goal: Path) -> None:
        """Write the weights with the configuration and tokenizer of the original."""
        goal.mkdir()
        model.save_pretrained(goal)
        for pattern in _BESIDES:
            for path in sorted(self._folder.glob(pattern)):
                plain = path.is_file() and not path.is_symlink() and not path.name.endswith(_WEIGHTS)
                if plain and not (goal / path.name).exists():
                    shutil.copyfile(path, goal / path.name)

    def prepare(self, parts: Sequence[Records]) -> list[Any] | None:
        """Return the tokens of texts, padded to the longest of all sets."""
        kinds = {records.kind for records in parts}
        if kinds != {"text"}:
            raise InputError(f"the model takes text, but records are {', '.join(sorted(kinds))}; give a column 'text'")
        tokenizer = self._tokenizer()
        longest = min(int(tokenizer.model_max_length), self._positions())
        texts = [text for records in parts for text in records.content.tolist()]
        lengths = [len(tokens) for tokens in tokenizer(texts, truncation=True, max_length=longest)["input_ids"]]
        settings = {"padding": "max_length", "truncation": True, "max_length": max(lengths), "return_tensors": "pt"}
        return [dict(tokenizer(records.content.tolist(), **settings)) for records in parts]

    def _tokenizer(self) -> Any:
        if not any((self._folder / name).is_file() for name in _TOKENIZERS) and not list(self._folder.glob("*.model")):
            raise ModelError(
                f"{self._folder} has no tokenizer; save it there with tokenizer.save_pretrained(folder), or name a "
                "function with prepare ="
            )
        try:
            tokenizer = _library().AutoTokenizer.from_pretrained(
                self._folder, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # a damaged file may raise anything
            raise ModelError(
                f"{self._folder} has no tokenizer that can be read ({type(error).__name__}); save it there with "
                "tokenizer.save_pretrained(folder), or name a function with prepare ="
            ) from error
        return tokenizer

    def _positions(self) -> int:
        return int(getattr(self.model.config, "max_position_embeddings", None) or 512)


def _refuse_code(folder: Path) -> None:
    try:
        config = json.loads((folder / _CONFIG).read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder / _CONFIG} is not JSON; get the folder again") from error
    if isinstance(config, dict) and "auto_map" in config:
        raise ModelError(
            f"{folder} needs code of its own (auto_map in {_CONFIG}), which is not run; use a factory and safetensors"
        )


def _library() -> Any:
    try:
        import transformers  # noqa: PLC0415 (optional, and slow to import)
    except ImportError as error:
        raise ModelError(
            "a Hugging Face folder needs transformers; install it with: pip install transformers"
        ) from error
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # ours are shown
    return transformers
