"""Trials of fixed thread settings and of changing widths, for tests of the report."""

from typing import Any

from tests.report.sample_trials import trial

from corewise.study.record import Record

NUM_CORES = 16
PARAMS: dict[str, Any] = {
    "workload": "lstm_ensemble", "mode": "infer", "batch": 400, "wait_policy": "default",
    "args.time_steps": 400, "allocator": "retain",
}  # fmt: skip


def plan_facts(num_cores: int = NUM_CORES) -> dict[str, Any]:
    """Eight LSTMs on two cores each, then what joins them on all; as a rank tells it."""
    lstms = [(f"zeros_{k}, lstm_{k}", "lstm", [], 2, 2 * k % num_cores, 0.1 + 0.4 * k, 30.0) for k in range(8)]
    joins = [(f"cat_{k}", "cat", [2 * k, 2 * k + 1], 4, 4 * k % num_cores, 34.0 + 0.2 * k, 0.6) for k in range(4)]
    last = [("stack, sum_1", "stack", [8, 9, 10, 11], num_cores, 0, 35.6, 1.9)]
    tasks, timeline = [], []
    for number, (name, operator, needs, width, first, start_ms, took_ms) in enumerate([*lstms, *joins, *last]):
        tasks.append(
            {
                "name": name, "kind": operator, "num_operators": 2, "needs": needs, "width": width,
                "seconds_at": {"1": took_ms / 1e3 * width, "2": took_ms / 1e3, "16": took_ms / 2e3},
            }
        )  # fmt: skip
        timeline.append(
            {
                "task": number, "cpus": list(range(first, first + width)), "start_s": start_ms / 1e3,
                "end_s": (start_ms + took_ms) / 1e3,
            }
        )  # fmt: skip
    return {
        "chosen": "moldable", "reason": "", "executor": "native", "bound_s": 0.033, "was_kept": False,
        "candidates_s": {"plain": 0.0758, "moldable": 0.0354, "8×2": 0.0381},
        "expected_s": {"moldable": 0.034}, "num_operators": 26, "tasks": tasks, "timeline": timeline,
    }  # fmt: skip


def changing(rate: float = 11_300.0, threads: int = NUM_CORES, facts: Any = None, **changes: Any) -> Record:
    """A trial whose widths changed, with the plan in its first run's rank."""
    params = {**PARAMS, "execution": "malleable", "threads": threads, "interop_threads": None}
    made = trial(rate, params=params, metrics={"planning_s": 4.2}, study="papers/dynamic-threads", **changes)
    plan = plan_facts() if facts is None else facts
    first = {**made.runs[0], "ranks": [{"rank": 0, "malleable": plan}]}
    return Record(**{**{n: getattr(made, n) for n in made.__slots__}, "runs": (first, *made.runs[1:])})


def fixed(inter: int, intra: int, rate: float, **params: Any) -> Record:
    """A trial of a fixed setting."""
    own = {**PARAMS, "execution": "script", "threads": inter * intra, "interop_threads": inter, **params}
    return trial(rate, params=own, study="papers/dynamic-threads")


def fixed_grid() -> list[Record]:
    """Inter-op × intra-op threads on sixteen cores, waiting actively and passively; the best is 8×2."""
    records = []
    for inter in (1, 2, 4, 8, 16):
        for intra in (1, 2, 4, 8, 16):
            crowd = max(1.0, inter * intra / NUM_CORES)
            rate = 900.0 * min(inter, 8) ** 0.85 * intra**0.55 / crowd**1.2
            records.append(fixed(inter, intra, rate))
            records.append(fixed(inter, intra, 0.8 * rate, wait_policy="passive"))
    return records
