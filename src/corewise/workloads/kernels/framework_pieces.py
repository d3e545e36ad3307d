"""Which frameworks can work on parts of their arrays in place, and how a kernel asks them to.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import Any

from corewise.runtimes.base import Infeasible
from corewise.workloads.registry import load_attribute

PIECES = {
    "numpy": "corewise.runtimes.numpy.pieces:NumpyPieces",
    "torch": "corewise.runtimes.torch.pieces:TorchPieces",
}


def pieces_of(arrays: Any) -> Any:
    """The framework's arrays in pieces; raises Infeasible where it cannot write its arrays."""
    if arrays.runtime not in PIECES:
        raise Infeasible(f"{arrays.runtime} cannot write parts of its arrays; {', '.join(PIECES)} can")
    return load_attribute(PIECES[arrays.runtime])(arrays)
