"""Sections of a report: the groups of a study, or one tuning with its fresh runs."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from corewise.analysis.groups import Group, RecordSource, group_records
from corewise.analysis.tuning_results import StoredTuning
from corewise.study.record import Record
from corewise.text_format import shorten

LEFTOVER_NOTE = "Runs of tunings that no answer above uses: the tuning was stopped or has a newer answer."


@dataclass(frozen=True)
class Section:
    """One heading of a report with its content.

    Attributes:
        is_leftover: it holds runs of tunings that no answer uses.
    """

    study: str
    title: str
    groups: Sequence[Group]
    tuning: StoredTuning | None = None
    is_leftover: bool = False

    @property
    def records(self) -> list[Record]:
        """All records, measured or not."""
        every = [record for group in self.groups for record in group.records]
        return every + [record for group in self.groups for record, _ in group.unmeasured]


def build_sections(
    sources: Sequence[RecordSource], studies: Collection[str] | None = None, tunings: Collection[str] | None = None
) -> list[Section]:
    """Build one section for each study, in the order of their first trials, and one for each tuning.

    With `tunings` (keys of questions), only the sections of these tunings are built. Runs of tunings that no
    answer uses have a separate section.
    """
    selected = _make_titles_unique(list(_select_tunings(sources, studies, tunings)))
    tuning_sections = [
        Section(tuning.study, f"tune {tuning.title}", group_records(_select_records(source, tuning.trial_ids)), tuning)
        for tuning, source in selected
    ]
    if tunings is not None:
        return tuning_sections
    used = {(id(source), trial_id) for tuning, source in selected for trial_id in tuning.trial_ids}
    left = [
        replace(source, records=[r for r in source.records if (id(source), r.trial_id) not in used])
        for source in sources
    ]
    groups = group_records(left if used else sources, None if studies is None else set(studies))
    order = dict.fromkeys([*(r.study for s in sources for r in s.records), *(t.study for t, _ in selected)])
    return list(_order_sections(order, tuning_sections, groups))


def _order_sections(
    studies: Collection[str], tuning_sections: Sequence[Section], groups: Sequence[Group]
) -> Iterator[Section]:
    for study in studies:
        tuned = [section for section in tuning_sections if section.study == study]
        yield from tuned
        own = [group for group in groups if group.study == study]
        if own:
            name = shorten(study, 120) or "a study without a name"
            title = f"{name}: other runs" if tuned else name
            yield Section(study, title, own, is_leftover=bool(tuned))


def _select_tunings(
    sources: Sequence[RecordSource], studies: Collection[str] | None, tunings: Collection[str] | None
) -> Iterator[tuple[StoredTuning, RecordSource]]:
    for source in sources:
        for tuning in sorted(source.tunings, key=lambda each: each.date):
            wanted = studies is None or tuning.study in studies
            if wanted and (tunings is None or tuning.key in tunings):
                yield tuning, source


def _select_records(source: RecordSource, trial_ids: Collection[str]) -> list[RecordSource]:
    return [replace(source, records=[r for r in source.records if r.trial_id in trial_ids])]


def _make_titles_unique(
    selected: Sequence[tuple[StoredTuning, RecordSource]],
) -> list[tuple[StoredTuning, RecordSource]]:
    """Add date, store and key to the titles of tunings that would otherwise have the same title."""
    for describe in (_format_date, _format_store, _format_key):
        num = Counter(tuning.title for tuning, _ in selected)
        selected = [
            (replace(each, asked=(*each.asked, describe(each, source))) if num[each.title] > 1 else each, source)
            for each, source in selected
        ]
    return list(selected)


def _format_date(tuning: StoredTuning, source: RecordSource) -> str:
    return tuning.date[:16].replace("T", " ") or "at an unknown time"


def _format_store(tuning: StoredTuning, source: RecordSource) -> str:
    return f"in {shorten(source.name or source.label)}"


def _format_key(tuning: StoredTuning, source: RecordSource) -> str:
    return tuning.key[:6]
