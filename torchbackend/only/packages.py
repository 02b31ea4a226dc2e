"""Programs that torch.export and AOTInductor make: the knob `exported`."""

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from compare.base.interface import RunSpec
from compare.worker import exported_files

Program = Callable[[torch.Tensor], torch.Tensor]


class Answering(nn.Module):
    """A model and its answer, as one module that torch can export."""

    def __init__(self, model: nn.Module, answer: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.model, self._answer = model, answer

    def forward(self, images: torch.Tensor) -> Any:
        """Return the answer to images."""
        return self._answer(images)


def export(model: nn.Module, answer: Callable[[torch.Tensor], Any], images: torch.Tensor) -> Any:
    """Return `answer` as a `torch.export.ExportedProgram` for images of this shape."""
    return torch.export.export(Answering(model, answer), (images,), strict=False)


def load_or_compile(
    spec: RunSpec, weights: str, model: nn.Module, answer: Callable[[torch.Tensor], Any], images: torch.Tensor
) -> tuple[Program, bool]:
    """Return the compiled program for images of this shape, and whether its package was there before.

    A package holds the weights, so `weights` is their digest.
    """
    inductor: Any = importlib.import_module("torch._inductor")

    def make(path: Path) -> None:
        inductor.aoti_compile_and_package(export(model, answer, images), package_path=str(path))

    name = torch.cuda.get_device_name(images.device) if images.is_cuda else "cpu"
    shape = [*images.shape, *images.stride(), str(images.dtype)]
    facts = exported_files.list_facts(
        spec, "torchbackend", {"torch": torch.__version__}, weights=weights, shape=shape, device=name
    )
    path, was_there = exported_files.find_or_make(_find_folder(), ".pt2", facts, make)
    loader = inductor.aoti_load_package(str(path)).loader
    # The package's own call parses the description of its arguments every time.
    return lambda images: loader.boxed_run([images])[0], was_there


def _find_folder() -> Path:
    cache: Any = importlib.import_module("torch._inductor.runtime.cache_dir_utils")
    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or cache.cache_dir(), "samestep-packages")
