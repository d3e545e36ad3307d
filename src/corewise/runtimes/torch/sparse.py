"""Sparse matrices on torch: MKL multiplies them on a CPU, cuSPARSE on a GPU.

Measured side: standard library and torch only, Python 3.9. Indices stay in 32 bits: with 64 torch leaves
MKL for a loop of its own, five times as slow.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, Optional

import torch


@dataclasses.dataclass(frozen=True, eq=False)
class CsrMatrix:
    """A sparse tensor; wrapped, because it has no single place in memory that could name it."""

    tensor: torch.Tensor


def make_csr(starts: Any, columns: Any, values: Any, num_columns: int, device: Any) -> CsrMatrix:
    """The matrix of numpy arrays on the device."""
    where, which, what = (torch.from_numpy(each).to(device) for each in (starts, columns, values))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse", category=UserWarning)  # "in beta state"
        shape = (len(starts) - 1, num_columns)
        return CsrMatrix(torch.sparse_csr_tensor(where, which, what, shape, check_invariants=False))


def multiply_csr(matrix: CsrMatrix, x: torch.Tensor, out: Optional[torch.Tensor] = None) -> torch.Tensor:
    """The matrix times a vector; into `out` no memory is taken."""
    return torch.mv(matrix.tensor, x) if out is None else torch.mv(matrix.tensor, x, out=out)
