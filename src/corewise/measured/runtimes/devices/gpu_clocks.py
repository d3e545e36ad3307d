"""Read the clocks of a GPU under load with nvidia-smi.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import Any, Callable, Dict, Mapping

# Field names of nvidia-smi and of our records.
QUERIED_FIELDS = {
    "clocks.sm": "gpu_sm_mhz",
    "clocks.mem": "gpu_memory_mhz",
    "clocks.max.sm": "gpu_max_sm_mhz",
    "power.draw": "gpu_power_w",
    "temperature.gpu": "gpu_temperature_c",
    "clocks_throttle_reasons.active": "gpu_throttle_reasons",
}
MAX_WAIT_S = 10.0


def sample_clocks(step: Callable[[], None], uuid: str) -> Mapping[str, Any]:
    """Query nvidia-smi while steps run; return an empty mapping if it is not available."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, f"--query-gpu={','.join(QUERIED_FIELDS)}", "--format=csv,noheader,nounits", f"--id={uuid}"]
    try:
        query = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return {}
    until = time.monotonic() + MAX_WAIT_S
    while query.poll() is None and time.monotonic() < until:
        step()
    if query.poll() is None:
        query.kill()
    answer, _ = query.communicate()
    return parse_clocks(answer) if query.returncode == 0 else {}


def parse_clocks(line: str) -> Mapping[str, Any]:
    """Parse the values that nvidia-smi prints; unknown ones are omitted."""
    values = [value.strip() for value in line.strip().split(",")]
    if len(values) != len(QUERIED_FIELDS):
        return {}
    clocks: Dict[str, Any] = {}
    for name, value in zip(QUERIED_FIELDS.values(), values):
        try:
            clocks[name] = float(value)
        except ValueError:
            if value.startswith("0x"):
                clocks[name] = value
    return clocks
