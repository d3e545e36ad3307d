"""Load the operations of a framework on array pieces that stream through the device.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import Any

from corewise.measured.runtimes.base import Infeasible
from corewise.measured.workloads.registry import load_attribute

PIECES = {
    "numpy": "corewise.measured.runtimes.numpy.pieces:NumpyPieces",
    "torch": "corewise.measured.runtimes.torch.pieces:TorchPieces",
    "jax": "corewise.measured.runtimes.jax.pieces:JaxPieces",
    "tensorflow": "corewise.measured.runtimes.tensorflow.pieces:TensorflowPieces",
}


def load_pieces(arrays: Any) -> Any:
    """Return the piece operations of the arrays' framework; raise Infeasible if it has none."""
    if arrays.runtime not in PIECES:
        raise Infeasible(f"{arrays.runtime} cannot process arrays in pieces; use {', '.join(PIECES)}")
    return load_attribute(PIECES[arrays.runtime])(arrays)
