"""Open MPI's mpirun, over ssh or on this machine."""

from collections import Counter

from corewise.launch.launchers.contract import LauncherCommand, NodeStart

ROOT_NOTE = "mpirun of Open MPI refuses to run as root; --allow-run-as-root is passed"


def build_openmpi(start: NodeStart) -> LauncherCommand:
    """Build the mpirun command of Open MPI; a host that is listed twice runs two node processes."""
    slots = ",".join(f"{host}:{count}" for host, count in Counter(start.hosts).items())
    argv = [start.program or "mpirun", *(["--allow-run-as-root"] if start.is_root else [])]
    argv += ["--np", str(start.num_nodes), "--host", slots, "--map-by", "slot", "--bind-to", "none"]
    for name in start.exported:
        argv += ["-x", name]
    return LauncherCommand((*argv, *start.command), notes=(ROOT_NOTE,) if start.is_root else ())
