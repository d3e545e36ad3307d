"""The processor by name, for those who need no more of /proc/cpuinfo."""

from pathlib import Path


def read_cpu_model(root: Path = Path("/")) -> str:
    """What the processor calls itself."""
    return cpu_model(first_cpu(root))


def first_cpu(root: Path) -> dict[str, str]:
    """The first block of /proc/cpuinfo: on big machines the whole file takes long to make."""
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


def cpu_model(cpu: dict[str, str]) -> str:
    """The name in such a block."""
    named = cpu.get("model name") or cpu.get("cpu")
    if named or "CPU part" not in cpu:
        return named or "unknown"
    return f"ARM implementer {cpu.get('CPU implementer', '?')} part {cpu['CPU part']}"
