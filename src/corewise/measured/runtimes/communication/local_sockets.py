"""Sockets among processes of one user on one node: nameless in the file system, and closed to other users.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import time
from typing import Any, List

from corewise.measured.runtimes.base import RankContext

RETRY_S = 0.005
JOIN_LIMIT_S = 120.0


def name_run(context: RankContext, purpose: str) -> str:
    """Return a name that is the same for all ranks of a run, and for no other run on their nodes."""
    shared = f"{context.address}:{context.port}" if context.num_nodes > 1 else context.rendezvous
    digest = hashlib.sha256(f"{os.getuid()} {shared}".encode()).hexdigest()
    return f"corewise-{purpose}-{digest[:24]}"


def listen_locally(name: str) -> socket.socket:
    """Open a socket of this name, which only processes of this network namespace can reach."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0{name}")
    listener.listen(1024)
    return listener


def connect_locally(name: str, limit_s: float) -> socket.socket:
    """Connect to the socket of this name; raise TimeoutError if nobody of this user opens it in time."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(f"\0{name}")
        except OSError:
            connection.close()
            time.sleep(RETRY_S)
            continue
        if is_own_peer(connection):
            return connection
        connection.close()
        break
    raise TimeoutError(f"no process of this user listens at {name} after {limit_s:g} s")


def is_own_peer(connection: socket.socket) -> bool:
    """Return whether a process of the same user is at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())


class RankLink:
    """Lets the ranks of one node share small values; for runtimes that have no collective operations."""

    def __init__(self, context: RankContext, purpose: str) -> None:
        name = name_run(context, purpose)
        self._rank = context.rank
        limit_s = min(JOIN_LIMIT_S, context.time_limit_s or JOIN_LIMIT_S)
        if context.rank:
            self._files = [connect_locally(name, limit_s).makefile("rw", encoding="utf-8")]
            self._send(self._files[0], context.rank)
            return
        self._files = []
        ranks: List[int] = []
        with listen_locally(name) as listener:
            listener.settimeout(limit_s)
            while len(self._files) < context.num_ranks - 1:
                connection, _ = listener.accept()
                if is_own_peer(connection):
                    connection.setblocking(True)
                    self._files.append(connection.makefile("rw", encoding="utf-8"))
                    ranks.append(self._receive(self._files[-1]))
        self._files = [file for _, file in sorted(zip(ranks, self._files), key=lambda pair: pair[0])]

    def share(self, value: Any) -> List[Any]:
        """Return the values of all ranks in their order; raise ConnectionError if a rank has ended."""
        if self._rank:
            self._send(self._files[0], value)
            return list(self._receive(self._files[0]))
        values = [value, *(self._receive(file) for file in self._files)]
        for file in self._files:
            self._send(file, values)
        return values

    def close(self) -> None:
        """Close the connections."""
        for file in self._files:
            file.close()

    @staticmethod
    def _send(file: Any, value: Any) -> None:
        file.write(json.dumps(value) + "\n")
        file.flush()

    @staticmethod
    def _receive(file: Any) -> Any:
        line = file.readline()
        if not line:
            raise ConnectionError("another rank of this trial has ended")
        return json.loads(line)
