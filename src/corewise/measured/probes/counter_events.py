"""The events that count cycles, instructions and last-level cache misses, by processor.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Mapping, Optional

from corewise.measured.probes.perf_events import CACHE_MISSES, CYCLES, HARDWARE, INSTRUCTIONS, RAW, Event

# Demand fills of the L1 data cache from memory, near and far: `ls_dmnd_fills_from_sys` (Zen 3 on), called
# `ls_refills_from_sys` on Zen 2. The generic event would count misses of the L2 cache.
_AMD_FILLS_FROM_MEMORY = 0x43 | 0x48 << 8
# LL_CACHE_MISS_RD of Armv8.2, and L2D_CACHE_REFILL, where L2 is the last level.
_ARM_LAST_LEVEL_MISSES, _ARM_L2_REFILLS = 0x37, 0x17
_FUJITSU = "0x46"
# The PMUs of a hybrid processor of Intel.
_HYBRID_PMUS = ("cpu_core", "cpu_atom")
# The type of a PMU goes into the upper half of a generic event (PERF_PMU_TYPE_SHIFT).
_PMU_SHIFT = 32


@dataclasses.dataclass(frozen=True)
class Processor:
    """What decides about events: vendor, family and model, and the types of the PMUs of a hybrid processor."""

    vendor: str
    family: int = 0
    model: int = 0
    hybrid_types: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class CounterEvents:
    """The events of each quantity, one for each PMU; `miss_event` says what counts as a miss of the last level."""

    events: Mapping[str, tuple[Event, ...]]
    miss_event: str = ""


def read_processor(root: Path = Path("/")) -> Processor:
    """Read the vendor, family and model of the first CPU."""
    fields: dict[str, str] = {}
    try:
        text = (root / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    for line in text.partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    vendor = fields.get("vendor_id") or fields.get("CPU implementer") or ""
    types = tuple(t for t in (_read_type(root, name) for name in _HYBRID_PMUS) if t is not None)
    return Processor(vendor, _to_int(fields.get("cpu family")), _to_int(fields.get("model")), types)


def choose_events(processor: Processor) -> CounterEvents:
    """Choose the events of a processor; misses of the last level are left out where no event is known."""
    events = {"cycles": _build_generic(CYCLES, processor), "instructions": _build_generic(INSTRUCTIONS, processor)}
    misses, name = _choose_misses(processor)
    return CounterEvents({**events, "llc_misses": misses} if misses else events, name)


def _choose_misses(processor: Processor) -> tuple[tuple[Event, ...], str]:
    vendor, family, model = processor.vendor, processor.family, processor.model
    if vendor == "GenuineIntel":
        return _build_generic(CACHE_MISSES, processor), "LONGEST_LAT_CACHE.MISS"
    if vendor == "AuthenticAMD":
        # Zen 1 has no such event.
        if family >= 0x19 or (family == 0x17 and model >= 0x30):
            return (Event(RAW, _AMD_FILLS_FROM_MEMORY),), "demand fills from memory"
        return (), ""
    if vendor == _FUJITSU:
        return (Event(RAW, _ARM_L2_REFILLS),), "L2D_CACHE_REFILL"
    if vendor.startswith("0x"):
        return (Event(RAW, _ARM_LAST_LEVEL_MISSES),), "LL_CACHE_MISS_RD"
    return (), ""


def _build_generic(config: int, processor: Processor) -> tuple[Event, ...]:
    types = processor.hybrid_types
    return tuple(Event(HARDWARE, config | each << _PMU_SHIFT) for each in types) or (Event(HARDWARE, config),)


def _read_type(root: Path, name: str) -> Optional[int]:
    try:
        return int((root / "sys/bus/event_source/devices" / name / "type").read_text())
    except (OSError, ValueError):
        return None


def _to_int(text: Optional[str]) -> int:
    return int(text) if text is not None and text.isdecimal() else 0
