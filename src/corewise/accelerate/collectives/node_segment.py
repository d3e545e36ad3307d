"""The shared segment of the ranks of one node: nameless memory, passed over an abstract socket to the same user.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import socket
import struct
import time
from pathlib import Path
from typing import List, Optional

from corewise.accelerate.unsupported import Unsupported

# Memory that stays free below the limit of a cgroup once the segment is in use.
MIN_FREE_BYTES = 64 << 20


def describe_node() -> str:
    """Describe what processes must have in common to share memory: kernel, namespaces, user."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespaces = [os.readlink(f"/proc/self/ns/{name}") for name in ("pid", "net", "user")]
    return " ".join([boot, *namespaces, f"uid:{os.getuid()}"])


def explain_missing_memory(num_bytes: int) -> str:
    """Return why the cgroup of this process has no room for a segment of this size, or an empty text."""
    free = _find_free_bytes()
    if free is not None and free < num_bytes + MIN_FREE_BYTES:
        return f"the cgroup has {free >> 20} MB left, and the shared segment needs {num_bytes >> 20} MB"
    return ""


def _find_free_bytes() -> Optional[int]:
    found = [_read_free_bytes(folder, "memory.max", "memory.current") for folder in _list_cgroups("", "")]
    # The first version of cgroups has a tree for each controller.
    usage = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    found += [_read_free_bytes(folder, *usage) for folder in _list_cgroups("memory", "memory")]
    return min((free for free in found if free is not None), default=None)


def _list_cgroups(controller: str, mount: str) -> List[str]:
    """List the root of a tree of cgroups and the folder of this process in it; a container may see only the root."""
    folders = [os.path.join("/sys/fs/cgroup", mount)]
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                folders.append(folders[0].rstrip("/") + path.rstrip("/"))
    return folders


def _read_free_bytes(folder: str, limit_name: str, usage_name: str) -> Optional[int]:
    try:
        limit = Path(folder, limit_name).read_text().strip()
        return None if limit == "max" else int(limit) - int(Path(folder, usage_name).read_text())
    except (OSError, ValueError):
        return None


class SegmentServer:
    """The first rank's side: creates the segment and hands it to the other ranks of the node."""

    def __init__(self, num_bytes: int) -> None:
        self.descriptor = os.memfd_create("corewise-collectives", os.MFD_CLOEXEC)
        try:
            # Another process of this user could open it through /proc; other users cannot.
            os.fchmod(self.descriptor, 0o600)
            os.ftruncate(self.descriptor, num_bytes)
            self.name = secrets.token_hex(16)
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.bind(f"\0corewise-{self.name}")
            self._socket.listen(1024)
        except OSError:
            os.close(self.descriptor)
            raise

    def serve(self, num_ranks: int, timeout_s: float) -> None:
        """Hand the segment to this many ranks of the same user; raise Unsupported if one does not ask in time."""
        deadline = time.monotonic() + timeout_s
        served = 0
        with self._socket:
            while served < num_ranks:
                self._socket.settimeout(max(0.001, deadline - time.monotonic()))
                try:
                    connection, _ = self._socket.accept()
                except socket.timeout:
                    raise Unsupported(f"{num_ranks - served} ranks did not ask for the shared segment") from None
                with connection:
                    if _is_own_peer(connection):
                        socket.send_fds(connection, [b"s"], [self.descriptor])
                        served += 1


def receive_segment(name: str, timeout_s: float) -> int:
    """Receive the descriptor of the segment from the first rank of this node."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(f"\0corewise-{name}")
        if not _is_own_peer(connection):
            raise Unsupported("the shared segment is offered by another user")
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    if not descriptors:
        raise Unsupported("the first rank of this node sent no shared segment")
    return descriptors[0]


def map_segment(descriptor: int, num_bytes: int) -> mmap.mmap:
    """Map the segment and close its descriptor; the memory vanishes with the last process that maps it."""
    try:
        segment = mmap.mmap(descriptor, num_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        # A process that a rank forks, such as a data loader, neither keeps the memory nor takes part.
        segment.madvise(mmap.MADV_DONTFORK)
        return segment
    finally:
        os.close(descriptor)


def _is_own_peer(connection: socket.socket) -> bool:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return bool(uid == os.getuid())
