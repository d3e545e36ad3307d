"""Build the C++ collectives now, so that a machine or an image has them before the first use."""

from __future__ import annotations

import signal
import sys

from corewise.accelerate.collectives.native_library import build_if_missing
from corewise.accelerate.unsupported import Unsupported


def main() -> int:
    """Print the path of the library, or print why it cannot be built and return 1."""
    # An interrupted build removes its files.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        print(build_if_missing())
    except Unsupported as problem:
        print(f"The C++ collectives cannot be built: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
