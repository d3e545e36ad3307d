"""The ranks of a launch as values: CPUs, memory policy, environment and words of each. Starts nothing.

Placement and environment come from the functions that trials use, so that what was measured is what runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corewise.launcher.environment import inherited_environment, is_controlled, trial_environment
from corewise.launcher.local import shell_line
from corewise.launcher.rendezvous import rendezvous_variables
from corewise.machine.model import Topology
from corewise.machine.pinning import format_cpu_list
from corewise.machine.placement import place
from corewise.spec.trial import RankPlacement

# Every parameter of a trial that can be set from outside a program, with its default; threads fill the cores.
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
    """All that is needed to start one rank."""

    rank: int
    words: tuple[str, ...]
    placement: RankPlacement
    confined: bool  # to the placement's CPUs; `bind: none` leaves a rank the whole allocation
    variables: Mapping[str, str]  # what launch sets
    env: Mapping[str, str]  # all that the rank sees


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a launch finds around it."""

    topology: Topology
    cpus: tuple[int, ...]  # of the allocation
    libraries: Mapping[str, Path] = field(default_factory=dict)  # to preload, by name
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Changed:
    """A variable of the user's that ranks will not see as it was."""

    name: str
    value: str
    becomes: str | None  # None: it is left out


def complete_params(given: Mapping[str, Any], topology: Topology, cpus: Sequence[int]) -> dict[str, Any]:
    """The parameters with defaults for what was not given; threads fill the allocation."""
    params = {name: given.get(name, default) for name, default in OUTSIDE_DEFAULTS.items()}
    if params["threads"] is None:
        num_usable = _num_usable(topology, cpus, bool(params["smt"]), int(params["reserved_cores"]))
        params["threads"] = max(1, num_usable // max(1, int(params["processes"])))
    return params


def place_params(
    topology: Topology, cpus: Sequence[int], params: Mapping[str, Any]
) -> tuple[RankPlacement, ...]:
    """One placement per rank, for the parameters of a trial; raises PlacementError when that cannot be."""
    return place(
        topology,
        cpus,
        num_processes=int(params["processes"]),
        num_threads=int(params["threads"]),
        policy=str(params["placement"]),
        smt=bool(params["smt"]),
        memory_policy=str(params["memory_policy"]),
        num_reserved_cores=int(params["reserved_cores"]),
        oversubscribe=bool(params["oversubscribe"]),
    )


def plan_ranks(
    params: Mapping[str, Any],
    command: Sequence[str],
    around: Surroundings,
    *,
    extra: Mapping[str, str] | None = None,
    port: int | None = None,
    keep_env: bool = False,
    unbuffered: bool = False,
) -> tuple[RankStart, ...]:
    """Every rank of a launch; `port` is where they meet, None for processes that need not know each other.

    `unbuffered` asks a Python that prints into a pipe to do so line by line, unless the user has a say in it.
    """
    placements = place_params(around.topology, around.cpus, params)
    asked_for = dict(extra or {})
    common = trial_environment(params, around.libraries, asked_for)
    if unbuffered and "PYTHONUNBUFFERED" not in around.env:
        common["PYTHONUNBUFFERED"] = "1"
    inherited = dict(around.env) if keep_env else inherited_environment(around.env)
    starts = []
    for rank, placement in enumerate(placements):
        own = {**common, **_place_variables(params, placement), **_own_number(rank, len(placements))}
        if port is not None:
            own.update(rendezvous_variables(rank, len(placements), port))
        if keep_env:
            own = _yielding(own, around.env)
        own.update(asked_for)
        env = {**inherited, **own}
        confined = params["bind"] != "none"
        starts.append(RankStart(rank, tuple(command), placement, confined, own, env))
    return tuple(starts)


def changed_variables(start: RankStart, outer: Mapping[str, str]) -> list[Changed]:
    """The user's own variables that a launch overrides or leaves out."""
    return [
        Changed(name, value, start.env.get(name))
        for name, value in sorted(outer.items())
        if start.env.get(name) != value
    ]


def start_line(start: RankStart, outer: Mapping[str, str]) -> str:
    """One line for a shell that starts the rank by common tools, every word quoted."""
    dropped = {name: value for name, value in outer.items() if name not in start.env}
    return shell_line([*binding_words(start), *start.words], start.variables, dropped)


def binding_words(start: RankStart) -> list[str]:
    """The words of taskset and numactl that do to a command what a launch does by system calls."""
    words = ["taskset", "-c", format_cpu_list(start.placement.cpus)] if start.confined else []
    if start.placement.memory_policy == "local":
        words += ["numactl", "--localalloc"]
    elif start.placement.memory_policy == "interleave":
        words += ["numactl", f"--interleave={format_cpu_list(start.placement.memory_nodes)}"]
    return words


def _num_usable(topology: Topology, cpus: Sequence[int], smt: bool, num_reserved: int) -> int:
    siblings: dict[int, int] = {}
    for cpu in topology.restricted(tuple(cpus)).cpus:
        siblings[cpu.core] = siblings.get(cpu.core, 0) + 1
    left = [siblings[core] for core in sorted(siblings)[num_reserved:]]  # as placement reserves them
    return sum(left) if smt else len(left)


def _place_variables(params: Mapping[str, Any], placement: RankPlacement) -> dict[str, str]:
    """For `bind: core` one place per CPU; a command is started afresh, so OpenMP reads them in time."""
    if params["bind"] != "core":
        return {}
    places = ",".join(f"{{{cpu}}}" for cpu in placement.cpus)
    return {"OMP_PLACES": places, "OMP_PROC_BIND": "close"}


def _own_number(rank: int, num_ranks: int) -> dict[str, str]:
    return {"COREWISE_RANK": str(rank), "COREWISE_NUM_RANKS": str(num_ranks)}


def _yielding(own: Mapping[str, str], outer: Mapping[str, str]) -> dict[str, str]:
    """Our variables less those the user has set; what both preload is loaded, ours first."""
    kept = {name: value for name, value in own.items() if not (is_controlled(name) and name in outer)}
    if "LD_PRELOAD" in own and outer.get("LD_PRELOAD"):
        kept["LD_PRELOAD"] = f"{own['LD_PRELOAD']}:{outer['LD_PRELOAD']}"
    return kept
