"""Keep the reference of a numerical check for later processes of the same tuning.

The reference in float64, without oneDNN, often takes longer than everything else in a start. It depends only on
weights, inputs and targets, so that all processes that have the same ones share it. They are compared by a hash.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any, Iterable, List, Optional, Tuple

import torch
from torch import Tensor, nn

from corewise.cache_folder import create_own_folder

# Larger references are computed in each process, in bytes.
MAX_REFERENCE_BYTES = 1 << 30
Reference = Tuple[List[Tensor], List[Optional[Tensor]], str]


class ReferenceCache:
    """References in a folder that only this user can change."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def build_path(self, module: nn.Module, values: Iterable[Any], purpose: str) -> Optional[Path]:
        """Return the file for the reference of a module and these values; None if it cannot be kept."""
        state = [*module.named_parameters(), *module.named_buffers()]
        named = [*state, *((str(place), value) for place, value in enumerate(values))]
        if any(isinstance(value, Tensor) and value.device.type != "cpu" for _, value in named):
            return None
        if create_own_folder(self._folder):
            return None
        digest = hashlib.blake2b(f"{purpose} {torch.__version__}".encode(), digest_size=16)
        for name, value in named:
            if isinstance(value, Tensor):
                digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
                flat = value.detach().contiguous().reshape(-1)
                # Numpy has no bfloat16, and no bytes of an empty tensor.
                digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
            else:
                digest.update(f"{name} {value!r}".encode())
        return self._folder / f"{digest.hexdigest()}.pt"

    def load(self, path: Path) -> Optional[Reference]:
        """Load a reference, or return None if there is none that can be read."""
        with contextlib.suppress(Exception):
            outputs, gradients, text = torch.load(path, weights_only=True)
            return outputs, gradients, text
        return None

    def save(self, path: Path, reference: Reference) -> bool:
        """Save a reference for other processes and return whether that succeeded."""
        tensors = [each for each in (*reference[0], *reference[1]) if each is not None]
        if sum(each.numel() * each.element_size() for each in tensors) > MAX_REFERENCE_BYTES:
            return False
        aside = path.with_suffix(f".{os.getpid()}.part")
        with contextlib.suppress(OSError, RuntimeError):
            torch.save(tuple(reference), aside)
            os.replace(aside, path)
            return True
        return False
