"""Two hosts in network namespaces of this machine, joined by a link of limited bandwidth."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

# Private addresses; the namespaces have no way out of this machine.
ADDRESSES = ("10.213.77.1", "10.213.77.2")
LINK = "eth0"
# Plays the role of ssh for mpirun: the first argument is the host, the others are the command.
REMOTE_SHELL = """#!/bin/sh
host=$1
shift
case $host in
{cases}
*) echo "no such host: $host" >&2; exit 255;;
esac
"""


@dataclass(frozen=True)
class NetworkHosts:
    """The namespaces of both hosts, a host file, and the variables with which mpirun reaches them."""

    namespaces: tuple[str, str]
    hostfile: Path
    env: dict[str, str]

    def run(self, command: Sequence[str], *, timeout_s: float = 300) -> "subprocess.CompletedProcess[str]":
        """Run a command on the first host."""
        return subprocess.run(
            ["ip", "netns", "exec", self.namespaces[0], *command],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def limit(self, rate: str) -> None:
        """Limit the link to this rate in both directions, for example `100mbit`."""
        for name in self.namespaces:
            _call("ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", LINK, "root", "tbf")(
                "rate", rate, "burst", "128kb", "latency", "50ms"
            )


def need_network_hosts(need: Callable[[bool, str], None]) -> None:
    """Skip the test where namespaces cannot be made; `need` is the fixture of tests/conftest.py."""
    need(os.geteuid() == 0, "root, to make network namespaces")
    need(all(shutil.which(program) for program in ("ip", "tc")), "iproute2")
    need(shutil.which("mpirun.openmpi") is not None, "Open MPI")


@contextmanager
def run_two_hosts() -> Iterator[NetworkHosts]:
    """Make the hosts and remove them with everything that runs on them."""
    names = (f"cw{os.getpid()}a", f"cw{os.getpid()}b")
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="cw-hosts-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for name in names:
            _call("ip", "netns", "add", name)()
            stack.callback(_remove, name)
        _call("ip", "link", "add", LINK, "netns", names[0], "type", "veth")("peer", "name", LINK, "netns", names[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            for words in (f"addr add {address}/24 dev {LINK}", f"link set {LINK} up", "link set lo up"):
                _call("ip", "-n", name, *words.split())()
        shell = folder / "remote-shell"
        cases = [
            f'{address}) exec ip netns exec {name} sh -c "$*";;' for name, address in zip(names, ADDRESSES, strict=True)
        ]
        shell.write_text(REMOTE_SHELL.format(cases="\n".join(cases)))
        shell.chmod(0o755)
        hostfile = folder / "hosts"
        hostfile.write_text("\n".join(ADDRESSES) + "\n")
        env = {**os.environ, "OMPI_MCA_plm_rsh_agent": str(shell)}
        yield NetworkHosts(names, hostfile, env)


def _call(*words: str) -> Callable[..., None]:
    def run(*more: str) -> None:
        subprocess.run([*words, *more], check=True, capture_output=True, text=True)

    return run


def _remove(name: str) -> None:
    found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
    for pid in found.stdout.split():
        subprocess.run(["kill", "-9", pid], capture_output=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
