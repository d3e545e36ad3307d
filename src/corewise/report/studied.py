"""One study as findings look at it: its groups, and the command that runs it again otherwise."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from corewise.report.groups import Group
from corewise.report.phrases import point_words, task_words, usual_point
from corewise.report.standing import Standing
from corewise.report.words import short
from corewise.spec.record import Record
from corewise.spec.shipped import list_studies
from corewise.stats.values import Values

_NAMED = 3


@dataclass(frozen=True)
class Studied:
    """One study's groups, each with its standing, and the store they came from."""

    study: str
    store: str
    groups: Sequence[tuple[Group, Standing]]
    tuned_by: Sequence[str] = ()  # the words that tune it again, where a tuning made the runs

    @cached_property
    def records(self) -> list[Record]:
        """All trials that gave a number."""
        return [record for group, _ in self.groups for record in group.records]

    def metric(self, name: str) -> Values:
        """A metric of each of the records, NaN where it is missing."""
        return np.concatenate([group.metric(name) for group, _ in self.groups])

    @property
    def name(self) -> str:
        """The study's name as it may stand in a title."""
        return short(self.study)

    @cached_property
    def _file(self) -> str:
        ready_made = {each.name for each in list_studies()}
        return shlex.quote(self.study if self.study in ready_made else f"{self.study}.yaml")

    def again(self, *settings: str, store: str = "", also: str = "") -> str:
        """The command that runs the study with other settings, as code."""
        words = ["corewise run", self._file, "--store", shlex.quote(store or self.store)]
        words += [f"--set {shlex.quote(each)}" for each in settings]
        return f"`{' '.join([*words, *([also] if also else [])])}`"

    def tuned_again(self, *options: str, store: str = "") -> str:
        """The command that tunes it again, as code."""
        verb, *words = self.tuned_by
        options = (*options, "--store", store or self.store)
        return f"`corewise {shlex.join([verb, *options, *words])}`"

    def named(self, records: Sequence[Record]) -> str:
        """Some trials in words."""
        words = [self.point(record) for record in records[:_NAMED]]
        more = len(records) - len(words)
        return f"{'; '.join(words)}{f'; and {more:,} more' if more else ''}"

    def point(self, record: Record) -> str:
        """A trial in words, with its workload where the study has several."""
        for group, _ in self.groups:
            for own, point in zip(group.records, group.points, strict=True):
                if own is record:
                    words = point_words(point) or point_words(usual_point(record))
                    return f"{task_words(group)}, {words}" if len(self.groups) > 1 else words
        return record.trial_id[:8]
