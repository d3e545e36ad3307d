"""Builds the C++ executor now, for a machine or an image in which it shall be there at the first use."""

from __future__ import annotations

import sys

from corewise.dataflow.native.build import CannotBuild, native_module


def main() -> int:
    """Prints where it lies, or why it cannot be built; 1 then."""
    try:
        print(native_module().__file__)
    except CannotBuild as problem:
        print(f"The C++ executor cannot be built: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
