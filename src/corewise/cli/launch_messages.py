"""What `corewise launch` says, on the error output: the other one is the command's."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corewise.launcher.environment import is_controlled
from corewise.launcher.outcome import Manner, Outcome, RankEnd
from corewise.launcher.ranks import Changed, RankStart

if TYPE_CHECKING:
    from corewise.launcher.verify import Proof

SIGKILL, SIGPIPE = 9, 13
MAX_NAME, MAX_NAMES = 60, 5


def told_changes(changed: Sequence[Changed], asked_for: Collection[str]) -> list[str]:
    """One sentence on the user's variables that a launch overrides unasked, if there are any."""
    parts = []
    unasked = [change for change in changed if change.name not in asked_for]
    for change in unasked:
        becomes = "unset" if change.becomes is None else change.becomes
        parts.append(f"{change.name}={change.value} (now {becomes})")
    if not parts:
        return []
    keeps = any(is_controlled(change.name) for change in unasked)
    return [f"overrides {', '.join(parts)}" + ("; --keep-env keeps yours" if keeps else "")]


def outcome_lines(outcome: Outcome, manner: Manner, *, quiet: bool) -> list[str]:
    """What a user should know of how it ended; nothing when all went as it would have without us."""
    lines = []
    failed = outcome.first_failed
    if failed is not None and failed.problem:
        lines.append(f"rank {failed.rank} could not start: {failed.problem}")
    elif failed is not None and failed.signal != SIGPIPE and not outcome.asked_to_end:
        lines += _failure(failed, outcome.ranks, manner)
    if outcome.leftovers and not quiet:
        lines.append(_leftovers(outcome.leftovers))
    if outcome.stubborn:
        lines.append("some processes would not die; see `ps`")
    lines += outcome.problems
    if outcome.proof is not None and not (quiet and outcome.proof.holds):
        lines += _proof(outcome.proof)
    return lines


def outcome_to_json(
    outcome: Outcome, starts: Sequence[RankStart], params: Mapping[str, Any]
) -> dict[str, Any]:
    """The outcome as JSON values."""
    ends = {end.rank: end for end in outcome.ranks}
    failed = outcome.first_failed
    return {
        "exit_code": outcome.code,
        "first_failed": None if failed is None else failed.rank,
        "asked_to_end": outcome.asked_to_end or None,
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
        "ended_by_us": end is None or end.ended_by_us,  # without an end: killed when the launch was
    }


def _failure(failed: RankEnd, ends: Sequence[RankEnd], manner: Manner) -> list[str]:
    how = f"exit code {failed.code}"
    if failed.signal:
        how = f"killed by {failed.killed_by}" + " (out of memory?)" * (failed.signal == SIGKILL)
    if len(ends) == 1:
        return [f"the command was {how}"] if failed.signal else []
    lines = [f"rank {failed.rank} failed first, after {failed.seconds:.1f} s: {how}"]
    ended = [end for end in ends if end.ended_by_us]
    killed = [end for end in ended if end.signal == SIGKILL]
    if ended:
        lines[0] += f"; {_ranks(ended)} ended with it"
    if killed:
        lines[0] += f" ({_ranks(killed)} killed after {manner.grace_s:g} s of grace)"
    return lines


def _leftovers(names: Sequence[str]) -> str:
    shown = [name[:MAX_NAME] for name in names[:MAX_NAMES]]
    if len(names) > MAX_NAMES:
        shown.append(f"and {len(names) - MAX_NAMES} more")
    return (
        f"ended {len(names)} process{'es' * (len(names) > 1)} that had been left behind: {', '.join(shown)}"
    )


def _ranks(ends: Sequence[RankEnd]) -> str:
    numbers = ", ".join(str(end.rank) for end in ends)
    return f"rank {numbers}" if len(ends) == 1 else f"ranks {numbers}"


def _proof(proof: "Proof") -> list[str]:
    from corewise.launcher.verify import proof_lines

    if proof.holds:
        verdict = "every thread stayed within its rank's CPUs"
    elif proof.unseen:
        verdict = f"not verified: rank {proof.unseen[0]} had ended before it could be looked at"
    else:
        verdict = "some threads were not within their rank's CPUs"
    looks = f"{proof.num_looks} look{'s' * (proof.num_looks != 1)}"
    return ["\n".join([f"{verdict} ({looks})", *(f"  {line}" for line in proof_lines(proof))])]
