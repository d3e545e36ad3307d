"""The journal of a tuning on disk: an interrupted search resumes, and no setting is judged twice."""

import dataclasses
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from corewise.analysis.tuning_results import FOLDER
from corewise.measured.trial import NOT_NOW, Protocol
from corewise.measured.workloads.base import Traits
from corewise.store.sealed_lines import scan_file, seal
from corewise.store.store import Store
from corewise.study.record import format_utc_now
from corewise.study.study import ProtocolFile
from corewise.study.value_checks import Check, check_fields, check_number, check_plain_mapping, check_text
from corewise.tuning.confirm.confirmation_runs import Role
from corewise.tuning.search.judgements import Judgement
from corewise.tuning.search.setting_space import Space

SCHEMA = 1
WORK = ".work"


@dataclass
class JournalState:
    """What earlier calls left.

    Attributes:
        judgements: One for each setting that was tried.
        finished: Whether the search is complete.
        protocols: How fresh runs are measured, by role.
        generation: The generation of these fresh runs.
        seconds: Time spent by earlier calls.
        since: When --again started over; older fresh runs do not count.
        traits: What the model said about itself; None if it was not asked.
    """

    judgements: list[Judgement] = field(default_factory=list)
    finished: bool = False
    protocols: dict[Role, Protocol] = field(default_factory=dict)
    generation: str = ""
    seconds: float = 0.0
    since: str = ""
    traits: Traits | None = None

    @property
    def valid_judgements(self) -> list[Judgement]:
        """All judgements except refusals for lack of memory or disk, which may be free by now."""
        return [each for each in self.judgements if each.category != NOT_NOW]


class Journal:
    """The append-only journal of one question: a file of sealed lines."""

    def __init__(self, store: Store, key: str, space: Space) -> None:
        self.path = store.path / FOLDER / f"{key}.jsonl"
        self._store, self.space = store, space

    def build_work_path(self, hostname: str) -> Path:
        """Return the work folder of entrants on this host; several hosts may share a store."""
        return (self._store.path / FOLDER / f"{self.path.stem}.{hostname}{WORK}").absolute()

    def clear_work(self, hostname: str) -> None:
        """Remove what killed tunings on this host left; the caller holds the host's lease."""
        for folder in (self._store.path / FOLDER).glob(f"*{WORK}"):
            if folder.name.partition(".")[2] == f"{hostname}{WORK}":
                shutil.rmtree(folder, ignore_errors=True)

    def read(self) -> JournalState:
        """Read the journal; skip damaged lines and settings that no longer exist."""
        state = JournalState()
        with suppress(FileNotFoundError), open(self.path, "rb") as file:
            for entry in scan_file(file):
                # Entries of another version are skipped like damaged lines: what they hold is measured again.
                with suppress(ValueError):
                    check_fields(entry.value or {}, _ENTRY_CHECKS)
                    self._apply_entry(state, entry.value or {})
        return state

    def reset(self) -> str:
        """Start over; record and return the date from which fresh runs count."""
        self.path.unlink(missing_ok=True)
        date = format_utc_now()
        self._append(entry="begun", date=date)
        return date

    def append_judgement(self, judgement: Judgement) -> None:
        """Append a judgement; settings are stored by value, so a new order of choices does no harm."""
        values = asdict(judgement)
        values["kind"] = values.pop("category")
        values["setting"] = self.space.build_params(judgement.setting)
        values["against"] = self.space.build_params(judgement.against) if judgement.against else None
        self._append(entry="judged", **values)

    def append_search_progress(self, *, finished: bool, seconds: float) -> None:
        """Append the progress of a search and the seconds it has spent since the last entry."""
        self._append(entry="searched", finished=finished, seconds=seconds)

    def append_protocols(self, protocols: Mapping[Role, Protocol], generation: str = "") -> None:
        """Append how fresh runs are measured and their generation, so that a confirmation can resume."""
        values = {role.value: asdict(each) for role, each in protocols.items()}
        self._append(entry="chosen", protocols=values, generation=generation)

    def append_traits(self, traits: Traits) -> None:
        """Append what the model said about itself, so that a resumed search has the same knobs."""
        self._append(entry="traits", traits=asdict(traits))

    def append_answer(self, study: str, answer: Mapping[str, Any], headline: str, command: str) -> None:
        """Append an answer, so that a report can show it."""
        self._append(
            entry="answered", date=format_utc_now(), study=study, headline=headline, command=command, answer=answer
        )

    def _append(self, *, entry: str, **values: Any) -> None:
        finite = {name: _replace_infinite(value) for name, value in values.items()}
        line = seal({"schema": SCHEMA, "entry": entry, **finite})
        try:
            self.path.parent.mkdir(exist_ok=True)
            with open(self.path, "ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as problem:
            raise self._store.explain_write_error(problem) from problem

    def _apply_entry(self, state: JournalState, values: Mapping[str, Any]) -> None:
        entry = values.get("entry")
        if entry == "judged":
            new = self._parse_judgement(values)
            if new is not None:
                others = [each for each in state.judgements if each.setting != new.setting]
                state.judgements = [*others, new]
                # They were chosen for an earlier best.
                state.protocols = {}
        elif entry == "begun":
            state.since = str(values.get("date") or "")
        elif entry == "searched":
            state.finished = bool(values.get("finished"))
            state.seconds += float(values.get("seconds") or 0.0)
        elif entry == "traits":
            state.traits = parse_traits(values.get("traits") or {})
        elif entry == "chosen":
            state.protocols = {Role(role): _parse_protocol(each) for role, each in values.get("protocols", {}).items()}
            state.generation = str(values.get("generation") or "")

    def _parse_judgement(self, values: Mapping[str, Any]) -> Judgement | None:
        setting = self.space.find_setting(values.get("setting", {}))
        if setting is None or "outcome" not in values:
            return None
        values = {**values, "category": values.get("kind")}
        names = {each.name for each in dataclasses.fields(Judgement)} - {"setting", "against"}
        fields = {name: values[name] for name in names if values.get(name) is not None}
        against = self.space.find_setting(values["against"]) if values.get("against") else None
        return Judgement(setting=setting, against=against or (), **fields)


def parse_traits(values: Mapping[str, Any]) -> Traits:
    """Build traits from plain values; what is missing or of another type is unknown."""
    names = ("takes_images", "has_batch_norm", "has_dropout")
    return Traits(**{name: values[name] for name in names if isinstance(values.get(name), bool)})


def _parse_protocol(values: Mapping[str, Any]) -> Protocol:
    """Build a protocol; raise ValueError if this version cannot measure by it."""
    ProtocolFile.model_validate(values)
    try:
        protocol = Protocol(**values)
    except TypeError as error:
        raise ValueError(str(error)) from None
    if protocol.min_runs > protocol.max_runs:
        raise ValueError("min_runs is more than max_runs")
    return protocol


def _accept_null(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _replace_infinite(value: Any) -> Any:
    return None if isinstance(value, float) and value in (float("inf"), float("-inf")) else value


_ENTRY_CHECKS: Mapping[str, Check] = {
    "setting": check_plain_mapping,
    "against": _accept_null(check_plain_mapping),
    "protocols": check_plain_mapping,
    "traits": check_plain_mapping,
    "outcome": check_text,
    **dict.fromkeys(("kind", "reason", "date", "generation"), _accept_null(check_text)),
    **dict.fromkeys(
        (
            "score",
            "half_width",
            "latency_score",
            "throughput",
            "latency_s",
            "check_error",
            "start_s",
            "compile_s",
            "setup_s",
        ),
        _accept_null(check_number),
    ),
    "seconds": _accept_null(check_number),
}
