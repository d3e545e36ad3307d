"""One node, this one: the command itself."""

from corewise.errors import UserError
from corewise.launch.launchers.contract import LauncherCommand, NodeStart


def build_local(start: NodeStart) -> LauncherCommand:
    """Build the command for this machine; raise a UserError for more than one node."""
    if start.num_nodes != 1:
        raise UserError(f"the launcher `local` starts one node, not {start.num_nodes}; use srun or mpirun")
    return LauncherCommand(start.command)
