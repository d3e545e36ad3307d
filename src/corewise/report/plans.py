"""The plan of a trial whose thread widths changed, read from its record; what does not fit is left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corewise.report.columns import number_or_nan
from corewise.report.groups import Group
from corewise.report.words import counted

MAX_BARS = 1500


@dataclass(frozen=True)
class PlannedTask:
    """Operators that run one after the other on some cores."""

    number: int
    name: str
    num_operators: int
    needs: Sequence[int]
    width: int | None  # None: no plan runs
    seconds_at: Mapping[int, float]
    kind: str  # its costliest operator


@dataclass(frozen=True)
class Bar:
    """A task as it ran in one step."""

    task: int
    cpus: Sequence[int]
    start_s: float
    end_s: float
    is_backward: bool = False


@dataclass(frozen=True)
class PlanShown:
    """What ran and why."""

    chosen: str
    reason: str
    executor: str
    candidates_s: Mapping[str, float]
    bound_s: float
    tasks: Sequence[PlannedTask]
    bars: Sequence[Bar]
    num_packed: int = 0  # layers whose weights were packed beforehand
    num_winograd: int = 0  # convolutions among them that take Winograd's way
    num_own_lstms: int = 0  # calls of LSTMs on the kernel by rows

    @property
    def other_helps(self) -> str:
        """What runs besides changing widths, in words; empty where nothing does."""
        fewer = f" ({counted(self.num_winograd, 'convolution')} of them by fewer products)"
        packed = f"{counted(self.num_packed, 'layer')} with packed weights"
        found = {
            packed + (fewer if self.num_winograd else ""): self.num_packed,
            f"{counted(self.num_own_lstms, 'call')} of LSTMs by rows where that pays": self.num_own_lstms,
        }
        return " and ".join(words for words, num in found.items() if num)

    @property
    def cpus(self) -> list[int]:
        """The CPUs anything ran on."""
        return sorted({cpu for bar in self.bars for cpu in bar.cpus})

    @property
    def total_s(self) -> float:
        """From the first task's start to the last one's end."""
        return max(bar.end_s for bar in self.bars) - min(bar.start_s for bar in self.bars)

    @property
    def busy_share(self) -> float:
        """Of the cores' time the part in which they had a task."""
        busy = sum(len(bar.cpus) * (bar.end_s - bar.start_s) for bar in self.bars)
        whole = len(self.cpus) * self.total_s
        return min(1.0, busy / whole) if whole > 0 else 0.0


def plan_of(group: Group, i: int) -> PlanShown | None:
    """The plan of a trial's first run that tells one, preferably with a timeline."""
    plain: PlanShown | None = None
    for record in group.sources[i].whole_of([group.records[i].trial_id]) or [group.records[i]]:
        for run in record.runs:
            for rank in run.get("ranks") or ():
                told = rank.get("malleable") if isinstance(rank, Mapping) else None
                shown = read_plan(told) if isinstance(told, Mapping) else None
                if shown is not None and shown.bars:
                    return shown
                plain = plain or shown
    return plain


def read_plan(told: Mapping[str, Any]) -> PlanShown | None:
    """The plan that these facts describe; None where they describe none."""
    try:
        tasks = [_task(number, each) for number, each in enumerate(told.get("tasks") or ())]
        bars = [_bar(each) for each in told.get("timeline") or ()]
        shown = PlanShown(
            chosen=str(told["chosen"]),
            reason=str(told.get("reason") or ""),
            executor=str(told.get("executor") or ""),
            candidates_s={str(n): float(s) for n, s in (told.get("candidates_s") or {}).items()},
            bound_s=number_or_nan(told.get("bound_s")),
            tasks=tasks,
            bars=[bar for bar in bars if bar.cpus and bar.end_s >= bar.start_s and bar.task < len(tasks)],
            num_packed=int(told.get("num_packed") or 0),
            num_winograd=int(told.get("num_winograd") or 0),
            num_own_lstms=int(told.get("num_own_lstms") or 0),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return shown if not shown.bars or shown.total_s > 0 else None


def _task(number: int, each: Mapping[str, Any]) -> PlannedTask:
    width = each.get("width")
    return PlannedTask(
        number=number,
        name=str(each["name"]),
        num_operators=int(each.get("num_operators") or 1),
        needs=[int(need) for need in each.get("needs") or ()],
        width=None if width is None else int(width),
        seconds_at={int(w): float(s) for w, s in (each.get("seconds_at") or {}).items()},
        kind=str(each.get("kind") or "task"),
    )


def _bar(each: Mapping[str, Any]) -> Bar:
    cpus = sorted(int(cpu) for cpu in each["cpus"])
    is_backward = bool(each.get("is_backward"))
    return Bar(int(each["task"]), cpus, float(each["start_s"]), float(each["end_s"]), is_backward)
