"""Reading the kernel's small text files, any of which may be missing or malformed."""

from pathlib import Path

MAX_CPU_NUMBER = 1 << 16  # far above any kernel's NR_CPUS; keeps a damaged list from filling memory


def read_text(path: Path) -> str | None:
    """The file's text without surrounding blanks, or None where it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:  # big machines have thousands of these files
            return file.readall().decode(errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """The whole number the file holds, or None."""
    return to_int(read_text(path))


def to_int(text: str | None) -> int | None:
    """The whole number a text spells in plain digits, or None."""
    if text is None:
        return None
    try:
        return int(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """The numbers of a kernel list such as `0-3,8`, ascending and each once; ValueError if malformed."""
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
    """The CPU list the file holds, or None where it is missing or malformed."""
    text = read_text(path)
    try:
        return None if text is None else parse_cpu_list(text)
    except ValueError:
        return None


def read_table(path: Path) -> dict[str, str]:
    """The `key: value` lines of a file such as /proc/meminfo."""
    pairs = (line.partition(":") for line in (read_text(path) or "").splitlines())
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def kib_to_bytes(text: str | None) -> int | None:
    """The bytes that `1024 kB` stands for, or None."""
    words = (text or "").split()
    number = to_int(words[0]) if words else None
    return None if number is None else number * 1024
