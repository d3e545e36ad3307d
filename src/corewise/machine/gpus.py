"""Read the NVIDIA GPUs of a machine from the driver's files and nvidia-smi."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from corewise.measured.sysfs import read_int, read_table, to_int

MIB = 1 << 20
QUERY_TIMEOUT_S = 2.0
DRIVER_DIR = "proc/driver/nvidia/gpus"
PCI_DIR = "sys/bus/pci/devices"


@dataclass(frozen=True)
class Gpu:
    """One GPU; its memory is None if nvidia-smi did not report it."""

    name: str
    uuid: str
    memory_bytes: int | None = None


class GpuQuery:
    """Runs nvidia-smi in the background while the rest of the machine is read."""

    def __init__(self, root: Path) -> None:
        self._process: subprocess.Popen[str] | None = None
        program = shutil.which("nvidia-smi") if root == Path("/") else None
        # A PATH with relative folders must not start a program of the current folder.
        if program is None or not os.path.isabs(program):
            return
        command = [program, "--query-gpu=name,memory.total,uuid", "--format=csv,noheader"]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError:
            self._process = None

    def collect_gpus(self, timeout_s: float = QUERY_TIMEOUT_S) -> tuple[Gpu, ...]:
        """Return the GPUs that nvidia-smi lists; none if it fails or takes too long."""
        process = self._process
        if process is None:
            return ()
        try:
            text, _ = process.communicate(timeout=timeout_s)
            return parse_query(text) if process.returncode == 0 else ()
        except subprocess.TimeoutExpired:
            process.kill()
        # A broken driver can keep the process alive in spite of the signal.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=0.1)
        return ()


def parse_query(text: str) -> tuple[Gpu, ...]:
    """Parse nvidia-smi's lines `name, 1024 MiB, uuid`."""
    gpus = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.rsplit(",", 2)]
        if len(fields) == 3:
            size = to_int(fields[1].removesuffix("MiB").strip())
            gpus.append(Gpu(fields[0], fields[2], None if size is None else size * MIB))
    return tuple(gpus)


def merge_gpus(driver: tuple[Gpu, ...], queried: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Return the driver's GPUs with the memory from nvidia-smi, or nvidia-smi's GPUs alone."""
    memory = {gpu.uuid: gpu.memory_bytes for gpu in queried}
    return tuple(replace(gpu, memory_bytes=memory.get(gpu.uuid)) for gpu in driver) or queried


def read_driver_gpus(root: Path = Path("/")) -> tuple[Gpu, ...]:
    """Return the GPUs under /proc/driver/nvidia/gpus, in the order of their PCI addresses."""
    tables = [read_table(f) for f in sorted((root / DRIVER_DIR).glob("*/information"))]
    return tuple(Gpu(table.get("Model", "NVIDIA GPU"), table.get("GPU UUID", "")) for table in tables)


def read_gpu_nodes(nodes: Collection[int], root: Path = Path("/")) -> tuple[int, ...]:
    """Return the NUMA node of each visible GPU, in CUDA's order; none unless all are known."""
    folders = sorted(path.parent for path in (root / DRIVER_DIR).glob("*/information"))
    uuids = [read_table(folder / "information").get("GPU UUID", "") for folder in folders]
    gpu_nodes = [_find_node(root, folder.name, nodes) for folder in folders]
    shown = os.environ.get("CUDA_VISIBLE_DEVICES") if root == Path("/") else None
    indices = range(len(uuids)) if shown is None else find_visible_gpus(uuids, shown)
    return keep_if_all_known([gpu_nodes[index] for index in indices])


def find_visible_gpus(uuids: Sequence[str], shown: str) -> list[int]:
    """Return the indices of the GPUs in CUDA_VISIBLE_DEVICES, given by number or start of a UUID."""
    indices = []
    for name in filter(None, (part.strip() for part in shown.split(","))):
        matching = [i for i, uuid in enumerate(uuids) if name == str(i) or (uuid and uuid.startswith(name))]
        # CUDA ignores everything after the first unknown entry.
        if not matching:
            break
        indices.append(matching[0])
    return indices


def count_visible_gpus(gpus: Sequence[Gpu], shown: str | None) -> int:
    """Return how many GPUs are visible if CUDA_VISIBLE_DEVICES is `shown`; None means not set."""
    if shown is None or not gpus:
        return len(gpus)
    # A process sees at most one MIG partition.
    if "MIG-" in shown:
        return 1
    return len(find_visible_gpus([gpu.uuid for gpu in gpus], shown))


def keep_if_all_known(nodes: Sequence[int | None]) -> tuple[int, ...]:
    """Return the nodes, or none of them if one is unknown."""
    known = tuple(node for node in nodes if node is not None)
    return known if len(known) == len(nodes) else ()


def _find_node(root: Path, address: str, nodes: Collection[int]) -> int | None:
    number = read_int(root / PCI_DIR / address.lower() / "numa_node")
    if number is not None and number in nodes:
        return number
    return next(iter(nodes)) if len(nodes) == 1 else None
