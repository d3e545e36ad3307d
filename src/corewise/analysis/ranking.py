"""The fastest trial of each task, and the trials without a significant difference from it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from corewise.analysis.columns import Places, split_by_number
from corewise.analysis.groups import Group
from corewise.analysis.ratios import compute_look_level
from corewise.stats.batch_ratios import LogMoments, estimate_ratios
from corewise.study.record import Record

Flags = npt.NDArray[np.bool_]

MIN_RUNS_TO_COMPARE = 2


@dataclass(frozen=True)
class TrialRanking:
    """The ranking of a group's trials within each task.

    The trials of a task share machine, framework version and the arguments of the workload. Samples of
    different size are not comparable.

    Attributes:
        tasks: the trials of each task.
        best: the fastest trial of each task; tasks without a throughput are missing.
        may_equal_best: True for trials without a significant difference from the best.
    """

    tasks: Mapping[int, Places]
    best: Mapping[int, int]
    is_best: Flags
    may_equal_best: Flags

    def find_task(self, i: int) -> int:
        """Return the task of a trial."""
        return next(task for task, places in self.tasks.items() if i in places)

    def list_best_and_ties(self, best: int) -> list[int]:
        """Return the fastest trial of a task and all trials that may equal it."""
        places = self.tasks[self.find_task(best)]
        return [best, *(int(i) for i in places if self.may_equal_best[i])]


def rank_trials(group: Group) -> TrialRanking:
    """Rank the trials of a group, each within its task."""
    tasks = dict(enumerate(split_by_number(group.index_by(group.task_names))))
    is_best, may_equal = np.zeros(len(group.records), bool), np.zeros(len(group.records), bool)
    best: dict[int, int] = {}
    for task, places in tasks.items():
        rates = group.rate[places]
        if np.isnan(rates).all():
            continue
        fastest = best[task] = int(places[np.nanargmax(rates)])
        if places.size > 1:
            is_best[fastest] = True
            own = group.rates[np.array([fastest])]
            may_equal[places] = find_ties(group.rates[places], own, group.records[fastest])
            may_equal[fastest] = False
    return TrialRanking(tasks, best, is_best, may_equal)


def find_ties(rates: LogMoments, fastest: LogMoments, record: Record) -> Flags:
    """Find the trials without a significant difference from the fastest.

    Welch's test is corrected for optional stopping. The fastest was chosen because it leads, so each
    comparison gets a share of the error rate (Bonferroni). At that confidence, the truly fastest trial is
    among the ties (after Gupta, Technometrics 1965). Trials with too few runs are not ties.
    """
    enough = (rates.num >= MIN_RUNS_TO_COMPARE) & (fastest.num >= MIN_RUNS_TO_COMPARE)
    # One of these trials is the fastest itself.
    num_others = max(1, int(enough.sum()) - 1)
    ratios = estimate_ratios(rates, fastest, 1 - compute_look_level(record, 1 - 0.05 / num_others))
    return np.asarray(enough & ~((ratios.low > 1) | (ratios.high < 1)))
