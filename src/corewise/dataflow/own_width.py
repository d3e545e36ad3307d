"""The width of the calling thread alone.

Measured side: standard library and torch only, Python 3.9. `torch.set_num_threads` also sets what threads to
come begin with: one that starts while a branch runs on one core would stay on one core for ever.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, Callable, List, Optional, Tuple

import torch

_setters: List[Tuple[Callable[[int], Any], ...]] = []  # once they were looked for


def set_own_width(width: int) -> None:
    """Has the calling thread's operators run on so many threads from now on."""
    torch.get_num_threads()  # torch's own start of a thread, which would set the width again later
    if not _setters:
        _setters.append(_found_setters() or ())
    for setter in _setters[0]:
        setter(width)
    if torch.get_num_threads() != width:
        torch.set_num_threads(width)


def _found_setters() -> Optional[Tuple[Callable[[int], Any], ...]]:
    """What sets OpenMP's and MKL's widths in the libraries torch has loaded; None where it is hidden."""
    names = ["omp_set_num_threads"]
    if torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        names.append("MKL_Set_Num_Threads_Local")
    try:
        library = ctypes.PyDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return tuple(getattr(library, name) for name in names)
    except (OSError, AttributeError):
        return None
