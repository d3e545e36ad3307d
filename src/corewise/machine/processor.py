"""Read the name of the processor from /proc/cpuinfo."""

from pathlib import Path


def read_cpu_model(root: Path = Path("/")) -> str:
    """Return the processor's model name."""
    return extract_cpu_model(read_first_cpu(root))


def read_first_cpu(root: Path) -> dict[str, str]:
    """Read the first block of /proc/cpuinfo; on large machines the whole file takes long to generate."""
    block: dict[str, str] = {}
    try:
        with open(root / "proc/cpuinfo", errors="replace") as lines:
            for line in lines:
                key, colon, value = line.partition(":")
                if not colon and block:
                    break
                block[key.strip()] = value.strip()
    except OSError:
        pass
    return block


def extract_cpu_model(cpu: dict[str, str]) -> str:
    """Return the model name in a block of /proc/cpuinfo."""
    name = cpu.get("model name") or cpu.get("cpu")
    if name or "CPU part" not in cpu:
        return name or "unknown"
    return f"ARM implementer {cpu.get('CPU implementer', '?')} part {cpu['CPU part']}"
