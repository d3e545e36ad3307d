"""Stores as sources of a report: records cut short, a few of them fetched whole when asked for."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from corewise.report.groups import Source, WholeOf, store_labels
from corewise.report.tunings import read_tunings
from corewise.report.words import counted, short
from corewise.spec.record import Record
from corewise.store.brief import brief
from corewise.store.parts import Place
from corewise.store.reader import told_damage
from corewise.store.store import Store

MAX_DAMAGE = 5  # told of each store


def read_sources(
    paths: Sequence[Path], extra_records: Sequence[Record] = ()
) -> tuple[list[Source], list[str]]:
    """The stores read, and what a reader must know about them; extra records join the first store."""
    sources: list[Source] = []
    notices: list[str] = []
    stores = list(dict.fromkeys(paths))
    for path, name in zip(stores, store_labels(str(path) for path in stores), strict=True):
        store = Store.open(path, create=False)
        result = store.records(brief)
        notices += [f"Left out: {short(line, 300)}" for line in told_damage(result.damage, MAX_DAMAGE)]
        records = list(result.records)
        places = {record.trial_id: place for record, place in zip(records, result.places, strict=True)}
        extra = [] if sources else [record for record in extra_records if record.trial_id not in places]
        if result.duplicates:
            what = counted(len(result.duplicates), "record")
            notices.append(f"{what} in {path} belong to trials that have another one, which stands.")
        fetch = _fetcher(store, places, {record.trial_id: record for record in extra})
        records += [brief(record) for record in extra]
        tunings = read_tunings(path)
        begun = set(store.work_ids()) - {record.trial_id for record in records}
        read = Source(label=str(path), records=records, name=name, whole_of=fetch, tunings=tunings)
        sources.append(replace(read, num_unfinished=len(begun)))
    return sources, notices


def unfinished_notices(sources: Sequence[Source]) -> list[str]:
    """Of each store with trials that were begun and have no record: how many, and how they get one."""
    notices = []
    for source in filter(lambda each: each.num_unfinished, sources):
        are = "is" if source.num_unfinished == 1 else "are"
        notices.append(
            f"{counted(source.num_unfinished, 'trial')} of {source.label} {are} begun and not finished: "
            "no figure here is theirs. Their runs are kept; the same `corewise run` goes on with them, "
            "and with `--report` its page shows what they give so far."
        )
    return notices


def _fetcher(store: Store, places: Mapping[str, Place], extra: Mapping[str, Record]) -> WholeOf:
    def whole_of(trial_ids: Collection[str]) -> Sequence[Record]:
        """The records of these trials, read again from the store."""
        found = list(store.at([places[trial_id] for trial_id in trial_ids if trial_id in places]))
        return [*found, *(extra[trial_id] for trial_id in trial_ids if trial_id in extra)]

    return whole_of
