"""Plans the ranks of a launch: CPUs, memory policy, environment and command of each. Starts nothing.

Placement and environment come from the functions that trials use, so a launch runs what was measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corewise.launch.environment import build_trial_environment, is_controlled, strip_controlled_variables
from corewise.launch.rendezvous import ONE_NODE, NodeShare, build_rendezvous_variables
from corewise.launch.worker_commands import format_shell_line
from corewise.machine.machine_model import Topology
from corewise.machine.placement import place_ranks
from corewise.measured.parameters import Binding, TrialParameters
from corewise.measured.pinning import format_cpu_list
from corewise.measured.trial import RankPlacement

# The parameters of a trial that can be set from outside a program, with their defaults.
# By default, threads fill the cores.
OUTSIDE_DEFAULTS: Mapping[str, Any] = {
    "processes": 1,
    "threads": None,
    "placement": "compact",
    "smt": False,
    "memory_policy": "default",
    "bind": "rank",
    "reserved_cores": 0,
    "oversubscribe": False,
    "allocator": "default",
    "openmp": "default",
    "wait_policy": "default",
    "huge_pages": "default",
}


@dataclass(frozen=True)
class RankStart:
    """Everything needed to start one rank.

    Attributes:
        is_confined: Whether the rank is bound to the placement's CPUs; False for `bind: none`.
        variables: The variables that the launch sets.
        env: The complete environment of the rank.
    """

    rank: int
    command: tuple[str, ...]
    placement: RankPlacement
    is_confined: bool
    variables: Mapping[str, str]
    env: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class LaunchContext:
    """The machine and environment that a launch runs in.

    Attributes:
        cpus: The CPUs of the allocation.
        libraries: Libraries that can be preloaded, by name.
    """

    topology: Topology
    cpus: tuple[int, ...]
    libraries: Mapping[str, Path] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ChangedVariable:
    """A variable of the user that the launch changes; `becomes` is None when the launch removes it."""

    name: str
    value: str
    becomes: str | None


def fill_params(given: Mapping[str, Any], topology: Topology, cpus: Sequence[int]) -> dict[str, Any]:
    """Complete the parameters with defaults; threads fill the allocation."""
    params = {name: given.get(name, default) for name, default in OUTSIDE_DEFAULTS.items()}
    if params["threads"] is None:
        num_usable = _count_usable_cpus(topology, cpus, bool(params["smt"]), int(params["reserved_cores"]))
        params["threads"] = max(1, num_usable // max(1, int(params["processes"])))
    return params


def place_trial_ranks(topology: Topology, cpus: Sequence[int], params: TrialParameters) -> tuple[RankPlacement, ...]:
    """Place the ranks of a trial; raises PlacementError when they do not fit."""
    return place_ranks(
        topology,
        cpus,
        num_processes=params.processes,
        num_threads=params.threads,
        policy=params.placement.value,
        smt=params.smt,
        memory_policy=params.memory_policy.value,
        num_reserved_cores=params.reserved_cores,
        oversubscribe=params.oversubscribe,
    )


def plan_ranks(
    params: TrialParameters,
    command: Sequence[str],
    context: LaunchContext,
    *,
    extra: Mapping[str, str] | None = None,
    port: int | None = None,
    keep_env: bool = False,
    unbuffered: bool = False,
    node: NodeShare = ONE_NODE,
) -> tuple[RankStart, ...]:
    """Plan every rank of a launch.

    Args:
        extra: Variables that the user asked for; they override all others.
        port: The rendezvous port of the ranks, None for independent processes.
        keep_env: Whether variables of the user override those of the trial.
        unbuffered: Whether Python ranks print line by line, unless the user has set PYTHONUNBUFFERED.
        node: The node that these ranks run on; ranks are numbered over all nodes.
    """
    placements = place_trial_ranks(context.topology, context.cpus, params)
    asked_for = dict(extra or {})
    common = build_trial_environment(params, context.libraries, asked_for)
    if unbuffered and "PYTHONUNBUFFERED" not in context.env:
        common["PYTHONUNBUFFERED"] = "1"
    inherited = dict(context.env) if keep_env else strip_controlled_variables(context.env)
    starts = []
    num_local = len(placements)
    for local_rank, placement in enumerate(placements):
        rank = node.node_rank * num_local + local_rank
        rank_variables = _build_rank_variables(rank, node.num_nodes * num_local)
        own = {**common, **_build_place_variables(params, placement), **rank_variables}
        if port is not None:
            own.update(build_rendezvous_variables(local_rank, num_local, port, node))
        if keep_env:
            own = _drop_user_variables(own, context.env)
        own.update(asked_for)
        env = {**inherited, **own}
        is_confined = params.bind != Binding.NONE
        starts.append(RankStart(rank, tuple(command), placement, is_confined, own, env))
    return tuple(starts)


def find_changed_variables(start: RankStart, outer: Mapping[str, str]) -> list[ChangedVariable]:
    """List the user's variables that a launch overrides or removes."""
    return [
        ChangedVariable(name, value, start.env.get(name))
        for name, value in sorted(outer.items())
        if start.env.get(name) != value
    ]


def format_start_line(start: RankStart, outer: Mapping[str, str]) -> str:
    """Format a shell line that starts the rank with standard tools."""
    dropped = {name: value for name, value in outer.items() if name not in start.env}
    return format_shell_line([*build_binding_prefix(start), *start.command], start.variables, dropped)


def build_binding_prefix(start: RankStart) -> list[str]:
    """Build the taskset and numactl prefix that is equivalent to the system calls of a launch."""
    prefix = ["taskset", "-c", format_cpu_list(start.placement.cpus)] if start.is_confined else []
    if start.placement.memory_policy == "local":
        prefix += ["numactl", "--localalloc"]
    elif start.placement.memory_policy == "interleave":
        prefix += ["numactl", f"--interleave={format_cpu_list(start.placement.memory_nodes)}"]
    return prefix


def _count_usable_cpus(topology: Topology, cpus: Sequence[int], smt: bool, num_reserved: int) -> int:
    siblings: dict[int, int] = {}
    for cpu in topology.select_cpus(tuple(cpus)).cpus:
        siblings[cpu.core] = siblings.get(cpu.core, 0) + 1
    # Placement reserves the first cores too.
    left = [siblings[core] for core in sorted(siblings)[num_reserved:]]
    return sum(left) if smt else len(left)


def _build_place_variables(params: TrialParameters, placement: RankPlacement) -> dict[str, str]:
    """Build the OpenMP places for `bind: core`, one per CPU."""
    if params.bind != Binding.CORE:
        return {}
    places = ",".join(f"{{{cpu}}}" for cpu in placement.cpus)
    return {"OMP_PLACES": places, "OMP_PROC_BIND": "close"}


def _build_rank_variables(rank: int, num_ranks: int) -> dict[str, str]:
    return {"COREWISE_RANK": str(rank), "COREWISE_NUM_RANKS": str(num_ranks)}


def _drop_user_variables(own: Mapping[str, str], outer: Mapping[str, str]) -> dict[str, str]:
    """Drop our variables that the user has set; LD_PRELOAD is combined, with our libraries first."""
    kept = {name: value for name, value in own.items() if not (is_controlled(name) and name in outer)}
    if "LD_PRELOAD" in own and outer.get("LD_PRELOAD"):
        kept["LD_PRELOAD"] = f"{own['LD_PRELOAD']}:{outer['LD_PRELOAD']}"
    return kept
