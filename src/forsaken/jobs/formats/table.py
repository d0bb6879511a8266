"""Which kind of model a job names, by the look of its file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from forsaken.errors import DataNotFoundError, ModelError, SettingsError
from forsaken.jobs.code import find
from forsaken.jobs.configuration import Job
from forsaken.jobs.formats.base import Checkpoint, Format
from forsaken.jobs.formats.estimator import SKOPS, EstimatorFile
from forsaken.jobs.formats.exported import PROGRAM, ProgramFile
from forsaken.jobs.formats.huggingface import HuggingFaceFolder
from forsaken.jobs.formats.state import SAFETENSORS, STATE_DICT, TensorFile

FORMATS: dict[tuple[str, ...], type[Format]] = {
    SAFETENSORS: TensorFile,
    STATE_DICT: TensorFile,
    PROGRAM: ProgramFile,
    SKOPS: EstimatorFile,
}

_HALF = (torch.float16, torch.bfloat16)


def load_model(job: Job, weights: Path | None = None) -> Format:
    """Read the job's model, or one of the same kind from other `weights`, onto the job's device."""
    settings = job.model
    path = job.resolve(settings.weights) if weights is None else weights
    if not path.exists():
        raise DataNotFoundError(f"no weights {path}; check the path, which is relative to the job file")
    checkpoint = Checkpoint(
        path,
        find(settings.factory, "[model] factory") if settings.factory else None,
        settings.arguments,
        settings.trusted,
    )
    loaded = _kind(path, settings.factory)(checkpoint)
    if settings.forward:
        loaded.forward = find(settings.forward, "[model] forward")
    _place(loaded, settings.device)
    return loaded


def _kind(path: Path, factory: str | None) -> type[Format]:
    if path.is_dir():
        return HuggingFaceFolder
    for suffixes, kind in FORMATS.items():
        if path.suffix.lower() in suffixes:
            if kind is TensorFile and factory is None:
                raise SettingsError(
                    f'{path} needs a factory that builds its network: factory = "package.module:function"'
                )
            return kind
    known = ", ".join(suffix for suffixes in FORMATS for suffix in suffixes)
    raise ModelError(f"{path} ends in {path.suffix!r}, expected {known} or a Hugging Face folder")


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
