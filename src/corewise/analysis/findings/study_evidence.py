"""The evidence for findings: the groups of one study, and the commands that run it again."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from corewise.analysis.groups import Group
from corewise.analysis.phrases import describe_point, describe_task, select_main_params
from corewise.analysis.ranking import TrialRanking
from corewise.analysis.scaling.scaling_curves import ScalingCurve
from corewise.stats.values import Values
from corewise.study.built_in_studies import list_studies
from corewise.study.record import Record
from corewise.text_format import shorten

_MAX_TRIALS_NAMED = 3


@dataclass(frozen=True)
class StudyEvidence:
    """The groups of one study, each with its ranking, and the store they came from.

    Attributes:
        tuned_by: the arguments that tune it again, if a tuning made the runs.
        curves: the scaling curves of each group, by its place among the groups.
    """

    study: str
    store: str
    groups: Sequence[tuple[Group, TrialRanking]]
    tuned_by: Sequence[str] = ()
    curves: Mapping[int, Sequence[ScalingCurve]] = field(default_factory=dict)

    def get_curves(self, group: Group) -> Sequence[ScalingCurve]:
        """Return the scaling curves of a group."""
        place = next(place for place, (each, _) in enumerate(self.groups) if each is group)
        return self.curves.get(place, ())

    @cached_property
    def records(self) -> list[Record]:
        """The records of all measured trials."""
        return [record for group, _ in self.groups for record in group.records]

    def gather_metric(self, name: str) -> Values:
        """Return a metric of each record, NaN if it is missing."""
        return np.concatenate([group.get_metric(name) for group, _ in self.groups])

    @property
    def name(self) -> str:
        """The name of the study, shortened for a title."""
        return shorten(self.study)

    @cached_property
    def _file(self) -> str:
        shipped = {each.name for each in list_studies()}
        return shlex.quote(self.study if self.study in shipped else f"{self.study}.yaml")

    def build_run_command(self, *settings: str, store: str = "", also: str = "") -> str:
        """Build the command that runs the study with other settings, in backticks."""
        arguments = ["corewise run", self._file, "--store", shlex.quote(store or self.store)]
        arguments += [f"--set {shlex.quote(each)}" for each in settings]
        return f"`{' '.join([*arguments, *([also] if also else [])])}`"

    def build_tune_command(self, *options: str, store: str = "") -> str:
        """Build the command that tunes again, in backticks."""
        verb, *arguments = self.tuned_by
        options = (*options, "--store", store or self.store)
        return f"`corewise {shlex.join([verb, *options, *arguments])}`"

    def describe_trials(self, records: Sequence[Record]) -> str:
        """Describe some trials."""
        texts = [self.describe_trial(record) for record in records[:_MAX_TRIALS_NAMED]]
        more = len(records) - len(texts)
        return f"{'; '.join(texts)}{f'; and {more:,} more' if more else ''}"

    def describe_trial(self, record: Record) -> str:
        """Describe a trial, with its workload if the study has several."""
        for group, _ in self.groups:
            for own, point in zip(group.records, group.points, strict=True):
                if own is record:
                    text = describe_point(point) or describe_point(select_main_params(record))
                    return f"{describe_task(group)}, {text}" if len(self.groups) > 1 else text
        return record.trial_id[:8]
