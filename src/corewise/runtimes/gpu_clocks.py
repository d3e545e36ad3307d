"""A GPU's clocks while it computes, as nvidia-smi tells them.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import Any, Callable, Dict, Mapping

ASKED = {  # nvidia-smi's names -> ours
    "clocks.sm": "gpu_sm_mhz",
    "clocks.mem": "gpu_memory_mhz",
    "clocks.max.sm": "gpu_max_sm_mhz",
    "power.draw": "gpu_power_w",
    "temperature.gpu": "gpu_temperature_c",
    "clocks_throttle_reasons.active": "gpu_throttle_reasons",
}
LONGEST_WAIT_S = 10.0


def clocks_while(step: Callable[[], None], uuid: str) -> Mapping[str, Any]:
    """What nvidia-smi says of the GPU while steps are run; nothing where it cannot be asked."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader,nounits", f"--id={uuid}"]
    try:
        asked = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return {}
    until = time.monotonic() + LONGEST_WAIT_S
    while asked.poll() is None and time.monotonic() < until:
        step()
    if asked.poll() is None:
        asked.kill()
    answer, _ = asked.communicate()
    return parse_clocks(answer) if asked.returncode == 0 else {}


def parse_clocks(line: str) -> Mapping[str, Any]:
    """nvidia-smi's line of values under our names; what it does not know is left out."""
    values = [value.strip() for value in line.strip().split(",")]
    if len(values) != len(ASKED):
        return {}
    found: Dict[str, Any] = {}
    for name, value in zip(ASKED.values(), values):
        try:
            found[name] = float(value)
        except ValueError:
            if value.startswith("0x"):
                found[name] = value
    return found
