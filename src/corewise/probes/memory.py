"""How much memory this process has used.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from pathlib import Path


def reset_peak(proc: str = "/proc") -> bool:
    """Make the peak start from now; False when the kernel would not."""
    try:
        Path(proc, "self", "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def read_memory(proc: str = "/proc") -> dict[str, float]:
    """Resident bytes now and at the peak, and the peak with shared pages counted once.

    Pages of the warm parent are resident in every rank. Rss − Pss is the part of them others account for, so
    peaks less that much add up over ranks to what the machine really holds.
    """
    status = _read_sizes(Path(proc, "self", "status"))
    rollup = _read_sizes(Path(proc, "self", "smaps_rollup"))
    rss = rollup.get("Rss", status.get("VmRSS", 0))
    pss = rollup.get("Pss", rss)  # a kernel before 4.14 does not say: nothing is taken off
    peak = max(status.get("VmHWM", 0), rss)  # the kernel updates the peak late
    return {
        "peak_rss_bytes": float(peak),
        "rss_bytes": float(rss),
        "pss_bytes": float(pss),
        "shared_bytes": float(rss - pss),
        "peak_memory_bytes": float(peak - (rss - pss)),
        "huge_page_bytes": float(rollup.get("AnonHugePages", 0)),
    }


def _read_sizes(path: Path) -> dict[str, int]:
    """Field → bytes, of the lines that end in kB."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines)
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in fields if words[-1:] == ["kB"]}
