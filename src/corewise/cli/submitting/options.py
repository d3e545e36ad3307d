"""Options of the verbs that submit jobs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from corewise.errors import UserError, suggest_nearest

SLURM, LOCAL = "slurm", "local"
# Values of --on that start the nodes of a run from here.
NODE_LAUNCHERS = ("mpirun", "openmpi", "mpich", "srun", "torchrun")
_PANEL = "Clusters"


def _option(*names: str, **settings: Any) -> Any:
    return Option(*names, rich_help_panel=_PANEL, **settings)


OnOption = Annotated[
    str | None,
    _option(
        "--on",
        metavar="WHERE",
        help="slurm: submit jobs and follow them. srun, mpirun, torchrun: run on several nodes. local: run here.",
    ),
]
TuneOnOption = Annotated[
    str | None, _option("--on", metavar="WHERE", help="slurm: tune in a job on one node and follow it. local: here.")
]
NodesOption = Annotated[
    str | None, _option("--nodes", metavar="N,N", help="Numbers of nodes; each is one job with all its trials.")
]
PartitionOption = Annotated[str | None, _option("--partition", metavar="NAME", help="The partition of the jobs.")]
TimeOption = Annotated[
    str | None, _option("--time", metavar="LIMIT", help="Time limit of a job: 30 (minutes), 02:00:00 or 90m.")
]
AccountOption = Annotated[str | None, _option("--account", metavar="NAME", help="The account that is charged.")]
ConstraintOption = Annotated[str | None, _option("--constraint", metavar="FEATURE", help="Features of the nodes.")]
SiteOption = Annotated[str | None, _option("--site", metavar="NAME", help="A site of ~/.config/corewise/sites.yaml.")]
DetachOption = Annotated[bool, _option("--detach", help="Submit the jobs and return at once.")]
HostfileOption = Annotated[
    Path | None,
    _option("--hostfile", metavar="FILE", help="Hosts for --on mpirun or torchrun: lines like `n1` or `n1 slots=2`."),
]
StopAtOption = Annotated[float | None, Option("--stop-at", hidden=True, help="Stop before this time (Unix seconds).")]
JobOption = Annotated[str | None, Option("--job", hidden=True, help="The name of the job that this run is part of.")]


@dataclass(frozen=True)
class ClusterOptions:
    """The options of a submission, as they were given."""

    nodes: str | None = None
    partition: str | None = None
    time_limit: str | None = None
    account: str | None = None
    constraint: str | None = None
    site: str | None = None


def gather_options(
    on: str | None,
    nodes: str | None,
    partition: str | None,
    time_limit: str | None,
    account: str | None,
    constraint: str | None,
    site: str | None,
) -> ClusterOptions | None:
    """Return the options of a submission to Slurm; None if the study runs here."""
    if on == SLURM:
        return ClusterOptions(nodes, partition, time_limit, account, constraint, site)
    if on not in (None, LOCAL, *NODE_LAUNCHERS):
        raise UserError(f"--on {on}: unknown; {suggest_nearest(on, (SLURM, LOCAL, *NODE_LAUNCHERS))}")
    given = {"--partition": partition, "--time": time_limit, "--account": account, "--constraint": constraint}
    for name, value in {**given, "--site": site}.items():
        if value is not None:
            raise UserError(f"{name} is for jobs; add --on slurm")
    if nodes not in (None, "1") and on == LOCAL:
        raise UserError(f"--nodes {nodes}: this host is one node; use --on slurm, or --on mpirun --hostfile FILE")
    return None


def gather_tuning_options(
    on: str | None,
    partition: str | None,
    time_limit: str | None,
    account: str | None,
    constraint: str | None,
    site: str | None,
) -> ClusterOptions | None:
    """Return the options of a tuning in a job; None if it runs here. A tuning uses one node."""
    if on in NODE_LAUNCHERS:
        raise UserError(f"--on {on}: a tuning runs on one node; use --on slurm to tune in a job, or leave out --on")
    return gather_options(on, None, partition, time_limit, account, constraint, site)
