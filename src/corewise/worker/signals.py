"""Signals by name.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """SIGSEGV for 11; real-time signals, which have no name of their own, by number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
