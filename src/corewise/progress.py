"""`corewise.report_progress(samples=…)`: a script reports its throughput to `corewise tune`.

Runs inside the user's script: standard library only, Python 3.9. Without a tuner it does nothing.
"""

from __future__ import annotations

import os
import time

# Environment variable with the path prefix of the report files; each process appends its process id.
PROGRESS_FILE = "COREWISE_PROGRESS"
# Environment variable with the number of loader workers that a tuned script should use.
LOADER_WORKERS = "COREWISE_LOADER_WORKERS"


def report_progress(samples: float) -> None:
    """Report that `samples` more samples are done. Call it once per step.

    Args:
        samples: how many samples (images, sequences) were completed since the last call.

    Example:
        >>> corewise.report_progress(samples=len(batch))
    """
    path = os.environ.get(PROGRESS_FILE)
    if path is None:
        return
    with open(f"{path}.{os.getpid()}", "a", encoding="ascii") as file:
        file.write(f"{time.monotonic_ns()} {float(samples)!r}\n")
