"""Read how much memory this process has used.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from pathlib import Path


def reset_peak(proc: str = "/proc") -> bool:
    """Reset the recorded peak; return False if the kernel refuses."""
    try:
        Path(proc, "self", "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def read_memory(proc: str = "/proc") -> dict[str, float]:
    """Read the resident bytes now and at the peak, and the peak with shared pages counted once.

    Pages of the warm parent are resident in every rank. Rss − Pss is the part that others account for.
    Without it, the peaks of all ranks add up to the memory that the machine really uses.
    """
    status = _read_sizes(Path(proc, "self", "status"))
    rollup = _read_sizes(Path(proc, "self", "smaps_rollup"))
    rss = rollup.get("Rss", status.get("VmRSS", 0))
    # Kernels before 4.14 do not report Pss, so nothing is subtracted.
    pss = rollup.get("Pss", rss)
    # The kernel updates the peak late.
    peak = max(status.get("VmHWM", 0), rss)
    return {
        "peak_rss_bytes": float(peak),
        "rss_bytes": float(rss),
        "pss_bytes": float(pss),
        "shared_bytes": float(rss - pss),
        "peak_memory_bytes": float(peak - (rss - pss)),
        "huge_page_bytes": float(rollup.get("AnonHugePages", 0)),
    }


def _read_sizes(path: Path) -> dict[str, int]:
    """Read the fields whose unit is kB, in bytes."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines)
    return {parts[0].rstrip(":"): 1024 * int(parts[1]) for parts in fields if parts[-1:] == ["kB"]}
