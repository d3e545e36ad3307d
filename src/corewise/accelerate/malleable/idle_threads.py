"""Settings against idle OpenMP threads that spin on needed cores, and against repeated page faults.

Measured side: standard library only, Python 3.9. Both depend on variables that are read when torch is loaded.
"""

from __future__ import annotations

import logging
import os
from typing import Dict, Mapping, Optional

# libgomp's default: spins for some milliseconds, and 1000 times while threads outnumber cores.
SPIN_COUNT = 300_000
# libgomp's value if only the wait policy is active.
_ENDLESS_SPIN_COUNT = 10**9
# Spinning up to this count frees cores soon, even without oversubscription.
_SHORT_SPIN_COUNT = 10_000
ACTIVE, PASSIVE = "ACTIVE", "PASSIVE"
GIB = 1024**3
_log = logging.getLogger("corewise.malleable")
_logged: Dict[str, bool] = {}


def build_thread_environment(outer: Optional[Mapping[str, str]] = None) -> Dict[str, str]:
    """Return the variables to set before torch is loaded, without those that are already set.

    While OpenMP threads outnumber cores, as with lanes, libgomp lets them spin only 100 times, whatever the
    count; each wide operator would wake sleeping threads. With an active wait policy they spin 1000 times:
    long enough for the next operator, and cores are soon free for other lanes. Without lanes the count holds.
    Freed memory is retained to avoid page faults at each step. Threads keep separate malloc arenas: with a
    single one, eight LSTMs wait for its lock.
    """
    outer = os.environ if outer is None else outer
    wanted = {
        "GOMP_SPINCOUNT": str(SPIN_COUNT),
        "OMP_WAIT_POLICY": ACTIVE,
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(16 * GIB),
        "MALLOC_TOP_PAD_": str(64 * 1024**2),
    }
    if "OMP_WAIT_POLICY" in outer:
        del wanted["GOMP_SPINCOUNT"]
    # This is most likely another allocator.
    if "LD_PRELOAD" in outer:
        wanted = {name: value for name, value in wanted.items() if not name.startswith("MALLOC_")}
    return {name: value for name, value in wanted.items() if name not in outer}


def check_environment(environment: Optional[Mapping[str, str]] = None, is_busy: bool = False) -> str:
    """Explain why plans cannot reach full speed in this environment, and what to run; empty if they can.

    Args:
        environment: The variables that were set when torch was loaded.
        is_busy: Other processes use the same cores. Threads that wait actively then take turns with them.
    """
    environment = os.environ if environment is None else environment
    policy, count = environment.get("OMP_WAIT_POLICY", "").upper(), environment.get("GOMP_SPINCOUNT", "")
    spins = int(count) if count.isdigit() else SPIN_COUNT if policy != ACTIVE else _ENDLESS_SPIN_COUNT
    if policy == PASSIVE or (policy == ACTIVE and spins < _ENDLESS_SPIN_COUNT and not is_busy):
        return ""
    if is_busy:
        problem = "other processes use these cores, and idle OpenMP threads spin on them meanwhile"
    elif spins <= _SHORT_SPIN_COUNT:
        problem = "OpenMP threads sleep as soon as other teams exist, and every wide operator has to wake them"
    else:
        problem = "idle OpenMP threads spin for milliseconds on cores that other branches need"
    command = suggest_command(is_busy)
    return f"{problem}. This cannot be changed after torch is loaded. Start the program like this: {command}"


def has_active_waiting(environment: Optional[Mapping[str, str]] = None) -> bool:
    """Return whether a wide team waits actively for the next operator although there are other teams."""
    environment = os.environ if environment is None else environment
    return environment.get("OMP_WAIT_POLICY", "").upper() == ACTIVE


def suggest_command(is_busy: bool = False) -> str:
    """Return the command that starts a program with the best settings for cores that are shared or not."""
    variables = f"--env GOMP_SPINCOUNT={SPIN_COUNT} --env OMP_WAIT_POLICY={ACTIVE}"
    waiting = "--wait-policy passive" if is_busy else variables
    return f"corewise launch {waiting} --allocator retain -- python your_script.py"


def warn_once(text: str) -> None:
    """Log a message the first time it occurs in this process."""
    if text and text not in _logged:
        _logged[text] = True
        _log.warning("corewise.malleable: %s", text)
