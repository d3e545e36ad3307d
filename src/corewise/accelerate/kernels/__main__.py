"""Build the C++ executor now, so that a machine or an image has it before the first use."""

from __future__ import annotations

import signal
import sys

from corewise.accelerate.kernels.build import NativeBuildError, load_native_module


def main() -> int:
    """Print the path of the module, or print why it cannot be built and return 1."""
    # An interrupted build removes its files.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        print(load_native_module().__file__)
    except NativeBuildError as problem:
        print(f"The C++ executor cannot be built: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
