"""How well more cores pay: each trial's efficiency against the narrowest trial of its kind."""

from collections.abc import Collection, Sequence

from corewise.report.standing import efficiencies_of_records
from corewise.spec.record import Record
from corewise.stats.estimate import Estimate


def efficiencies(records: Sequence[Record], wanted: Collection[str]) -> dict[str, Estimate]:
    """Trial id -> e = p_w / (w / b · p_b) of the trials wanted, b being the least width with all else equal.

    The same figures as in a report.
    """
    found = efficiencies_of_records(records)
    return {trial_id: found[trial_id] for trial_id in wanted if trial_id in found}
