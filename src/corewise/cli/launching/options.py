"""Options of `corewise launch`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from corewise.study.axes import AXES

_place = partial(typer.Option, rich_help_panel="Placement")
_prepare = partial(typer.Option, rich_help_panel="Environment of the processes")
_spread = partial(typer.Option, rich_help_panel="Several nodes")
_configure = partial(typer.Option, rich_help_panel="Settings from a file")
_output = partial(typer.Option, rich_help_panel="Output and termination")


def _choose(make: Callable[..., Any], option: str, axis: str, text: str) -> Any:
    """Return an option that takes one of the values of an axis."""
    values = AXES[axis].choices
    text = f"{' | '.join(values)}: {text}"
    return make(option, metavar="VALUE", help=text, autocompletion=lambda: list(values))


Command = Annotated[
    list[str] | None, typer.Argument(metavar="COMMAND", show_default=False, help="The command, after --.")
]
Processes = Annotated[int | None, _place("-p", "--processes", metavar="N", help="Processes (ranks); default 1.")]
Threads = Annotated[
    int | None,
    _place("-t", "--threads", metavar="N", help="Threads per process; default: all cores divided by the processes."),
]
Policy = Annotated[str | None, _choose(_place, "--policy", "placement", "which cores the processes get.")]
Smt = Annotated[bool | None, _place("--smt", help="Also use the second hardware thread of each core.")]
Bind = Annotated[
    str | None,
    _choose(_place, "--bind", "bind", "pin processes to their cores, OpenMP threads to one core each, or neither."),
]
MemoryPolicy = Annotated[
    str | None, _choose(_place, "--memory-policy", "memory_policy", "which NUMA nodes memory comes from.")
]
ReservedCores = Annotated[
    int | None, _place("--reserved-cores", metavar="N", help="Cores left to the system; default 0.")
]
Oversubscribe = Annotated[bool | None, _place("--oversubscribe", help="Allow more threads than cores.")]
Allocator = Annotated[str | None, _choose(_prepare, "--allocator", "allocator", "retain: glibc keeps freed memory.")]
Openmp = Annotated[str | None, _choose(_prepare, "--openmp", "openmp", "OpenMP library to preload.")]
WaitPolicy = Annotated[
    str | None, _choose(_prepare, "--wait-policy", "wait_policy", "whether idle OpenMP threads spin.")
]
HugePages = Annotated[
    str | None, _choose(_prepare, "--huge-pages", "huge_pages", "request huge pages from the kernel.")
]
Env = Annotated[
    list[str] | None,
    _prepare("--env", metavar="NAME=VALUE", help="Set a variable, overriding all other settings; may be repeated."),
]
KeepEnv = Annotated[bool, _prepare("--keep-env", help="Keep your OMP_…, LD_PRELOAD and so on if set.")]
Rendezvous = Annotated[
    bool | None,
    _prepare(
        "--rendezvous/--replicas",
        show_default=False,
        help="Set torchrun's variables (RANK …), the default for several processes; "
        "--replicas: independent processes, set none of them.",
    ),
]
MasterPort = Annotated[
    int,
    _prepare(
        "--master-port",
        metavar="PORT",
        show_default=False,
        help="Port of the rendezvous; default: a free port, held until the processes use it.",
    ),
]
Nodes = Annotated[
    int | None, _spread("--nodes", metavar="N", help="Nodes; --processes and --threads then count for each node.")
]
Launcher = Annotated[
    str,
    _spread(
        "--launcher",
        metavar="NAME",
        show_default=False,
        help="srun | mpirun | openmpi | mpich | torchrun | local; default: mpirun with --hostfile, else srun.",
    ),
]
Hostfile = Annotated[
    Path | None,
    _spread("--hostfile", metavar="FILE", help="Hosts, one a line; a host with slots=2 stands for two nodes."),
]
NodeOf = Annotated[str, typer.Option("--node-of", hidden=True)]
Config = Annotated[
    Path | None,
    _configure("--config", metavar="FILE", help="Settings written by `corewise tune`; other options override them."),
]
TrustEnvironment = Annotated[
    bool, _configure("--trust-environment", help="Accept variables of the file that can load code, such as LD_PRELOAD.")
]
Adapt = Annotated[bool, _configure("--adapt", help="Adapt settings that were tuned on another machine.")]
NoPrefix = Annotated[bool, _output("--no-prefix", help="No [RANK] before each line.")]
LogDir = Annotated[
    str | None,
    _output(
        "--log-dir", metavar="DIR", help="Save the output of each process as rank-N.log; older logs move to older-N/."
    ),
]
Grace = Annotated[
    str, _output("--grace", metavar="TIME", help="Time between SIGTERM and SIGKILL after another process failed.")
]
Verify = Annotated[
    bool,
    _output(
        "--verify", help="Watch the CPUs of every thread and print a table; exit 1 if a thread ran outside its CPUs."
    ),
]
Json = Annotated[Path | None, _output("--json", metavar="FILE", help="Write the outcome as one JSON object.")]
DryRun = Annotated[bool, _output("--dry-run", help="Print the command line of each process; start nothing.")]
Quiet = Annotated[bool, _output("-q", "--quiet", help="Print errors only.")]
