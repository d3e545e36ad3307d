"""Set the number of threads of the calling thread only.

Measured side: standard library and torch only, Python 3.9. `torch.set_num_threads` also sets the default of
later threads: one that starts while a branch runs on one core would stay on one core.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, Callable, List, Optional, Tuple

import torch

# One entry after the first search.
_setters: List[Tuple[Callable[[int], Any], ...]] = []


def set_own_width(width: int) -> None:
    """Set the number of threads that the calling thread's operators use."""
    # Initialize torch's thread state first; later it would overwrite the width.
    torch.get_num_threads()
    if not _setters:
        _setters.append(_find_setters() or ())
    for setter in _setters[0]:
        setter(width)
    if torch.get_num_threads() != width:
        torch.set_num_threads(width)


def _find_setters() -> Optional[Tuple[Callable[[int], Any], ...]]:
    """Find the functions that set OpenMP's and MKL's widths in torch's libraries; None if hidden."""
    names = ["omp_set_num_threads"]
    if torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        names.append("MKL_Set_Num_Threads_Local")
    try:
        library = ctypes.PyDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return tuple(getattr(library, name) for name in names)
    except (OSError, AttributeError):
        return None
