"""How a kernel finds the pieces of a framework's arrays.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import Any

from corewise.runtimes.base import Infeasible
from corewise.workloads.registry import load_attribute

PIECES = {
    "numpy": "corewise.runtimes.numpy.pieces:NumpyPieces",
    "torch": "corewise.runtimes.torch.pieces:TorchPieces",
    "jax": "corewise.runtimes.jax.pieces:JaxPieces",
    "tensorflow": "corewise.runtimes.tensorflow.pieces:TensorflowPieces",
}


def pieces_of(arrays: Any) -> Any:
    """The framework's arrays in pieces; raises Infeasible where it has none."""
    if arrays.runtime not in PIECES:
        raise Infeasible(f"{arrays.runtime} has no arrays in pieces; {', '.join(PIECES)} have")
    return load_attribute(PIECES[arrays.runtime])(arrays)
