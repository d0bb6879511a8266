"""A `torch.export` program: read only after its archive was searched for anything that could run code."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forsaken.errors import ModelError
from forsaken.jobs.formats.archive import checked_archive
from forsaken.jobs.formats.base import Checkpoint, Format

PROGRAM = (".pt2",)


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


class ProgramFile(Format):
    """A program that `torch.export.save` wrote, for any number of samples."""

    name = "torch.export"

    def __init__(self, checkpoint: Checkpoint) -> None:
        path = checkpoint.weights
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror}; check the path") from error
        self._bytes = checked_archive(content, path)
        program = self._load(path)
        if not any(parameter.requires_grad for parameter in program.parameters()):
            raise ModelError(
                f"the program {path} has no parameters that can be changed: they were made constants; export the "
                "trained module itself, with torch.export.export(model, ...)"
            )
        _refuse_fixed_batch(program, path)
        try:
            self.model = ExportedModule(program)
        except Exception as error:  # what torch makes of a program that it cannot turn back
            raise _unreadable(path, error) from error
        self._path = path

    def write(self, model: Any, goal: Path) -> None:
        """Write the same program with the new weights."""
        program = self._load(self._path)
        new = model.program.state_dict()
        with torch.no_grad():
            for name, tensor in program.state_dict.items():
                if isinstance(tensor, Tensor):
                    tensor.copy_(new[name])
        torch.export.save(program, goal)

    def _load(self, path: Path) -> Any:
        told = logging.getLogger("torch.export")
        before, told.disabled = told.disabled, True  # it would print a traceback over a damaged file
        try:
            return torch.export.load(io.BytesIO(self._bytes))
        except Exception as error:  # a damaged file may raise anything
            raise _unreadable(path, error) from error
        finally:
            told.disabled = before


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


def _unreadable(path: Path, error: Exception) -> ModelError:
    return ModelError(
        f"{path} cannot be read as an exported program ({type(error).__name__}); expected a file that "
        f"torch.export.save wrote with a torch no newer than this one ({torch.__version__}): is it complete?"
    )
