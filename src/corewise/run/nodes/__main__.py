"""The process that `corewise run --on` starts on each node: `python -m corewise.run.nodes HOST:PORT SECRET-FILE`."""

import os
import sys
from pathlib import Path

from corewise.cluster import ClusterError, resolve
from corewise.errors import UserError
from corewise.measured.runtimes.mpi.mpirun_command import USER_PREFIXES
from corewise.run.nodes.node_agent import serve_node

# Variables that describe the launcher's one process per node. An MPI library inside a rank would take them for a job
# of its own, and torch for its rank.
LAUNCHER_PREFIXES = (
    "OMPI_",
    "PMI_",
    "PMIX_",
    "HYDI_",
    "HYDRA_",
    "MPI_LOCAL",
    "MPIR_CVAR_CH3_INTERFACE",
    "TORCHELASTIC_",
)
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def main() -> int:
    """Serve the run that is named on the command line; return the exit code."""
    where, secret_file = sys.argv[1:]
    address, _, port = where.rpartition(":")
    try:
        node_rank = resolve(os.environ).rank
        for name in list(os.environ):
            # The user's settings of MPI, such as its remote shell, also hold for ranks that use MPI.
            is_of_launcher = name.startswith(LAUNCHER_PREFIXES) and not name.startswith(USER_PREFIXES)
            if is_of_launcher or name in RANK_VARIABLES:
                del os.environ[name]
        serve_node(node_rank, address, int(port), Path(secret_file))
    except (UserError, ClusterError) as problem:
        print(f"corewise: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
