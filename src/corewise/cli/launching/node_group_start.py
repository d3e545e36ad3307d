"""`corewise run --on srun|mpirun|torchrun`: start one agent on each node through a launcher."""

import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from corewise.cli.launching.nodes import EXPORTED, PORTS, choose_launcher, find_address, find_hosts
from corewise.cli.submitting.options import LOCAL, NODE_LAUNCHERS
from corewise.errors import UserError
from corewise.launch.launchers.contract import NodeStart
from corewise.launch.launchers.registry import get_builder
from corewise.launch.worker_commands import format_shell_line

if TYPE_CHECKING:
    from corewise.run.nodes.node_group import NodeGroup

LOOPBACK = "127.0.0.1"
# Any port serves to find the route to a host: nothing is sent.
DISCARD_PORT = 9


@dataclass(frozen=True)
class NodesWanted:
    """The nodes that the user asked for, and the launcher; empty for the one that fits."""

    num_nodes: int | None
    launcher: str
    hostfile: Path | None


def choose_nodes(
    on: str | None, nodes: str | None, hostfile: Path | None, env: Mapping[str, str]
) -> NodesWanted | None:
    """Return the nodes that a run needs agents on; None for a run on this machine alone.

    Raises:
        UserError: the options contradict each other.
    """
    if on == LOCAL or (on is None and nodes in (None, "1") and hostfile is None):
        return None
    if nodes is not None and not (nodes.isdecimal() and int(nodes) > 0):
        raise UserError(f"--nodes {nodes}: a run here takes one number of nodes; several need --on slurm")
    if on is None and hostfile is None and not env.get("SLURM_JOB_NODELIST"):
        raise UserError(
            f"--nodes {nodes}: there is no Slurm job and no host file; add --on slurm to submit one, "
            "or --on mpirun --hostfile FILE"
        )
    launcher = on if on in NODE_LAUNCHERS else ""
    return NodesWanted(int(nodes) if nodes is not None else None, launcher or "", hostfile)


@contextmanager
def open_node_group(wanted: NodesWanted, store: Path, *, quiet: bool) -> Iterator["NodeGroup"]:
    """Start the agents, yield their group, and end them."""
    from corewise.run.nodes.node_group import open_group
    from corewise.store.store import Store

    hosts = find_hosts(wanted, os.environ)
    launcher, program = choose_launcher(wanted, os.environ)
    addresses = [find_address(host, uses_slurm=launcher == "srun") for host in dict.fromkeys(hosts)]
    own_address = choose_own_address([find_route_source(address) for address in addresses])

    def start(port: int, secret: Path, log: Path) -> list["subprocess.Popen[bytes]"]:
        # -P keeps Python from importing modules of the working directory.
        agent = (sys.executable, "-P", "-m", "corewise.run.nodes")
        built = get_builder(launcher)(
            NodeStart(
                hosts=hosts,
                # No options: torchrun would take them for its own.
                command=(*agent, f"{own_address}:{port}", str(secret)),
                address=addresses[0],
                port=random.SystemRandom().choice(PORTS),
                exported=tuple(name for name in EXPORTED if os.environ.get(name)),
                is_root=os.geteuid() == 0,
                program=program,
            )
        )
        num_here = 1
        if launcher == "torchrun":
            num_here = sum(find_route_source(find_address(host, uses_slurm=False)) == LOOPBACK for host in hosts)
            if num_here < len(hosts):
                line = format_shell_line(list(built.argv), dict(built.env), {})
                print(f"corewise: type on each of the other hosts:\n  {line}", file=sys.stderr, flush=True)
        with open(log, "ab") as out:
            return [
                subprocess.Popen(
                    built.argv,
                    env={**os.environ, **built.env},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
                for _ in range(num_here)
            ]

    # Agents read the secret from the store, so it must exist first.
    group = open_group(len(hosts), Store.open(store, create=True).path.absolute() / "nodes", start)
    try:
        if not quiet:
            for note in group.notes:
                print(f"corewise: {note}", file=sys.stderr)
        yield group
    finally:
        group.close()


def find_route_source(address: str) -> str:
    """Return the address of this machine from which it reaches the other one; sends nothing."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(address, DISCARD_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            source = str(probe.getsockname()[0])
    except OSError as problem:
        raise UserError(f"host {address!r} cannot be reached: {problem.strerror or problem}") from None
    own = socket.getaddrinfo(address, None)[0][4][0]
    # A packet to an address of this machine never leaves it.
    return LOOPBACK if source == own else source


def choose_own_address(sources: Sequence[str]) -> str:
    """Return the address of this machine that all hosts reach: the loopback only if all are this machine."""
    return next((source for source in sources if source != LOOPBACK), LOOPBACK)
