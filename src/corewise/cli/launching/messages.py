"""Messages and JSON of `corewise launch`.

Messages go to standard error: standard output belongs to the command.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corewise.launch.environment import is_controlled
from corewise.launch.launch_outcome import LaunchOutcome, LaunchPolicy, RankEnd
from corewise.launch.ranks import ChangedVariable, RankStart

if TYPE_CHECKING:
    from corewise.launch.pinning_proof import PinningProof

SIGKILL, SIGPIPE = 9, 13
MAX_NAME_LENGTH, MAX_NAMES = 60, 5


def describe_overrides(changed: Sequence[ChangedVariable], asked_for: Collection[str]) -> list[str]:
    """Return one sentence on the user's variables that are overridden without being asked for, if any."""
    parts = []
    unasked = [change for change in changed if change.name not in asked_for]
    for change in unasked:
        becomes = "unset" if change.becomes is None else change.becomes
        parts.append(f"{change.name}={change.value} (now {becomes})")
    if not parts:
        return []
    keeps = any(is_controlled(change.name) for change in unasked)
    return [f"overrides {', '.join(parts)}" + ("; pass --keep-env to keep yours" if keeps else "")]


def describe_outcome(outcome: LaunchOutcome, manner: LaunchPolicy, *, quiet: bool) -> list[str]:
    """Return what the user must know about the end of a launch; nothing if all ranks succeeded."""
    lines = []
    failed = outcome.first_failed
    if failed is not None and failed.problem:
        lines.append(f"rank {failed.rank} could not start: {failed.problem}")
    elif failed is not None and failed.signal != SIGPIPE and not outcome.end_signal:
        lines += _describe_failure(failed, outcome.ranks, manner)
    if outcome.leftovers and not quiet:
        lines.append(_describe_leftovers(outcome.leftovers))
    if outcome.has_survivors:
        lines.append("some processes could not be killed; see `ps`")
    lines += outcome.problems
    if outcome.proof is not None and not (quiet and outcome.proof.holds):
        lines += _describe_proof(outcome.proof)
    return lines


def outcome_to_json(outcome: LaunchOutcome, starts: Sequence[RankStart], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outcome as JSON values."""
    ends = {end.rank: end for end in outcome.ranks}
    failed = outcome.first_failed
    return {
        "exit_code": outcome.code,
        "first_failed": None if failed is None else failed.rank,
        "asked_to_end": outcome.end_signal or None,
        "leftovers": list(outcome.leftovers),
        "problems": list(outcome.problems),
        "params": dict(params),
        "ranks": [_rank_to_json(start, ends.get(start.rank)) for start in starts],
        "verify": None if outcome.proof is None else outcome.proof.to_json(),
    }


def _rank_to_json(start: RankStart, end: RankEnd | None) -> dict[str, Any]:
    return {
        "rank": start.rank,
        "cpus": list(start.placement.cpus),
        "variables": dict(start.variables),
        "pid": None if end is None else end.pid,
        "exit_code": None if end is None else end.code,
        "signal": None if end is None else end.killed_by or None,
        "seconds": None if end is None else end.seconds,
        # A rank without an end was killed together with the launch.
        "ended_by_us": end is None or end.ended_by_us,
    }


def _describe_failure(failed: RankEnd, ends: Sequence[RankEnd], manner: LaunchPolicy) -> list[str]:
    how = f"exit code {failed.code}"
    if failed.signal:
        how = f"killed by {failed.killed_by}"
        if failed.signal == SIGKILL:
            how += f" after {manner.grace_s:g} s of grace" if failed.ended_by_us else " (out of memory?)"
    if len(ends) == 1:
        return [f"the command was {how}"] if failed.signal else []
    lines = [f"rank {failed.rank} failed first, after {failed.seconds:.1f} s: {how}"]
    ended = [end for end in ends if end.ended_by_us]
    killed = [end for end in ended if end.signal == SIGKILL]
    if ended:
        lines[0] += f"; {_name_ranks(ended)} ended with it"
    if killed:
        lines[0] += f" ({_name_ranks(killed)} killed after {manner.grace_s:g} s of grace)"
    return lines


def _describe_leftovers(names: Sequence[str]) -> str:
    shown = [name[:MAX_NAME_LENGTH] for name in names[:MAX_NAMES]]
    if len(names) > MAX_NAMES:
        shown.append(f"and {len(names) - MAX_NAMES} more")
    return f"ended {len(names)} process{'es' * (len(names) > 1)} left behind by the command: {', '.join(shown)}"


def _name_ranks(ends: Sequence[RankEnd]) -> str:
    numbers = ", ".join(str(end.rank) for end in ends)
    return f"rank {numbers}" if len(ends) == 1 else f"ranks {numbers}"


def _describe_proof(proof: "PinningProof") -> list[str]:
    from corewise.launch.pinning_proof import format_proof

    if proof.holds:
        verdict = "every thread stayed within its rank's CPUs"
    elif proof.unobserved:
        verdict = f"not verified: rank {proof.unobserved[0]} ended before its threads could be checked"
    else:
        verdict = "some threads ran outside their rank's CPUs"
    checks = f"{proof.num_observations} check{'s' * (proof.num_observations != 1)}"
    return ["\n".join([f"{verdict} ({checks})", *(f"  {line}" for line in format_proof(proof))])]
