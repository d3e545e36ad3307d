"""Names of signals.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import signal


def name_signal(number: int) -> str:
    """Return the name of a signal, SIGSEGV for 11; real-time signals have only a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
