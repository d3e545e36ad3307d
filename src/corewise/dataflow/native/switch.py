"""Whether C++ is wanted at all. Measured side: standard library only, Python 3.9."""

from __future__ import annotations

import os

NATIVE_SWITCH = "COREWISE_NATIVE"  # 0: never build or load what is written in C++


def is_switched_off() -> bool:
    """Whether nothing in C++ may be built or loaded."""
    return os.environ.get(NATIVE_SWITCH) == "0"
