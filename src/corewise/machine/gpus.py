"""The NVIDIA GPUs of a machine, from the driver's files and nvidia-smi."""

import contextlib
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from corewise.machine.sysfs import read_table, to_int

MIB = 1 << 20
QUERY_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Gpu:
    """One GPU; its memory is None where nvidia-smi did not tell."""

    name: str
    uuid: str
    memory_bytes: int | None = None


class GpuQuery:
    """nvidia-smi at work in the background, so that the rest of the machine is read meanwhile."""

    def __init__(self, root: Path) -> None:
        self._process: subprocess.Popen[str] | None = None
        program = shutil.which("nvidia-smi") if root == Path("/") else None
        if program is None:
            return
        command = [program, "--query-gpu=name,memory.total,uuid", "--format=csv,noheader"]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        except OSError:
            self._process = None

    def answer(self, timeout_s: float = QUERY_TIMEOUT_S) -> tuple[Gpu, ...]:
        """The GPUs nvidia-smi lists; none where it fails or takes too long."""
        process = self._process
        if process is None:
            return ()
        try:
            text, _ = process.communicate(timeout=timeout_s)
            return parse_query(text) if process.returncode == 0 else ()
        except subprocess.TimeoutExpired:
            process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a sick driver can hold it beyond any signal
            process.communicate(timeout=0.1)
        return ()


def parse_query(text: str) -> tuple[Gpu, ...]:
    """The GPUs in nvidia-smi's lines `name, 1024 MiB, uuid`."""
    gpus = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.rsplit(",", 2)]
        if len(fields) == 3:
            size = to_int(fields[1].removesuffix("MiB").strip())
            gpus.append(Gpu(fields[0], fields[2], None if size is None else size * MIB))
    return tuple(gpus)


def merge_gpus(driver: tuple[Gpu, ...], queried: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The GPUs the driver lists, with the memory nvidia-smi knows; or nvidia-smi's alone."""
    memory = {gpu.uuid: gpu.memory_bytes for gpu in queried}
    return tuple(replace(gpu, memory_bytes=memory.get(gpu.uuid)) for gpu in driver) or queried


def read_driver_gpus(root: Path = Path("/")) -> tuple[Gpu, ...]:
    """The GPUs under /proc/driver/nvidia/gpus, in the order of their PCI addresses."""
    tables = [read_table(f) for f in sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))]
    return tuple(Gpu(table.get("Model", "NVIDIA GPU"), table.get("GPU UUID", "")) for table in tables)
