"""MPICH's mpirun (Hydra), over ssh or on this machine. Intel MPI's launcher takes the same options."""

from collections import Counter

from corewise.launch.launchers.contract import LauncherCommand, NodeStart


def build_mpich(start: NodeStart) -> LauncherCommand:
    """Build the mpirun command of MPICH, which exports the whole environment."""
    slots = ",".join(f"{host}:{count}" for host, count in Counter(start.hosts).items())
    argv = [start.program or "mpirun", "-n", str(start.num_nodes), "-hosts", slots, "-bind-to", "none"]
    return LauncherCommand((*argv, *start.command))
