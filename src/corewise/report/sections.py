"""What stands together in a report: a study's groups, or one tuning with the fresh runs it rests on."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from corewise.report.groups import Group, Source, groups_of
from corewise.report.tunings import Tuning
from corewise.report.words import short
from corewise.spec.record import Record

LEFT_OVER = (
    "Runs of tunings that no answer above rests on: of such as were stopped, or have another answer by now."
)


@dataclass(frozen=True)
class Section:
    """One heading of a report with what stands below it."""

    study: str
    title: str
    groups: Sequence[Group]
    tuning: Tuning | None = None
    is_left_over: bool = False  # runs of tunings, of no answer

    @property
    def records(self) -> list[Record]:
        """All that was or was not measured."""
        every = [record for group in self.groups for record in group.records]
        return every + [record for group in self.groups for record, _ in group.unmeasured]


def sections_of(
    sources: Sequence[Source],
    studies: Collection[str] | None = None,
    tunings: Collection[str] | None = None,
) -> list[Section]:
    """A section for each study in the order of their first trials, and one for each tuning.

    `tunings`, keys of questions, leaves all else out. Runs of tunings that no answer rests on (any more) have
    a section of their own.
    """
    told = _apart(list(_told(sources, studies, tunings)))
    of_tunings = [
        Section(tuning.study, f"tune {tuning.title}", groups_of(_only(source, tuning.trial_ids)), tuning)
        for tuning, source in told
    ]
    if tunings is not None:
        return of_tunings
    taken = {(id(source), trial_id) for tuning, source in told for trial_id in tuning.trial_ids}
    left = [
        replace(source, records=[r for r in source.records if (id(source), r.trial_id) not in taken])
        for source in sources
    ]
    groups = groups_of(left if taken else sources, None if studies is None else set(studies))
    order = dict.fromkeys([*(r.study for s in sources for r in s.records), *(t.study for t, _ in told)])
    return list(_in_order(order, of_tunings, groups))


def _in_order(
    studies: Collection[str], of_tunings: Sequence[Section], groups: Sequence[Group]
) -> Iterator[Section]:
    for study in studies:
        tuned = [section for section in of_tunings if section.study == study]
        yield from tuned
        own = [group for group in groups if group.study == study]
        if own:
            name = short(study, 120) or "a study without a name"
            title = f"{name}: other runs" if tuned else name
            yield Section(study, title, own, is_left_over=bool(tuned))


def _told(
    sources: Sequence[Source], studies: Collection[str] | None, tunings: Collection[str] | None
) -> Iterator[tuple[Tuning, Source]]:
    for source in sources:
        for tuning in sorted(source.tunings, key=lambda each: each.date):
            wanted = studies is None or tuning.study in studies
            if wanted and (tunings is None or tuning.key in tunings):
                yield tuning, source


def _only(source: Source, trial_ids: Collection[str]) -> list[Source]:
    return [replace(source, records=[r for r in source.records if r.trial_id in trial_ids])]


def _apart(told: Sequence[tuple[Tuning, Source]]) -> list[tuple[Tuning, Source]]:
    """The tunings, with their time and their store in their titles where nothing else tells them apart."""
    for words in (_time_of, _store_of, _key_of):
        num = Counter(tuning.title for tuning, _ in told)
        told = [
            (replace(each, asked=(*each.asked, words(each, source))) if num[each.title] > 1 else each, source)
            for each, source in told
        ]
    return list(told)


def _time_of(tuning: Tuning, source: Source) -> str:
    return tuning.date[:16].replace("T", " ") or "at an unknown time"


def _store_of(tuning: Tuning, source: Source) -> str:
    return f"in {short(source.name or source.label)}"


def _key_of(tuning: Tuning, source: Source) -> str:
    return tuning.key[:6]
