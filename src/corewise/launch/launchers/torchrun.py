"""torchrun, which is started on every node and meets the others at the first host."""

from corewise.launch.launchers.contract import LauncherCommand, NodeStart

NOTE = "torchrun starts no process on other hosts: run the same command with the same --master-port on each of them"


def build_torchrun(start: NodeStart) -> LauncherCommand:
    """Build the torchrun command of each node; the agents agree on the node ranks."""
    argv = [start.program or "torchrun", f"--nnodes={start.num_nodes}", "--nproc-per-node=1", "--max-restarts=0"]
    argv += ["--rdzv-backend=c10d", f"--rdzv-endpoint={start.address}:{start.port}", "--rdzv-id=corewise"]
    notes = (NOTE,) if start.num_nodes > 1 else ()
    return LauncherCommand((*argv, "--no-python", *start.command), notes=notes)
