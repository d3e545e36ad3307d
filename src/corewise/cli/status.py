"""`corewise status`: how far a store is, who works on it, and whether it is whole."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from corewise.spec.record import Record
    from corewise.store.store import Store

_MAX_DAMAGE = 10
_STYLES = {"ok": "green", "failed": "red", "skipped": "yellow"}


def status(
    store: Annotated[Path, typer.Option("--store", metavar="DIR", help="Where records are kept.")] = Path(
        "corewise-store"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for scripts.")] = False,
) -> None:
    """Show how many trials are done, what is under way, who holds the store, and any damage.

    Examples:

      corewise status --store results

      corewise status --json | jq .num_failed
    """
    from corewise.cli.terminal import busy
    from corewise.store.store import Store

    with busy("reading"):
        state = store_state(Store.open(store, create=False))
    if as_json:
        print(json.dumps(state.to_json(), indent=2))
        return
    from corewise.cli.terminal import make_console

    _draw(make_console(), state)


@dataclass(frozen=True)
class HolderState:
    """A process that holds a lease of the store, or held it when it died."""

    lease: str
    who: str
    host: str
    pid: int | None
    since: str
    info: Mapping[str, str]
    alive: bool


@dataclass(frozen=True)
class StoreState:
    """What `status` shows."""

    store: str
    num_by_status: Mapping[str, int]
    studies: Mapping[str, Mapping[str, int]]
    in_progress: tuple[str, ...]
    interrupted: tuple[str, ...]  # begun by a run that is no more; the next one takes them up
    holders: tuple[HolderState, ...]
    num_duplicates: int
    last_finished_at: str
    damage: tuple[Mapping[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """The state as plain JSON values, with the counts that scripts ask for first."""
        counts = {f"num_{name}": num for name, num in self.num_by_status.items()}
        counts["num_in_progress"] = len(self.in_progress)
        counts["num_interrupted"] = len(self.interrupted)
        rest = asdict(self)
        return {
            "store": rest.pop("store"),
            **counts,
            **{k: v for k, v in rest.items() if k != "num_by_status"},
        }


def store_state(store: "Store") -> StoreState:
    """The state of a store as it is now."""
    from corewise.store.brief import outline
    from corewise.store.leases import clock_s, holders

    result = store.records(outline)
    found = holders(store.leases_folder)
    now_s = clock_s(store.leases_folder) if found else 0.0
    held = tuple(
        HolderState(
            lease=each.name,
            who=str(each),
            host=each.process.host if each.process else "",
            pid=each.process.pid if each.process else None,
            since=each.since,
            info=each.info,
            alive=not each.is_stale(now_s),
        )
        for each in found
    )
    alive = {each.lease for each in held if each.alive}
    begun = [each for each in store.work_ids() if each not in {r.trial_id for r in result.records}]
    return StoreState(
        store=str(store.path),
        num_by_status=_counts(result.records),
        studies={s: _counts([r for r in result.records if r.study == s]) for s in _studies(result.records)},
        in_progress=tuple(each for each in begun if f"trial-{each}" in alive),
        interrupted=tuple(each for each in begun if f"trial-{each}" not in alive),
        holders=held,
        num_duplicates=len(result.duplicates),
        last_finished_at=result.records[-1].finished_at if result.records else "",
        damage=tuple(
            {"file": str(d.file), "line": d.line, "offset": d.offset, "reason": d.reason}
            for d in result.damage
        ),
    )


def _studies(records: "Sequence[Record]") -> list[str]:
    return list(dict.fromkeys(r.study for r in records))


def _counts(records: "Sequence[Record]") -> dict[str, int]:
    counts = Counter(r.status for r in records)
    return {name: counts[name] for name in ("ok", "failed", "skipped")}


def _draw(console: "Console", state: StoreState) -> None:
    from rich.text import Text

    from corewise.cli.figures import clean

    console.print(Text.assemble(("store ", "bold"), (clean(state.store), "bold")))
    _draw_counts(console, state)
    for title, ids, told in (
        ("in progress", state.in_progress, ""),
        ("interrupted", state.interrupted, "; the next `corewise run` takes them up"),
    ):
        if ids:
            shown = ", ".join(clean(each)[:8] for each in ids[:6]) + (", …" if len(ids) > 6 else "")
            console.print(Text(f"{title} {len(ids)}: {shown}{told}", style="cyan"))
    _draw_holders(console, state.holders)
    if state.num_duplicates:
        times = "1 trial was" if state.num_duplicates == 1 else f"{state.num_duplicates} trials were"
        console.print(Text(f"{times} recorded more than once; each counts once"))
    if state.last_finished_at:
        console.print(Text(f"last finished {_when(state.last_finished_at)}"))
    _draw_damage(console, state.damage)


def _draw_counts(console: "Console", state: StoreState) -> None:
    from rich.table import Table
    from rich.text import Text

    from corewise.cli.figures import clean

    if not state.studies:
        console.print(Text("no trial is recorded yet"))
        return
    drawn = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    drawn.add_column("study")
    for name in state.num_by_status:
        drawn.add_column(name, justify="right")
    rows = list(state.studies.items())
    for study, counts in [*rows, *([("all", state.num_by_status)] if len(rows) > 1 else [])]:
        figures = (Text(str(num), style=_STYLES[name] if num else "dim") for name, num in counts.items())
        drawn.add_row(Text(clean(study)), *figures)
    console.print(drawn)


def _draw_holders(console: "Console", holders: "Sequence[HolderState]") -> None:
    """Each process once, with what it holds."""
    from rich.text import Text

    from corewise.cli.figures import clean

    leases: dict[tuple[str, int | None, bool], list[HolderState]] = {}
    for each in holders:
        leases.setdefault((each.host, each.pid, each.alive), []).append(each)
    for (_, _, alive), held in leases.items():
        study = held[0].info.get("study")
        doing = f", study {clean(study)}" if study else ""
        if alive:
            console.print(Text(f"in use by {clean(held[0].who)}{doing}", style="cyan"))
        else:
            gone = f"{clean(held[0].who)}{doing} is gone; the next `corewise run` takes its place"
            console.print(Text(gone, style="dim"))


def _draw_damage(console: "Console", damage: "Sequence[Mapping[str, Any]]") -> None:
    from rich.text import Text

    from corewise.cli.figures import clean

    if not damage:
        return
    places = "1 place" if len(damage) == 1 else f"{len(damage)} places"
    console.print(Text(f"\ndamage in {places}; everything else was read:", style="bold red"))
    for each in damage[:_MAX_DAMAGE]:
        where = f" line {each['line']} (byte {each['offset']})" if each["line"] else ""
        console.print(Text(f"  {clean(each['file'])}{where}: {clean(each['reason'])}"), soft_wrap=True)
    if damage[_MAX_DAMAGE:]:
        console.print(Text(f"  … and {len(damage) - _MAX_DAMAGE} more: --json lists all"))


def _when(moment: str) -> str:
    """A moment with how long ago it was."""
    from corewise.cli.durations import spoken
    from corewise.cli.figures import clean

    try:
        then = datetime.fromisoformat(moment)
        ago_s = (datetime.now(UTC) - then).total_seconds()
    except (ValueError, TypeError):
        return clean(moment)
    return f"{then:%Y-%m-%d %H:%M:%S} UTC ({spoken(ago_s)} ago)"
