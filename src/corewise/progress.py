"""`corewise.report_progress(samples=…)`: how a script tells `corewise tune` how far it has come.

Runs within the user's script: standard library only, Python 3.9. Without a tuner it does nothing.
"""

from __future__ import annotations

import os
import time

PROGRESS_FILE = "COREWISE_PROGRESS"  # where reports go; each process writes a file of its own beside it
LOADER_WORKERS = "COREWISE_LOADER_WORKERS"  # how many loader workers a tuned script should use


def report_progress(samples: float) -> None:
    """Tell that so many more samples are done; call it once a step."""
    path = os.environ.get(PROGRESS_FILE)
    if path is None:
        return
    with open(f"{path}.{os.getpid()}", "a", encoding="ascii") as file:
        file.write(f"{time.monotonic_ns()} {float(samples)!r}\n")
