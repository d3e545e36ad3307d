"""What every launcher is given and returns. Builders are pure: they start nothing and read no environment.

A launcher starts exactly one process on each node. That process is `corewise launch` again: it reads the topology
of its node, and places and pins the ranks there. Binding by the launcher is therefore always off.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class NodeStart:
    """What a launcher has to start.

    Attributes:
        hosts: The hosts in the order of the node ranks; their number is that of the nodes.
        command: The command of the process of each node.
        address: The address of the first host, as every node reaches it.
        port: The port of the launcher's own rendezvous; only torchrun needs one.
        exported: Names of variables that processes on other hosts need.
        is_root: Whether root starts the launcher.
        program: The name or path of the launcher's program, empty for its default.
    """

    hosts: tuple[str, ...]
    command: tuple[str, ...]
    address: str = "127.0.0.1"
    port: int = 0
    exported: tuple[str, ...] = ()
    is_root: bool = False
    program: str = ""

    @property
    def num_nodes(self) -> int:
        return len(self.hosts)


@dataclass(frozen=True)
class LauncherCommand:
    """The command of a launcher, the variables it needs, and what the user should know."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


Builder = Callable[[NodeStart], LauncherCommand]
