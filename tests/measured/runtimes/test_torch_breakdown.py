"""The breakdown of a torch job: every operator is recorded, runs in isolation and computes the same."""

import ctypes
import mmap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.registry import find_runtime
from corewise.measured.runtimes.torch.breakdown import step_breakdown, timing_rounds
from corewise.measured.runtimes.torch.breakdown.isolated_timing import (
    CallTimes,
    IsolatedTimes,
    build_input_sets,
    compare_with_model,
    time_isolated,
    time_isolated_calls,
)
from corewise.measured.runtimes.torch.breakdown.operator_recorder import (
    OperatorRecorder,
    RecordedOperator,
    enter_recorded_modes,
)
from corewise.measured.runtimes.torch.breakdown.step_breakdown import (
    check_primitives,
    measure_breakdown,
    refuse_unsupported_job,
)
from corewise.measured.runtimes.torch.breakdown.synthetic_inputs import InputGenerator, copy_tensors, describe_arguments
from corewise.measured.runtimes.torch.breakdown.timing_rounds import BreakdownEffort
from corewise.measured.runtimes.torch.cache_size import (
    UNKNOWN_BYTES,
    UNKNOWN_CORE_BYTES,
    read_core_cache_bytes,
    read_last_level_cache_bytes,
)
from corewise.measured.workloads.model_breakdown import Breakdown, compute_shares, compute_typical, from_json
from corewise.measured.workloads.primitives.convolution_problem import parse_convolution

Params = Callable[..., TrialParameters]
BRIEF = BreakdownEffort(num_rounds=1, seconds_of_steps=0.01, seconds_of_calls=0.001, max_steps=2, max_repeats=0)
CACHE_BYTES = 2**18
# From malloc.h.
M_MMAP_THRESHOLD = -3
TRANSFORMER = {"layers": 1, "width": 16, "heads": 2, "tokens": 8, "feed_forward": 16, "num_classes": 5}


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few and small sets of inputs."""
    monkeypatch.setattr(step_breakdown, "read_last_level_cache_bytes", lambda on_gpu: CACHE_BYTES)


def prepare(params: TrialParameters, context: RankContext) -> Any:
    runtime = find_runtime("torch")
    runtime.warm()
    return runtime.prepare(params, context)


def break_down(params: TrialParameters, context: RankContext) -> Breakdown:
    job = prepare(params, context)
    job.step()
    return measure_breakdown(job, params, BRIEF)


def calls_by_name(breakdown: Breakdown) -> dict[str, float]:
    calls: dict[str, float] = {}
    for each in breakdown.primitives:
        calls[each.operator] = calls.get(each.operator, 0) + each.num_calls
    return calls


NETWORK = """
import torch
from torch import nn

def make(batch, mode):
    torch.manual_seed(1)
    layers = [nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    layers += [nn.MaxPool2d(2)]
    layers += [nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    layers += [nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.Flatten(1), nn.Linear(8 * 64, 10)]
    return nn.Sequential(*layers), (torch.randn(batch, 3, 32, 32),), torch.randint(10, (batch,))
"""


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_every_layer_of_a_model_is_recorded_with_its_layout(
    params: Params, alone: RankContext, write: Callable[[str], str], layout: str
) -> None:
    breakdown = break_down(params(workload=write(NETWORK), batch=2, memory_format=layout), alone)
    calls = calls_by_name(breakdown)
    assert (calls["conv2d"], calls["batch_norm"], calls["relu"], calls["linear"]) == (3, 2, 2, 1)
    repeated = next(each for each in breakdown.primitives if each.problem == "mb2ic8ih8oc8oh8kh3ph1")
    assert repeated.num_calls == 2
    assert breakdown.num_checked == len(breakdown.primitives)
    assert breakdown.check_error <= 1e-4
    stem = next(each for each in breakdown.primitives if "kh7" in each.problem)
    assert (stem.problem, stem.layout) == ("mb2ic3ih32oc8oh16kh7sh2ph3", layout)
    # Products with padding do not count.
    assert stem.flops == parse_convolution(stem.problem).flops < 2 * 2 * 16 * 16 * 8 * 3 * 7 * 7
    assert stem.traffic_bytes == 4 * (2 * 3 * 32 * 32 + 8 * 3 * 7 * 7 + 2 * 8 * 16 * 16)
    assert all(each.alone_s is not None and each.alone_best_s is not None for each in breakdown.primitives)
    assert all(each.alone_best_s <= each.alone_s for each in breakdown.primitives)  # type: ignore[operator]
    assert {each.category for each in compute_shares(breakdown)} >= {
        "convolution",
        "normalisation",
        "pooling",
        "activation",
    }


def test_training_has_a_backward_pass_and_an_update(
    params: Params, alone: RankContext, write: Callable[[str], str]
) -> None:
    breakdown = break_down(params(workload=write(NETWORK), mode="train", batch=2), alone)
    calls = calls_by_name(breakdown)
    assert (calls["convolution"], calls["convolution_backward"], calls["native_batch_norm"]) == (3, 3, 2)
    updates = [each for each in breakdown.primitives if each.phase == "update"]
    num_parameters = 3 + 2 * 2 + 2
    # Each parameter needs mul_, add_ and add_.
    assert sum(each.num_calls for each in updates) == 3 * num_parameters
    assert {each.category for each in updates} == {"optimiser"}
    assert {each.phase for each in breakdown.primitives if "backward" in each.operator} == {"backward"}
    # The first layer needs no input gradient.
    for kernel, factor in (("kh7", 1), ("kh3", 2)):
        own = [each for each in breakdown.primitives if kernel in each.problem]
        forward = next(each for each in own if each.operator == "convolution")
        backward = next(each for each in own if each.operator == "convolution_backward")
        assert backward.flops == factor * forward.flops
    assert breakdown.step_s > 0


def test_marks_of_the_profiler_are_no_operators_and_do_not_make_every_step_a_new_one(
    params: Params, alone: RankContext, write: Callable[[str], str]
) -> None:
    trial = params(workload=write(NETWORK), mode="train", batch=2)
    job = prepare(trial, alone)
    # As on a GPU: torch's own optimiser names its step for the profiler by an object that is new each time.
    job.optimizer = torch.optim.SGD(job._module.parameters(), lr=0.01, momentum=0.9, foreach=True)
    job.step()
    breakdown = measure_breakdown(job, trial, BRIEF)
    updates = [each for each in breakdown.primitives if each.phase == "update"]
    assert {each.operator for each in updates} == {"_foreach_mul_", "_foreach_add_"}
    assert all(each.num_calls == int(each.num_calls) for each in updates)
    assert not [each for each in breakdown.primitives if "record_function" in each.operator]


def test_steps_that_take_another_part_of_their_data_are_the_same_steps(params: Params, alone: RankContext) -> None:
    sizes = {"time_steps": 2, "members": 1, "num_classes": 5}
    breakdown = break_down(params(workload="lstm_ensemble", mode="train", batch=2, **sizes), alone)
    assert all(each.num_calls == int(each.num_calls) for each in breakdown.primitives)


@pytest.mark.parametrize("mode", ["infer", "train"])
@pytest.mark.parametrize(
    ("workload", "sizes", "operator"),
    [
        ("lstm_ensemble", {"time_steps": 4, "members": 1, "num_classes": 5}, "recurrent layer"),
        ("transformer", TRANSFORMER, "attention"),
    ],
)
def test_recurrent_and_attention_models_are_broken_down(
    params: Params, alone: RankContext, mode: str, workload: str, sizes: dict[str, int], operator: str
) -> None:
    breakdown = break_down(params(workload=workload, mode=mode, batch=2, **sizes), alone)
    own = [each for each in breakdown.primitives if each.category == operator]
    assert own
    assert all(each.flops for each in own)
    assert [each.why_not_alone for each in breakdown.primitives if each.alone_s is None] == []


def test_lower_precision_shows_its_casts(params: Params, alone: RankContext, write: Callable[[str], str]) -> None:
    breakdown = break_down(params(workload=write(NETWORK), batch=2, dtype="bfloat16"), alone)
    assert {each.dtype for each in breakdown.primitives if each.category == "convolution"} == {"bfloat16"}
    assert any(each.category == "reorder or copy" for each in breakdown.primitives)


def test_a_trial_with_breakdown_has_it_among_its_sampled_facts(
    params: Params, alone: RankContext, write: Callable[[str], str]
) -> None:
    name = write(
        "import torch\n"
        "def make(batch, mode):\n"
        "    return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()), (torch.randn(batch, 8),)\n"
    )
    trial = {"num_rounds": 1, "seconds_of_steps": 0.01, "seconds_of_calls": 0.001, "max_repeats": 0}
    job = prepare(replace(params(workload=name, batch=3, bind="none"), breakdown=trial), alone)
    assert job.check().passed
    job.step()
    phases: list[str] = []
    job.report_phases(phases.append)
    breakdown = from_json(job.collect_sampled_facts()["breakdown"])
    assert calls_by_name(breakdown)["linear"] == 1
    assert phases[-1] == "measuring, round 1 of 1"
    job.close()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"execution": "compile"}, "fused kernels"),
        ({"memory_format": "blocked"}, "opaque"),
        ({"processes": 2}, "single process"),
    ],
)
def test_jobs_without_separable_operators_are_refused(
    params: Params, alone: RankContext, write: Callable[[str], str], change: dict[str, Any], reason: str
) -> None:
    job = prepare(params(workload=write(NETWORK)), alone)
    with pytest.raises(Infeasible, match=reason):
        refuse_unsupported_job(job, params(**change))


def test_a_factory_that_returns_a_step_is_refused(
    params: Params, alone: RankContext, write: Callable[[str], str]
) -> None:
    name = write("def make(batch, mode):\n    return {'step': lambda: None}\n")
    with pytest.raises(Infeasible, match="returns a step, not a module"):
        prepare(replace(params(workload=name, bind="none"), breakdown={}), alone)


def test_a_primitive_is_no_model(params: Params, alone: RankContext) -> None:
    job = prepare(params(workload="matmul", size=8), alone)
    with pytest.raises(Infeasible, match="already a primitive or kernel"):
        refuse_unsupported_job(job, params(workload="matmul"))


def record_first(call: Callable[[], Any], sample_bytes: int = 2**20) -> RecordedOperator:
    """Record the first operator of a call."""
    recorder = OperatorRecorder(lambda: 0, CACHE_BYTES, sample_bytes)
    with recorder, torch.no_grad():
        call()
    return next(iter(recorder.operators.values()))


def test_wrong_numbers_are_noticed() -> None:
    a, b = torch.randn(4, 5), torch.randn(5, 6)
    operator = record_first(lambda: torch.mm(a, b))
    with enter_recorded_modes(operator):
        assert compare_with_model(operator) == 0.0
        operator.func = lambda x, y: torch.mm(x, y) * 1.01
        assert compare_with_model(operator) > 1e-3
    recorder = OperatorRecorder(lambda: 0, CACHE_BYTES, 0)
    recorder.operators[()] = operator
    checked = check_primitives(recorder)
    assert not checked.errors
    assert "differs from its call in the model by 0.01; 0.0001 is allowed" in checked.wrong[()]


CAUSAL = """
import torch
from torch import nn

class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8)

    def forward(self, x):
        x = self.project(x)
        mask = torch.ones(6, 6, dtype=torch.bool).triu(1)
        return (x @ x.transpose(1, 2)).masked_fill(mask, float("-inf")).softmax(-1) @ x

def make(batch, mode):
    return Causal(), (torch.randn(batch, 6, 8),)
"""


def test_a_model_with_a_causal_mask_is_broken_down(
    params: Params, alone: RankContext, write: Callable[[str], str]
) -> None:
    breakdown = break_down(params(workload=write(CAUSAL), batch=2), alone)
    masked = next(each for each in breakdown.primitives if each.operator == "masked_fill")
    assert masked.check_error == 0.0
    assert masked.alone_s is not None
    assert [each.operator for each in breakdown.primitives if each.is_wrong_alone] == []


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("got", "expected", "error"),
    [
        ([1.0, -INF, NAN], [1.0, -INF, NAN], 0.0),
        ([1.5, -INF], [1.0, -INF], 0.5),
        ([-INF], [-INF], 0.0),
        ([1.0, INF], [1.0, -INF], INF),
        ([1.0, 2.0], [1.0, -INF], INF),
        ([1.0, -INF], [1.0, 2.0], INF),
        ([1.0, NAN], [1.0, 2.0], INF),
    ],
)
def test_what_is_not_finite_has_to_be_the_same_and_the_rest_is_compared(
    got: list[float], expected: list[float], error: float
) -> None:
    operator = record_first(lambda: torch.tensor(expected).clone())
    operator.func = lambda *_: torch.tensor(got)
    assert operator.sample is not None
    operator.sample = replace(operator.sample, outputs=(torch.tensor(expected),))
    assert compare_with_model(operator) == error


def test_a_primitive_with_wrong_numbers_has_no_time_alone_and_the_others_have(
    params: Params, alone: RankContext, write: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong_relu(operator: RecordedOperator) -> float:
        return 0.5 if operator.description["operator"] == "relu" else compare_with_model(operator)

    monkeypatch.setattr(step_breakdown, "compare_with_model", wrong_relu)
    breakdown = break_down(params(workload=write(NETWORK), batch=2), alone)
    wrong = [each for each in breakdown.primitives if each.is_wrong_alone]
    assert {each.operator for each in wrong} == {"relu"}
    assert {(each.alone_s, each.check_error) for each in wrong} == {(None, None)}
    assert all("differs from its call in the model by 0.5" in each.why_not_alone for each in wrong)
    assert all(each.alone_s is not None for each in breakdown.primitives if each.operator != "relu")


@pytest.mark.parametrize(
    ("notes", "num_measured", "num_repeated", "is_disturbed"),
    [
        ([[], []], 2, 0, False),
        ([["others"], [], []], 3, 1, False),
        ([["others"], ["others"], ["others"], []], 4, 2, True),
    ],
)
def test_a_disturbed_round_is_measured_again_up_to_a_limit(
    params: Params,
    alone: RankContext,
    write: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    notes: list[list[str]],
    num_measured: int,
    num_repeated: int,
    is_disturbed: bool,
) -> None:
    left = list(notes)
    monkeypatch.setattr(timing_rounds, "describe_disturbances", lambda metrics, num_cpus: left.pop(0))
    phases: list[str] = []
    job = prepare(params(workload=write(CAUSAL), batch=1), alone)
    job.step()
    breakdown = measure_breakdown(job, params(), replace(BRIEF, num_rounds=2, max_repeats=2), phases.append)
    assert not left
    assert sum(line.startswith("measuring") for line in phases) == num_measured
    assert (breakdown.num_repeated, breakdown.is_disturbed) == (num_repeated, is_disturbed)
    assert len(breakdown.sums_over_steps) == 2
    assert breakdown.step_s == compute_typical(
        [breakdown.steps_s[: len(breakdown.steps_s) // 2], breakdown.steps_s[len(breakdown.steps_s) // 2 :]]
    )


def test_inputs_written_in_place_are_recorded_before_the_call() -> None:
    x = torch.arange(4.0)
    operator = record_first(lambda: x.add_(1))
    assert operator.sample is not None
    assert operator.sample.args[0].tolist() == [0, 1, 2, 3]
    with enter_recorded_modes(operator):
        assert compare_with_model(operator) == 0.0


@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda: torch.randn(6, 4).t(),
        lambda: torch.randn(1, 5).expand(3, 5),
        lambda: torch.randn(4, 6)[:, ::2],
        lambda: torch.randint(9, (4, 3)),
        lambda: torch.randn(3, 4, dtype=torch.bfloat16),
        lambda: torch.empty(0, 3),
        lambda: torch.tensor(2.5),
    ],
)
def test_inputs_alone_have_the_shape_strides_and_format_of_the_models(made: Callable[[], Any]) -> None:
    given = made()
    fresh = InputGenerator(1).generate(describe_arguments(given), {})
    assert (fresh.shape, fresh.stride(), fresh.dtype) == (given.shape, given.stride(), given.dtype)
    assert fresh.data_ptr() != given.data_ptr() or given.numel() == 0
    again = copy_tensors(given)
    assert again.stride() == given.stride()
    assert torch.equal(again, given)
    if given.is_floating_point() and given.numel() > 1:
        assert not torch.equal(fresh, given)
    else:
        # Indices cannot be drawn.
        assert torch.equal(fresh, given)


def test_inputs_alone_keep_mean_spread_and_sign() -> None:
    given = torch.rand(10_000) * 3 + 5
    fresh = InputGenerator(1).generate(describe_arguments(given), {})
    assert float(fresh.mean()) == pytest.approx(6.5, abs=0.1)
    assert float(fresh.std()) == pytest.approx(float(given.std()), rel=0.1)
    assert bool((fresh >= 0).all())


def test_a_tensor_passed_twice_stays_one_tensor() -> None:
    x = torch.randn(5)
    made = InputGenerator(1).generate(describe_arguments((x, x)), {})
    assert made[0].data_ptr() == made[1].data_ptr()


def test_interleaved_views_stay_views_of_one_buffer() -> None:
    packed = torch.randn(2, 5, 3, 4)
    queries, keys, values = packed.permute(2, 0, 1, 3)
    made: dict[int, Any] = {}
    fresh = InputGenerator(1).generate(describe_arguments((queries, [keys], {"values": values})), made)
    flat = [fresh[0], fresh[1][0], fresh[2]["values"]]
    assert [each.data_ptr() - flat[0].data_ptr() for each in flat] == [0, 16, 32]
    assert [each.stride() for each in flat] == [keys.stride()] * 3
    [memory] = made.values()
    assert memory.numel() == packed.numel()


def test_adjacent_tensors_of_one_storage_get_separate_memory() -> None:
    both = torch.randn(2, 8)
    made: dict[int, Any] = {}
    InputGenerator(1).generate(describe_arguments((both[0], both[1])), made)
    assert [each.numel() for each in made.values()] == [8, 8]


def test_the_sets_of_inputs_exceed_the_cache_and_differ() -> None:
    a = torch.randn(64, 64)
    operator = record_first(lambda: torch.mm(a, a))
    sets = build_input_sets(operator, InputGenerator(1), CACHE_BYTES)
    assert len(sets.calls) == 2 * CACHE_BYTES // (64 * 64 * 4) + 1
    assert not torch.equal(sets.calls[0][0][0], sets.calls[1][0][0])
    assert len(build_input_sets(operator, InputGenerator(1), 2**15).calls) == 5
    timed = time_isolated_calls(operator, sets, 7, CACHE_BYTES, iter(range(0, 10**9, 1000)).__next__)
    assert timed.times_s == [1e-6] * 7
    assert len(timed.pages) == 7


def test_a_primitive_counts_for_as_many_new_pages_as_the_model_met() -> None:
    reused, fresh = CallTimes([1e-3] * 3, [0, 0, 0]), CallTimes([2e-3] * 3, [1000, 1000, 1000])
    alone = IsolatedTimes(reused, fresh)
    assert alone.page_s == pytest.approx(1e-6)
    assert [alone.estimate_call_s(pages) for pages in (0, 500, 1000, 5000)] == pytest.approx([1e-3, 1.5e-3, 2e-3, 2e-3])
    assert IsolatedTimes(reused).estimate_call_s(1000) == 1e-3
    # So few pages have no measurable cost.
    assert IsolatedTimes(reused, CallTimes([2e-3] * 3, [3, 3, 3])).page_s == 0.0


def test_memory_that_was_given_back_lies_on_new_pages() -> None:
    # Larger than the free heap that other tests may have left.
    a = torch.randn(4096, 4096)
    operator = record_first(lambda: torch.neg(a))
    num_pages = a.numel() * a.element_size() // mmap.PAGESIZE
    operator.num_tracked, operator.num_new_pages, operator.output_cache_hits = 1, num_pages, 1
    libc = ctypes.CDLL(None)
    # Blocks that other tests freed have raised the initial threshold.
    libc.mallopt(M_MMAP_THRESHOLD, 2**17)
    try:
        alone = time_isolated(
            operator, build_input_sets(operator, InputGenerator(1), CACHE_BYTES), 5, CACHE_BYTES, time.perf_counter_ns
        )
    finally:
        libc.mallopt(M_MMAP_THRESHOLD, 2**25)
    assert alone.on_new_pages is not None
    # A page may be shared where the block begins.
    assert alone.on_new_pages.call_pages >= 0.98 * num_pages, alone
    assert len(alone.on_new_pages.pages) == len(alone.on_reused_pages.pages) == 5


def test_recently_used_inputs_count_as_cached() -> None:
    weights, x = torch.randn(300, 300), torch.randn(8, 300)
    recorder = OperatorRecorder(lambda: 0, 100_000, 0)

    def step() -> None:
        # 360 kB of weights evict everything else from the cache.
        y = torch.mm(x, weights)
        torch.neg(y)

    with recorder, torch.no_grad():
        step()
        with recorder.track_cache():
            step()
            step()
    product, negated = recorder.operators.values()
    assert product.input_cache_hits == [0, 0]
    assert negated.input_cache_hits == [2]


def test_only_the_part_that_was_just_written_counts_as_cached() -> None:
    x, weights = torch.randn(6, 8), torch.randn(8, 12)
    # Twice the size of the cache, but views do not access memory.
    table = torch.randn(50, 1000)
    recorder = OperatorRecorder(lambda: 0, 100_000, 0)

    def step() -> None:
        queries, keys, values = torch.mm(x, weights).view(6, 3, 4).unbind(1)
        # This touches a cache line of every row.
        torch.sum(table[:, :8])
        torch.addcmul(queries, keys, values)
        torch.neg(table[:, 1:9])

    with recorder, torch.no_grad():
        step()
        with recorder.track_cache():
            step()
            step()
    by_name = {each.description["operator"]: each for each in recorder.operators.values()}
    assert by_name["addcmul"].input_cache_hits == [2, 2, 2]
    # It is cached only if the preceding step left it there.
    assert by_name["neg"].input_cache_hits == [1]


def test_a_breakdown_reports_progress_and_starts_no_late_round(
    params: Params, alone: RankContext, write: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing_rounds, "REPORT_EVERY_S", 0.0)
    trial = params(workload=write(NETWORK), batch=2)
    job, phases = prepare(trial, alone), list[str]()
    job.step()
    breakdown = measure_breakdown(job, trial, replace(BRIEF, num_rounds=5, last_begin_s=0.0), phases.append)
    assert len(breakdown.sums_over_steps) == 1
    assert any("round 1 of 5: 3 of " in phase and phase.endswith(" primitives in isolation") for phase in phases)


def test_the_last_level_cache_is_the_largest_that_the_system_reports(tmp_path: Path) -> None:
    import os

    assert read_last_level_cache_bytes(False, tmp_path) == UNKNOWN_BYTES
    assert read_core_cache_bytes(tmp_path) == UNKNOWN_CORE_BYTES
    for number, size in enumerate(("32K", "1024K", "36M")):
        folder = tmp_path / f"cpu{min(os.sched_getaffinity(0))}" / "cache" / f"index{number}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(size + "\n")
        (folder / "level").write_text(f"{number + 1}\n")
    assert read_last_level_cache_bytes(False, tmp_path) == 36 * 2**20
    assert read_core_cache_bytes(tmp_path) == 2**20


@pytest.mark.parametrize(("shared", "total"), [(("0-3", "4-7"), 72), (("0-7", "0-7"), 36)])
def test_each_last_level_cache_of_the_process_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: tuple[str, str], total: int
) -> None:
    for cpu in range(8):
        for number, (size, sharing) in enumerate((("1M", str(cpu)), ("36M", shared[cpu // 4]))):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{number}"
            folder.mkdir(parents=True)
            (folder / "size").write_text(f"{size}\n")
            (folder / "level").write_text(f"{number + 2}\n")
            (folder / "shared_cpu_list").write_text(f"{sharing}\n")
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(8)))
    assert read_last_level_cache_bytes(False, tmp_path) == total * 2**20
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 2})
    assert read_last_level_cache_bytes(False, tmp_path) == 36 * 2**20
