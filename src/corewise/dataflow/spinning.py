"""Idle OpenMP threads that spin on cores others need, and memory that worker threads fault in anew.

Measured side: standard library only, Python 3.9. Both are settled by variables read when torch is loaded.
"""

from __future__ import annotations

import logging
import os
from typing import Dict, Mapping, Optional

SPIN_COUNT = 300_000  # some milliseconds, as it comes; a thousand while there are more threads than cores
_ENDLESS = 10**9  # what it is where waiting is said to be active, and nothing else
_SHORT_SPIN_COUNT = 10_000  # which lets cores go soon even where there are no more threads than cores
ACTIVE = "ACTIVE"
GIB = 1024**3
_log = logging.getLogger("corewise.malleable")
_noted: Dict[str, bool] = {}


def wanted_environment(outer: Optional[Mapping[str, str]] = None) -> Dict[str, str]:
    """The variables to set before torch is loaded, without those that someone has set already.

    Once there are more OpenMP threads than cores, which lanes see to, libgomp lets them spin 100 times only,
    whatever the count, so that each wide operator wakes sleepers; where waiting is said to be active, 1000
    times: long enough for the next operator, and cores are soon free for other lanes. Where there are no
    lanes the count holds. Freed memory is kept, so that pages are not faulted in anew at each step; threads
    keep arenas of their own: with one for all, eight LSTMs wait for its lock.
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
    if "LD_PRELOAD" in outer:  # another allocator, most likely
        wanted = {name: value for name, value in wanted.items() if not name.startswith("MALLOC_")}
    return {name: value for name, value in wanted.items() if name not in outer}


def complaint(environment: Optional[Mapping[str, str]] = None) -> str:
    """Why changing widths cannot reach their speed in a process started so, and what would help."""
    environment = os.environ if environment is None else environment
    policy, count = environment.get("OMP_WAIT_POLICY", "").upper(), environment.get("GOMP_SPINCOUNT", "")
    spins = int(count) if count.isdigit() else SPIN_COUNT if policy != ACTIVE else _ENDLESS
    if policy == "PASSIVE" or (policy == ACTIVE and spins < _ENDLESS):
        return ""
    if spins <= _SHORT_SPIN_COUNT:
        what = "beside other teams OpenMP's threads sleep at once, and every wide operator has to wake them"
    else:
        what = "idle OpenMP threads spin for milliseconds on cores that other branches need"
    return (
        f"{what}, and now that torch is loaded it is too late to change that. "
        f"This would help: {helping_command()}"
    )


def stays_awake(environment: Optional[Mapping[str, str]] = None) -> bool:
    """Whether a wide team waits for the next operator without sleeping though there are other teams."""
    environment = os.environ if environment is None else environment
    return environment.get("OMP_WAIT_POLICY", "").upper() == ACTIVE


def helping_command() -> str:
    """How to start a program so that its idle threads give way."""
    variables = f"--env GOMP_SPINCOUNT={SPIN_COUNT} --env OMP_WAIT_POLICY={ACTIVE}"
    return f"corewise launch {variables} --allocator retain -- python your_script.py"


def note_once(text: str) -> None:
    """Logs a sentence the first time it is said in this process."""
    if text and text not in _noted:
        _noted[text] = True
        _log.warning("corewise.malleable: %s", text)
