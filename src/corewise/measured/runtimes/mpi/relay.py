"""The process that mpirun starts in place of a rank: passes its variables on to the rank, and waits for its end.

The warm parent forks the ranks, so mpirun cannot start them itself. The code of this file is passed to `python -c`.

Measured side: standard library only, Python 3.9; it imports nothing of this package.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from typing import Optional

# What MPI_Init reads. Hydra's control descriptor (HYDI_) is one of this process and would mislead the rank.
PREFIXES = ("PMIX_", "PMI_", "PRTE_", "OMPI_", "MPIR_", "MPI_LOCAL")
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PMI_ID")
# A rank may have to import its framework before it listens.
CONNECT_LIMIT_S = 180.0
RETRY_S = 0.01


def relay_variables(name: str) -> int:
    """Connect to the rank of this process, send it the variables of MPI, and return when the rank has ended."""
    rank = next(os.environ[each] for each in RANK_VARIABLES if each in os.environ)
    connection = connect_to_rank(f"\0{name}-{rank}")
    if connection is None:
        return 1
    with connection:
        variables = [f"{key}={value}" for key, value in os.environ.items() if key.startswith(PREFIXES)]
        connection.sendall("\0".join(variables).encode("utf-8", "surrogateescape"))
        connection.shutdown(socket.SHUT_WR)
        # The rank sends nothing: its end closes the connection.
        connection.recv(1)
    return 0


def connect_to_rank(address: str) -> Optional[socket.socket]:
    """Connect to the socket of the rank, which must belong to the same user; None if it does not open in time."""
    parent, deadline = os.getppid(), time.monotonic() + CONNECT_LIMIT_S
    while time.monotonic() < deadline and os.getppid() == parent:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(address)
        except OSError:
            connection.close()
            time.sleep(RETRY_S)
            continue
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", credentials)[1] == os.getuid():
            return connection
        connection.close()
        return None
    return None


if __name__ == "__main__":
    sys.exit(relay_variables(sys.argv[1]))
