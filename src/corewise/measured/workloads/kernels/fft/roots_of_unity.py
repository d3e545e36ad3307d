"""Powers of e^(-2πi/n), exact to the last bits for any n.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Exact values of e^(-iπq/2).
QUARTER_TURNS = np.array([1, -1j, -1, 1j])


def compute_roots_of_unity(exponents: Any, n: int) -> Any:
    """Return e^(-2πi·k/n) for any int64 k and n below 2^60.

    Quarter turns are removed in integer arithmetic, so sine and cosine get at most an eighth of a turn.
    """
    k = np.asarray(exponents, dtype=np.int64) % n
    quarter = (4 * k + n // 2) // n
    angle = (4 * k - quarter * n) / n * (np.pi / 2)
    roots = np.empty(k.shape, np.complex128)
    roots.real, roots.imag = np.cos(angle), -np.sin(angle)
    roots *= QUARTER_TURNS[quarter & 3]
    return roots
