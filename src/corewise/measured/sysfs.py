"""Read the small text files of the kernel, any of which may be missing or malformed.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from pathlib import Path

# Far above NR_CPUS of any kernel. It keeps a damaged list from filling memory.
MAX_CPU_NUMBER = 1 << 16


def read_text(path: Path) -> str | None:
    """Read a text file without surrounding blanks; None if it cannot be read."""
    try:
        # Unbuffered, because a large machine has thousands of these files.
        with open(path, "rb", buffering=0) as file:
            return file.readall().decode(errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """Read the integer that the file holds, or None."""
    return to_int(read_text(path))


def to_int(text: str | None) -> int | None:
    """Parse an integer in plain digits, or return None."""
    if text is None:
        return None
    try:
        return int(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Parse a kernel list, for example `0-3,8`, into ascending numbers; raise ValueError if malformed."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        if not part.strip():
            continue
        low_text, dash, high_text = part.partition("-")
        low = to_int(low_text)
        high = to_int(high_text) if dash else low
        if low is None or high is None or not 0 <= low <= high <= MAX_CPU_NUMBER:
            raise ValueError(f"not a CPU list: {text!r}")
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


def read_cpu_list(path: Path) -> tuple[int, ...] | None:
    """Read the CPU list of a file; None if it is missing or malformed."""
    text = read_text(path)
    try:
        return None if text is None else parse_cpu_list(text)
    except ValueError:
        return None


def read_table(path: Path) -> dict[str, str]:
    """Read the `key: value` lines of a file, for example /proc/meminfo."""
    pairs = (line.partition(":") for line in (read_text(path) or "").splitlines())
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def parse_kib(text: str | None) -> int | None:
    """Parse an amount, for example `1024 kB`, into bytes, or return None."""
    parts = (text or "").split()
    number = to_int(parts[0]) if parts else None
    return None if number is None else number * 1024
