"""What a search has found so far, on disk: an interrupted search goes on, and nothing is judged twice."""

import dataclasses
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from corewise.spec.record import utc_now
from corewise.spec.trial import NOT_NOW, Protocol
from corewise.store.lines import scan, seal
from corewise.store.store import Store
from corewise.tuner.found import Judged
from corewise.tuner.space import Space

SCHEMA = 1
FOLDER = "tune"
WORK = ".work"


@dataclass
class Remembered:
    """What earlier calls left."""

    judged: list[Judged] = field(default_factory=list)
    finished: bool = False  # the search needs no more time
    protocols: dict[str, Protocol] = field(default_factory=dict)  # how fresh runs are measured, by role
    seconds: float = 0.0  # spent by earlier calls
    since: str = ""  # when --again began anew; older fresh runs do not count

    @property
    def still_holding(self) -> list[Judged]:
        """What was judged, without refusals for want of free memory or disk: there may be enough by now."""
        return [each for each in self.judged if each.kind != NOT_NOW]


class Journal:
    """Sealed lines of one question, only ever appended to."""

    def __init__(self, store: Store, key: str, space: Space) -> None:
        self.path = store.path / FOLDER / f"{key}.jsonl"
        self._store, self._space = store, space

    def work_folder(self, hostname: str) -> Path:
        """Where entrants work while they race: machines of one kind may share a store."""
        return (self._store.path / FOLDER / f"{self.path.stem}.{hostname}{WORK}").absolute()

    def clear_work(self, hostname: str) -> None:
        """Remove what tunings on this host left that were killed; whoever calls holds the host's lease."""
        for folder in (self._store.path / FOLDER).glob(f"*{WORK}"):
            if folder.name.partition(".")[2] == f"{hostname}{WORK}":
                shutil.rmtree(folder, ignore_errors=True)

    def read(self) -> Remembered:
        """All that can be read of it; lines of settings that no longer exist are passed by."""
        found = Remembered()
        try:
            lines = self.path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return found
        for entry in scan(lines):
            if entry.value is not None:
                self._take(found, entry.value)
        return found

    def forget(self) -> str:
        """Begin anew; the date from which on fresh runs count, which later calls find too."""
        self.path.unlink(missing_ok=True)
        date = utc_now()
        self._append(entry="begun", date=date)
        return date

    def judged(self, judged: Judged) -> None:
        """Keep what became of a setting, in values that outlive the order of knobs and choices."""
        values = {**asdict(judged), "setting": self._space.params(judged.setting), "against": None}
        if judged.against:
            values["against"] = self._space.params(judged.against)
        self._append(entry="judged", **values)

    def searched(self, *, finished: bool, seconds: float) -> None:
        """Keep how far a search has come, and so many more seconds that were spent."""
        self._append(entry="searched", finished=finished, seconds=seconds)

    def chosen(self, protocols: Mapping[str, Protocol]) -> None:
        """Keep how fresh runs are measured, so that an interrupted confirmation goes on."""
        self._append(entry="chosen", protocols={role: asdict(each) for role, each in protocols.items()})

    def answered(self, study: str, answer: Mapping[str, Any], headline: str, command: str) -> None:
        """Keep an answer, so that a report can show it."""
        self._append(
            entry="answered", date=utc_now(), study=study, headline=headline, command=command, answer=answer
        )

    def _append(self, *, entry: str, **values: Any) -> None:
        clean = {name: _finite(value) for name, value in values.items()}
        line = seal({"schema": SCHEMA, "entry": entry, **clean})
        try:
            self.path.parent.mkdir(exist_ok=True)
            with open(self.path, "ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as problem:
            raise self._store.write_error(problem) from problem

    def _take(self, found: Remembered, values: Mapping[str, Any]) -> None:
        entry = values.get("entry")
        if entry == "judged":
            judged = self._judged(values)
            if judged is not None:
                found.judged = [each for each in found.judged if each.setting != judged.setting] + [judged]
                found.protocols = {}  # chosen for an earlier best
        elif entry == "begun":
            found.since = str(values.get("date") or "")
        elif entry == "searched":
            found.finished = bool(values.get("finished"))
            found.seconds += float(values.get("seconds") or 0.0)
        elif entry == "chosen":
            with suppress(TypeError):  # as another version chose them: they are chosen anew
                found.protocols = {role: Protocol(**each) for role, each in values["protocols"].items()}

    def _judged(self, values: Mapping[str, Any]) -> Judged | None:
        setting = self._space.setting_of(values["setting"])
        if setting is None:
            return None
        names = {each.name for each in dataclasses.fields(Judged)} - {"setting", "against"}
        kept = {name: values[name] for name in names if values.get(name) is not None}
        against = self._space.setting_of(values["against"]) if values.get("against") else None
        return Judged(setting=setting, against=against or (), **kept)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and value in (float("inf"), float("-inf")) else value
