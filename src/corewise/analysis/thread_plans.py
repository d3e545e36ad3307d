"""Thread plans of malleable trials, read from their records; incomplete plans are ignored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corewise.analysis.columns import parse_number
from corewise.analysis.groups import Group
from corewise.text_format import format_count

MAX_BARS = 1500


@dataclass(frozen=True)
class PlannedTask:
    """Operators that run one after the other on the same cores.

    Attributes:
        width: number of threads; None if no plan runs.
        main_operator: its most expensive operator.
    """

    number: int
    name: str
    num_operators: int
    needs: Sequence[int]
    width: int | None
    seconds_at: Mapping[int, float]
    main_operator: str


@dataclass(frozen=True)
class TaskBar:
    """The execution of a task in one step."""

    task: int
    cpus: Sequence[int]
    start_s: float
    end_s: float
    is_backward: bool = False


@dataclass(frozen=True)
class ThreadPlan:
    """The plan that ran and the reason for it.

    Attributes:
        num_packed: layers with packed weights.
        num_winograd: packed layers that use Winograd convolution.
        num_own_lstms: LSTM calls that use the row-parallel kernel.
    """

    chosen: str
    reason: str
    executor: str
    candidates_s: Mapping[str, float]
    bound_s: float
    tasks: Sequence[PlannedTask]
    bars: Sequence[TaskBar]
    num_packed: int = 0
    num_winograd: int = 0
    num_own_lstms: int = 0

    @property
    def other_speedups(self) -> str:
        """Describe the optimizations besides changing widths; empty if there are none."""
        fewer = f" ({format_count(self.num_winograd, 'convolution')} of them with Winograd convolution)"
        packed = f"{format_count(self.num_packed, 'layer')} with packed weights"
        counts = {
            packed + (fewer if self.num_winograd else ""): self.num_packed,
            f"{format_count(self.num_own_lstms, 'call')} of row-parallel LSTMs": self.num_own_lstms,
        }
        return " and ".join(text for text, num in counts.items() if num)

    @property
    def cpus(self) -> list[int]:
        """The CPUs that any task used."""
        return sorted({cpu for bar in self.bars for cpu in bar.cpus})

    @property
    def total_s(self) -> float:
        """Seconds from the start of the first task to the end of the last."""
        return max(bar.end_s for bar in self.bars) - min(bar.start_s for bar in self.bars)

    @property
    def busy_share(self) -> float:
        """The fraction of the cores' time in which they ran a task."""
        busy = sum(len(bar.cpus) * (bar.end_s - bar.start_s) for bar in self.bars)
        whole = len(self.cpus) * self.total_s
        return min(1.0, busy / whole) if whole > 0 else 0.0


def find_thread_plan(group: Group, i: int) -> ThreadPlan | None:
    """Return the plan of the first run that has one, preferably with a timeline."""
    without_timeline: ThreadPlan | None = None
    for record in group.sources[i].read_full_records([group.records[i].trial_id]) or [group.records[i]]:
        for run in record.runs:
            for rank in run.get("ranks") or ():
                facts = rank.get("malleable") if isinstance(rank, Mapping) else None
                plan = parse_thread_plan(facts) if isinstance(facts, Mapping) else None
                if plan is not None and plan.bars:
                    return plan
                without_timeline = without_timeline or plan
    return without_timeline


def parse_thread_plan(facts: Mapping[str, Any]) -> ThreadPlan | None:
    """Parse the plan in the facts of a rank; None if they hold no valid plan."""
    try:
        tasks = [_parse_task(number, each) for number, each in enumerate(facts.get("tasks") or ())]
        bars = [_parse_bar(each) for each in facts.get("timeline") or ()]
        plan = ThreadPlan(
            chosen=str(facts["chosen"]),
            reason=str(facts.get("reason") or ""),
            executor=str(facts.get("executor") or ""),
            candidates_s={str(n): float(s) for n, s in (facts.get("candidates_s") or {}).items()},
            bound_s=parse_number(facts.get("bound_s")),
            tasks=tasks,
            bars=[bar for bar in bars if bar.cpus and bar.end_s >= bar.start_s and bar.task < len(tasks)],
            num_packed=int(facts.get("num_packed") or 0),
            num_winograd=int(facts.get("num_winograd") or 0),
            num_own_lstms=int(facts.get("num_own_lstms") or 0),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return plan if not plan.bars or plan.total_s > 0 else None


def _parse_task(number: int, each: Mapping[str, Any]) -> PlannedTask:
    width = each.get("width")
    return PlannedTask(
        number=number,
        name=str(each["name"]),
        num_operators=int(each.get("num_operators") or 1),
        needs=[int(need) for need in each.get("needs") or ()],
        width=None if width is None else int(width),
        seconds_at={int(w): float(s) for w, s in (each.get("seconds_at") or {}).items()},
        main_operator=str(each.get("kind") or "task"),
    )


def _parse_bar(each: Mapping[str, Any]) -> TaskBar:
    cpus = sorted(int(cpu) for cpu in each["cpus"])
    is_backward = bool(each.get("is_backward"))
    return TaskBar(int(each["task"]), cpus, float(each["start_s"]), float(each["end_s"]), is_backward)
