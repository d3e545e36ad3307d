"""The NVIDIA GPUs of a machine, from the driver's files and nvidia-smi."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from corewise.machine.sysfs import read_int, read_table, to_int

MIB = 1 << 20
QUERY_TIMEOUT_S = 2.0
DRIVER_DIR = "proc/driver/nvidia/gpus"
PCI_DIR = "sys/bus/pci/devices"


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
    tables = [read_table(f) for f in sorted((root / DRIVER_DIR).glob("*/information"))]
    return tuple(Gpu(table.get("Model", "NVIDIA GPU"), table.get("GPU UUID", "")) for table in tables)


def read_gpu_nodes(nodes: Collection[int], root: Path = Path("/")) -> tuple[int, ...]:
    """The NUMA node of each GPU that programs see, in their order; none unless all are known."""
    folders = sorted(path.parent for path in (root / DRIVER_DIR).glob("*/information"))
    uuids = [read_table(folder / "information").get("GPU UUID", "") for folder in folders]
    found = [_node(root, folder.name, nodes) for folder in folders]
    shown = os.environ.get("CUDA_VISIBLE_DEVICES") if root == Path("/") else None
    return known_nodes(found if shown is None else [found[i] for i in visible(uuids, shown)])


def visible(uuids: Sequence[str], shown: str) -> list[int]:
    """The places of the GPUs that CUDA_VISIBLE_DEVICES names, by number or by the start of a UUID."""
    places = []
    for word in filter(None, (part.strip() for part in shown.split(","))):
        matching = [i for i, uuid in enumerate(uuids) if word == str(i) or (uuid and uuid.startswith(word))]
        if not matching:
            break  # as CUDA does: what follows an unknown one is not seen
        places.append(matching[0])
    return places


def num_visible(gpus: Sequence[Gpu], shown: str | None) -> int:
    """How many of the GPUs programs see where CUDA_VISIBLE_DEVICES is `shown`; None: it is not set."""
    if shown is None or not gpus:
        return len(gpus)
    if "MIG-" in shown:
        return 1  # a process sees one part of a GPU at the most
    return len(visible([gpu.uuid for gpu in gpus], shown))


def known_nodes(nodes: Sequence[int | None]) -> tuple[int, ...]:
    """The nodes, or none of them where one is not known."""
    known = tuple(node for node in nodes if node is not None)
    return known if len(known) == len(nodes) else ()


def _node(root: Path, address: str, nodes: Collection[int]) -> int | None:
    number = read_int(root / PCI_DIR / address.lower() / "numa_node")
    if number is not None and number in nodes:
        return number
    return next(iter(nodes)) if len(nodes) == 1 else None  # where there is one node, it is that
