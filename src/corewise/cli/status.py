"""`corewise status`: show the progress of a store, who uses it, and any damage."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from corewise.cli.common_options import DEFAULT_STORE, JsonOption, StoreOption

if TYPE_CHECKING:
    from rich.console import Console

    from corewise.store.store import Store
    from corewise.study.record import Record

_MAX_DAMAGE = 10
_STYLES = {"ok": "green", "failed": "red", "skipped": "yellow"}


def status(
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
    follow: Annotated[bool, typer.Option("--follow", help="Show the progress of jobs until they end.")] = False,
) -> None:
    """Show how many trials are done or running, which processes and jobs use the store, and any damage.

    Examples:

      corewise status --store results

      corewise status --json | jq .num_failed

      corewise status --store results --follow   (after `corewise run … --on slurm --detach`)
    """
    from corewise.cli.render.console import make_console, show_status
    from corewise.store.store import Store

    if follow:
        _follow_jobs(Store.open(store, create=False))
    with show_status("reading"):
        state = read_state(Store.open(store, create=False))
    if as_json:
        print(json.dumps(state.to_json(), indent=2))
        return
    _draw_state(make_console(), state)


def _follow_jobs(store: "Store") -> None:
    from corewise.cli.submitting.submit_study import follow_jobs
    from corewise.submit.site_file import load_site

    follow_jobs(store, load_site(None).query_every_s, lambda text: print(text, flush=True))


@dataclass(frozen=True)
class HolderState:
    """A process that holds a lease of the store, or held it when it ended."""

    lease: str
    who: str
    host: str
    pid: int | None
    since: str
    info: Mapping[str, str]
    alive: bool
    # The process ended after it recorded its trial and before it released the lease.
    left_over: bool


@dataclass(frozen=True)
class StoreState:
    """The state of a store: records, running trials, lease holders and damage."""

    store: str
    num_by_status: Mapping[str, int]
    studies: Mapping[str, Mapping[str, int]]
    in_progress: tuple[str, ...]
    # Trials of a run that has ended; the next run resumes them.
    interrupted: tuple[str, ...]
    holders: tuple[HolderState, ...]
    num_duplicates: int
    num_late: int
    last_finished_at: str
    damage: tuple[Mapping[str, Any], ...]
    # Jobs that were submitted for this store, with the last state that was noticed.
    jobs: tuple[Mapping[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON values, counts first."""
        counts = {f"num_{name}": num for name, num in self.num_by_status.items()}
        counts["num_in_progress"] = len(self.in_progress)
        counts["num_interrupted"] = len(self.interrupted)
        rest = asdict(self)
        return {"store": rest.pop("store"), **counts, **{k: v for k, v in rest.items() if k != "num_by_status"}}


def read_state(store: "Store") -> StoreState:
    """Read the current state of a store."""
    from corewise.store.brief_records import extract_outline
    from corewise.store.leases import TRIAL_LEASE, list_holders, read_clock_s
    from corewise.submit.job_log import JobLog

    result = store.read_records(extract_outline)
    finished = {record.trial_id for record in result.records}
    holders = list_holders(store.leases_folder)
    now_s = read_clock_s(store.leases_folder) if holders else 0.0
    held = tuple(
        HolderState(
            lease=each.name,
            who=str(each),
            host=each.process.host if each.process else "",
            pid=each.process.pid if each.process else None,
            since=each.since,
            info=each.info,
            alive=(alive := not each.is_stale(now_s)),
            left_over=not alive and each.name.removeprefix(TRIAL_LEASE) in finished,
        )
        for each in holders
    )
    in_use = {each.lease for each in held if each.alive}
    started = [each for each in store.list_work_ids() if each not in finished]
    return StoreState(
        store=str(store.path),
        num_by_status=_count_by_status(result.records),
        studies={
            study: _count_by_status([r for r in result.records if r.study == study])
            for study in dict.fromkeys(r.study for r in result.records)
        },
        in_progress=tuple(each for each in started if f"{TRIAL_LEASE}{each}" in in_use),
        interrupted=tuple(each for each in started if f"{TRIAL_LEASE}{each}" not in in_use),
        holders=held,
        num_duplicates=len(result.duplicates),
        num_late=len(result.late),
        last_finished_at=result.records[-1].finished_at if result.records else "",
        damage=tuple(
            {"file": str(d.file), "line": d.line, "offset": d.offset, "reason": d.reason} for d in result.damage
        ),
        jobs=tuple(job.to_json() for job in JobLog(store.path).read_jobs()),
    )


def _count_by_status(records: "Sequence[Record]") -> dict[str, int]:
    counts = Counter(r.status for r in records)
    return {name: counts[name] for name in ("ok", "failed", "skipped")}


def _draw_state(console: "Console", state: StoreState) -> None:
    from rich.text import Text

    from corewise.text_format import clean_text

    console.print(Text.assemble(("store ", "bold"), (clean_text(state.store), "bold")))
    _draw_counts(console, state)
    for title, ids, note in (
        ("in progress", state.in_progress, ""),
        ("interrupted", state.interrupted, "; the next `corewise run` resumes them"),
    ):
        if ids:
            shown = ", ".join(clean_text(each)[:8] for each in ids[:6]) + (", …" if len(ids) > 6 else "")
            console.print(Text(f"{title} {len(ids)}: {shown}{note}", style="cyan"))
    _draw_holders(console, state.holders)
    for job in state.jobs:
        console.print(Text(clean_text(str(job["text"])), style="dim" if job["ended_at"] else "cyan"))
    if state.num_duplicates:
        times = "1 trial was" if state.num_duplicates == 1 else f"{state.num_duplicates} trials were"
        console.print(Text(f"{times} recorded more than once; only one record of each counts"))
    if state.num_late:
        late = "1 record was" if state.num_late == 1 else f"{state.num_late} records were"
        console.print(Text(f"{late} written after another process had taken over the trial; kept, but not counted"))
    if state.last_finished_at:
        console.print(Text(f"last finished {_format_time(state.last_finished_at)}"))
    _draw_damage(console, state.damage)


def _draw_counts(console: "Console", state: StoreState) -> None:
    from rich.table import Table
    from rich.text import Text

    from corewise.text_format import clean_text

    if not state.studies:
        console.print(Text("no records yet"))
        return
    drawn = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    drawn.add_column("study")
    for name in state.num_by_status:
        drawn.add_column(name, justify="right")
    rows = list(state.studies.items())
    for study, counts in [*rows, *([("all", state.num_by_status)] if len(rows) > 1 else [])]:
        figures = (Text(str(num), style=_STYLES[name] if num else "dim") for name, num in counts.items())
        drawn.add_row(Text(clean_text(study)), *figures)
    console.print(drawn)


def _draw_holders(console: "Console", holders: "Sequence[HolderState]") -> None:
    """Print each process that holds leases once."""
    from rich.text import Text

    from corewise.text_format import clean_text

    leases: dict[tuple[str, int | None, bool, bool], list[HolderState]] = {}
    for each in holders:
        leases.setdefault((each.host, each.pid, each.alive, each.left_over), []).append(each)
    for (_, _, alive, left_over), held in leases.items():
        study = held[0].info.get("study")
        doing = f", study {clean_text(study)}" if study else ""
        if alive:
            console.print(Text(f"in use by {clean_text(held[0].who)}{doing}", style="cyan"))
        elif left_over:
            what = "1 lease" if len(held) == 1 else f"{len(held)} leases"
            gone = f"{what} of finished trials left by {clean_text(held[0].who)}; the next `corewise run` removes them"
            console.print(Text(gone, style="dim"))
        else:
            gone = f"{clean_text(held[0].who)}{doing} has ended; the next `corewise run` takes over"
            console.print(Text(gone, style="dim"))


def _draw_damage(console: "Console", damage: "Sequence[Mapping[str, Any]]") -> None:
    from rich.text import Text

    from corewise.text_format import clean_text

    if not damage:
        return
    places = "1 place" if len(damage) == 1 else f"{len(damage)} places"
    console.print(Text(f"\ndamage in {places}; all other records were read:", style="bold red"))
    for each in damage[:_MAX_DAMAGE]:
        where = f" line {each['line']} (byte {each['offset']})" if each["line"] else ""
        console.print(Text(f"  {clean_text(each['file'])}{where}: {clean_text(each['reason'])}"), soft_wrap=True)
    if damage[_MAX_DAMAGE:]:
        console.print(Text(f"  … and {len(damage) - _MAX_DAMAGE} more: --json lists all"))


def _format_time(moment: str) -> str:
    """Format a time with how long ago it was."""
    from corewise.study.durations import format_duration
    from corewise.text_format import clean_text

    try:
        then = datetime.fromisoformat(moment)
        ago_s = (datetime.now(UTC) - then).total_seconds()
    except (ValueError, TypeError):
        return clean_text(moment)
    return f"{then:%Y-%m-%d %H:%M:%S} UTC ({format_duration(ago_s)} ago)"
