"""Whether C++ code may be built and loaded. Measured side: standard library only, Python 3.9."""

from __future__ import annotations

import os

# Environment variable: 0 disables everything written in C++.
NATIVE_VARIABLE = "COREWISE_NATIVE"


def is_native_disabled() -> bool:
    """Return whether nothing in C++ may be built or loaded."""
    return os.environ.get(NATIVE_VARIABLE) == "0"
