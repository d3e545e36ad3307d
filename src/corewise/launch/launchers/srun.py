"""Slurm's srun, inside an allocation."""

from corewise.launch.launchers.contract import LauncherCommand, NodeStart


def build_srun(start: NodeStart) -> LauncherCommand:
    """Build the srun command.

    The step shares the CPUs of the job (--overlap), so that it also starts inside an interactive step. A process
    that fails ends the step on all nodes.
    """
    num_nodes = start.num_nodes
    step = [f"--nodes={num_nodes}", f"--ntasks={num_nodes}", "--ntasks-per-node=1", "--distribution=block"]
    manner = ["--cpu-bind=none", "--mem-bind=none", "--mpi=none", "--overlap", "--kill-on-bad-exit=1"]
    hosts = [f"--nodelist={','.join(start.hosts)}"]
    return LauncherCommand((start.program or "srun", *step, *manner, *hosts, "--", *start.command))
