"""Read stores as sources of a report: brief records, and full ones on demand."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from corewise.analysis.groups import FullRecordReader, RecordSource, label_stores
from corewise.analysis.tuning_results import read_tunings
from corewise.store.brief_records import extract_brief
from corewise.store.file_parts import RecordPlace
from corewise.store.record_reader import describe_damage
from corewise.store.store import Store
from corewise.study.record import Record
from corewise.text_format import format_count, shorten

# Lines about damage that are shown for each store.
MAX_DAMAGE_LINES = 5


def read_sources(paths: Sequence[Path], extra_records: Sequence[Record] = ()) -> tuple[list[RecordSource], list[str]]:
    """Read the stores and the notices about them; extra records are added to the first store."""
    sources: list[RecordSource] = []
    notices: list[str] = []
    stores = list(dict.fromkeys(paths))
    for path, name in zip(stores, label_stores(str(path) for path in stores), strict=True):
        store = Store.open(path, create=False)
        result = store.read_records(extract_brief)
        notices += [f"Left out: {shorten(line, 300)}" for line in describe_damage(result.damage, MAX_DAMAGE_LINES)]
        records = list(result.records)
        places = {record.trial_id: place for record, place in zip(records, result.places, strict=True)}
        extra = [] if sources else [record for record in extra_records if record.trial_id not in places]
        if result.duplicates:
            what = format_count(len(result.duplicates), "record")
            notices.append(f"{what} in {path} belong to trials that have another record, which counts.")
        fetch = _build_full_reader(store, places, {record.trial_id: record for record in extra})
        records += [extract_brief(record) for record in extra]
        tunings = read_tunings(path)
        started = set(store.list_work_ids()) - {record.trial_id for record in records}
        read = RecordSource(label=str(path), records=records, name=name, read_full_records=fetch, tunings=tunings)
        sources.append(replace(read, num_unfinished=len(started)))
    return sources, notices


def describe_unfinished(sources: Sequence[RecordSource]) -> list[str]:
    """Describe for each store how many trials are started but not finished, and how to finish them."""
    notices = []
    for source in filter(lambda each: each.num_unfinished, sources):
        are = "is" if source.num_unfinished == 1 else "are"
        trials = format_count(source.num_unfinished, "trial")
        notices.append(
            f"{trials} of {source.label} {are} started but not finished and not part of these figures. "
            "Their runs are saved. To finish them, run the same `corewise run` again; with `--report`, "
            "its page shows their results so far."
        )
    return notices


def _build_full_reader(
    store: Store, places: Mapping[str, RecordPlace], extra: Mapping[str, Record]
) -> FullRecordReader:
    def read_full_records(trial_ids: Collection[str]) -> Sequence[Record]:
        """Read the full records of these trials."""
        records = list(store.read_at([places[trial_id] for trial_id in trial_ids if trial_id in places]))
        return [*records, *(extra[trial_id] for trial_id in trial_ids if trial_id in extra)]

    return read_full_records
