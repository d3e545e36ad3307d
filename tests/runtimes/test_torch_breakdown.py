"""A torch job taken apart: every operator is met, runs alone and computes the same."""

import ctypes
import mmap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from corewise.runtimes.base import Infeasible, RankContext  # noqa: E402
from corewise.runtimes.registry import find_runtime  # noqa: E402
from corewise.runtimes.torch import breakdown as taking_apart  # noqa: E402
from corewise.runtimes.torch import breakdown_rounds  # noqa: E402
from corewise.runtimes.torch.breakdown import break_down, check, refuse  # noqa: E402
from corewise.runtimes.torch.breakdown_alone import Alone, Timed, compare, make_sets, run_alone, time_alone  # noqa: E402
from corewise.runtimes.torch.breakdown_inputs import Maker, copied, wanted  # noqa: E402
from corewise.runtimes.torch.breakdown_record import Met, Watch, as_called  # noqa: E402
from corewise.runtimes.torch.breakdown_rounds import Effort  # noqa: E402
from corewise.runtimes.torch.cache_size import (  # noqa: E402
    UNKNOWN_BYTES,
    UNKNOWN_CORE_BYTES,
    core_cache_bytes,
    last_level_cache_bytes,
)
from corewise.workloads.breakdown import Breakdown, from_json, shares, typical  # noqa: E402
from corewise.workloads.primitives.problem import parse_convolution  # noqa: E402

Params = Callable[..., dict[str, Any]]
BRIEF = Effort(num_rounds=1, seconds_of_steps=0.01, seconds_of_calls=0.001, max_steps=2, max_repeats=0)
CACHE_BYTES = 2**18
M_MMAP_THRESHOLD = -3  # of malloc.h
TRANSFORMER = {"layers": 1, "width": 16, "heads": 2, "tokens": 8, "feed_forward": 16, "num_classes": 5}


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few and small sets of inputs."""
    monkeypatch.setattr(taking_apart, "last_level_cache_bytes", lambda on_gpu: CACHE_BYTES)


def prepare(params: dict[str, Any], context: RankContext) -> Any:
    runtime = find_runtime("torch")
    runtime.warm()
    return runtime.prepare(params, context)


def taken_apart(params: dict[str, Any], context: RankContext) -> Breakdown:
    job = prepare(params, context)
    job.step()
    return break_down(job, params, BRIEF)


def calls_by_name(found: Breakdown) -> dict[str, float]:
    calls: dict[str, float] = {}
    for each in found.primitives:
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
def test_every_layer_of_a_model_is_met_with_its_layout(
    params: Params, alone: RankContext, write: Callable[[str], str], layout: str
) -> None:
    found = taken_apart(params(workload=write(NETWORK), batch=2, memory_format=layout), alone)
    calls = calls_by_name(found)
    assert (calls["conv2d"], calls["batch_norm"], calls["relu"], calls["linear"]) == (3, 2, 2, 1)
    repeated = next(each for each in found.primitives if each.problem == "mb2ic8ih8oc8oh8kh3ph1")
    assert repeated.num_calls == 2
    assert found.num_checked == len(found.primitives)
    assert found.check_error <= 1e-4
    stem = next(each for each in found.primitives if "kh7" in each.problem)
    assert (stem.problem, stem.layout) == ("mb2ic3ih32oc8oh16kh7sh2ph3", layout)
    assert stem.flops == parse_convolution(stem.problem).flops < 2 * 2 * 16 * 16 * 8 * 3 * 7 * 7  # padding
    assert stem.traffic_bytes == 4 * (2 * 3 * 32 * 32 + 8 * 3 * 7 * 7 + 2 * 8 * 16 * 16)
    assert all(each.alone_s is not None and each.alone_best_s is not None for each in found.primitives)
    assert all(each.alone_best_s <= each.alone_s for each in found.primitives)  # type: ignore[operator]
    assert {each.category for each in shares(found)} >= {
        "convolution",
        "normalisation",
        "pooling",
        "activation",
    }


def test_training_has_a_backward_pass_and_an_update(
    params: Params, alone: RankContext, write: Callable[[str], str]
) -> None:
    found = taken_apart(params(workload=write(NETWORK), mode="train", batch=2), alone)
    calls = calls_by_name(found)
    assert (calls["convolution"], calls["convolution_backward"], calls["native_batch_norm"]) == (3, 3, 2)
    updates = [each for each in found.primitives if each.phase == "update"]
    num_parameters = 3 + 2 * 2 + 2
    assert sum(each.num_calls for each in updates) == 3 * num_parameters  # of each: mul_, add_, add_
    assert {each.category for each in updates} == {"optimiser"}
    assert {each.phase for each in found.primitives if "backward" in each.operator} == {"backward"}
    for kernel, factor in (("kh7", 1), ("kh3", 2)):  # of the first layer no gradient of the input is wanted
        own = [each for each in found.primitives if kernel in each.problem]
        forward = next(each for each in own if each.operator == "convolution")
        backward = next(each for each in own if each.operator == "convolution_backward")
        assert backward.flops == factor * forward.flops
    assert found.step_s > 0


def test_marks_of_the_profiler_are_no_operators_and_do_not_make_every_step_a_new_one(
    params: Params, alone: RankContext, write: Callable[[str], str]
) -> None:
    asked = params(workload=write(NETWORK), mode="train", batch=2)
    job = prepare(asked, alone)
    # As on a GPU: torch's own optimiser names its step for the profiler by an object that is new each time.
    job._optimizer = torch.optim.SGD(job._module.parameters(), lr=0.01, momentum=0.9, foreach=True)
    job.step()
    found = break_down(job, asked, BRIEF)
    updates = [each for each in found.primitives if each.phase == "update"]
    assert {each.operator for each in updates} == {"_foreach_mul_", "_foreach_add_"}
    assert all(each.num_calls == int(each.num_calls) for each in updates)
    assert not [each for each in found.primitives if "record_function" in each.operator]


def test_steps_that_take_another_part_of_their_data_are_the_same_steps(
    params: Params, alone: RankContext
) -> None:
    sizes = {"time_steps": 2, "members": 1, "num_classes": 5}
    found = taken_apart(params(workload="lstm_ensemble", mode="train", batch=2, **sizes), alone)
    assert all(each.num_calls == int(each.num_calls) for each in found.primitives)


@pytest.mark.parametrize("mode", ["infer", "train"])
@pytest.mark.parametrize(
    ("workload", "sizes", "operator"),
    [
        ("lstm_ensemble", {"time_steps": 4, "members": 1, "num_classes": 5}, "recurrent layer"),
        ("transformer", TRANSFORMER, "attention"),
    ],
)
def test_models_of_other_kinds_are_taken_apart_too(
    params: Params, alone: RankContext, mode: str, workload: str, sizes: dict[str, int], operator: str
) -> None:
    found = taken_apart(params(workload=workload, mode=mode, batch=2, **sizes), alone)
    own = [each for each in found.primitives if each.category == operator]
    assert own
    assert all(each.flops for each in own)
    assert [each.why_not_alone for each in found.primitives if each.alone_s is None] == []


def test_lower_precision_shows_its_casts(
    params: Params, alone: RankContext, write: Callable[[str], str]
) -> None:
    found = taken_apart(params(workload=write(NETWORK), batch=2, dtype="bfloat16"), alone)
    assert {each.dtype for each in found.primitives if each.category == "convolution"} == {"bfloat16"}
    assert any(each.category == "reorder or copy" for each in found.primitives)


def test_a_job_asked_for_its_breakdown_brings_it_with_its_samples(
    params: Params, alone: RankContext, write: Callable[[str], str]
) -> None:
    name = write(
        "import torch\n"
        "def make(batch, mode):\n"
        "    return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()), (torch.randn(batch, 8),)\n"
    )
    asked = {"num_rounds": 1, "seconds_of_steps": 0.01, "seconds_of_calls": 0.001, "max_repeats": 0}
    job = prepare({**params(workload=name, batch=3), "bind": "none", "breakdown": asked}, alone)
    assert job.check().passed
    job.step()
    told: list[str] = []
    job.tell_phases(told.append)
    found = from_json(job.sampled_facts()["breakdown"])
    assert calls_by_name(found)["linear"] == 1
    assert told[-1] == "measuring, round 1 of 1"
    job.close()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"execution": "compile"}, "fused kernels"),
        ({"memory_format": "blocked"}, "opaque"),
        ({"processes": 2}, "one process"),
    ],
)
def test_what_has_no_operators_of_its_own_is_refused(
    params: Params, alone: RankContext, write: Callable[[str], str], change: dict[str, Any], reason: str
) -> None:
    job = prepare(params(workload=write(NETWORK)), alone)
    with pytest.raises(Infeasible, match=reason):
        refuse(job, {**params(), **change})


def test_a_factory_that_returns_a_step_is_refused(
    params: Params, alone: RankContext, write: Callable[[str], str]
) -> None:
    name = write("def make(batch, mode):\n    return {'step': lambda: None}\n")
    with pytest.raises(Infeasible, match="returns a step, not a module"):
        prepare({**params(workload=name), "bind": "none", "breakdown": {}}, alone)


def test_a_primitive_is_no_model(params: Params, alone: RankContext) -> None:
    job = prepare(params(workload="matmul", size=8), alone)
    with pytest.raises(Infeasible, match="is no model"):
        refuse(job, params(workload="matmul"))


def watched(call: Callable[[], Any], sample_bytes: int = 2**20) -> Met:
    """The first operator that a call meets."""
    watch = Watch(lambda: 0, CACHE_BYTES, sample_bytes)
    with watch, torch.no_grad():
        call()
    return next(iter(watch.met.values()))


def test_wrong_numbers_are_noticed() -> None:
    a, b = torch.randn(4, 5), torch.randn(5, 6)
    met = watched(lambda: torch.mm(a, b))
    with as_called(met):
        assert compare(met) == 0.0
        met.func = lambda x, y: torch.mm(x, y) * 1.01
        assert compare(met) > 1e-3
    watch = Watch(lambda: 0, CACHE_BYTES, 0)
    watch.met[()] = met
    checked = check(watch)
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


def test_a_model_with_a_causal_mask_is_taken_apart(
    params: Params, alone: RankContext, write: Callable[[str], str]
) -> None:
    found = taken_apart(params(workload=write(CAUSAL), batch=2), alone)
    masked = next(each for each in found.primitives if each.operator == "masked_fill")
    assert masked.check_error == 0.0
    assert masked.alone_s is not None
    assert [each.operator for each in found.primitives if each.is_wrong_alone] == []


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
    met = watched(lambda: torch.tensor(expected).clone())
    met.func = lambda *_: torch.tensor(got)
    assert met.sample is not None
    met.sample = replace(met.sample, outputs=(torch.tensor(expected),))
    assert compare(met) == error


def test_a_primitive_with_wrong_numbers_has_no_time_alone_and_the_others_have(
    params: Params, alone: RankContext, write: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong_relu(met: Met) -> float:
        return 0.5 if met.description["operator"] == "relu" else compare(met)

    monkeypatch.setattr(taking_apart, "compare", wrong_relu)
    found = taken_apart(params(workload=write(NETWORK), batch=2), alone)
    wrong = [each for each in found.primitives if each.is_wrong_alone]
    assert {each.operator for each in wrong} == {"relu"}
    assert {(each.alone_s, each.check_error) for each in wrong} == {(None, None)}
    assert all("differs from its call in the model by 0.5" in each.why_not_alone for each in wrong)
    assert all(each.alone_s is not None for each in found.primitives if each.operator != "relu")


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
    monkeypatch.setattr(breakdown_rounds, "disturbances", lambda metrics, num_cpus: left.pop(0))
    told: list[str] = []
    job = prepare(params(workload=write(CAUSAL), batch=1), alone)
    job.step()
    found = break_down(job, params(), replace(BRIEF, num_rounds=2, max_repeats=2), told.append)
    assert not left
    assert sum(line.startswith("measuring") for line in told) == num_measured
    assert (found.num_repeated, found.is_disturbed) == (num_repeated, is_disturbed)
    assert len(found.sums_over_steps) == 2
    assert found.step_s == typical(
        [found.steps_s[: len(found.steps_s) // 2], found.steps_s[len(found.steps_s) // 2 :]]
    )


def test_inputs_in_place_are_kept_as_they_were_before_the_call() -> None:
    x = torch.arange(4.0)
    met = watched(lambda: x.add_(1))
    assert met.sample is not None
    assert met.sample.args[0].tolist() == [0, 1, 2, 3]
    with as_called(met):
        assert compare(met) == 0.0


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
    fresh = Maker(1).make(wanted(given), {})
    assert (fresh.shape, fresh.stride(), fresh.dtype) == (given.shape, given.stride(), given.dtype)
    assert fresh.data_ptr() != given.data_ptr() or given.numel() == 0
    again = copied(given)
    assert again.stride() == given.stride()
    assert torch.equal(again, given)
    if given.is_floating_point() and given.numel() > 1:
        assert not torch.equal(fresh, given)
    else:
        assert torch.equal(fresh, given)  # indices cannot be drawn


def test_inputs_alone_keep_mean_spread_and_sign() -> None:
    given = torch.rand(10_000) * 3 + 5
    fresh = Maker(1).make(wanted(given), {})
    assert float(fresh.mean()) == pytest.approx(6.5, abs=0.1)
    assert float(fresh.std()) == pytest.approx(float(given.std()), rel=0.1)
    assert bool((fresh >= 0).all())


def test_one_tensor_given_twice_stays_one() -> None:
    x = torch.randn(5)
    made = Maker(1).make(wanted((x, x)), {})
    assert made[0].data_ptr() == made[1].data_ptr()


def test_views_that_lie_between_each_other_stay_views_of_one_memory() -> None:
    packed = torch.randn(2, 5, 3, 4)
    queries, keys, values = packed.permute(2, 0, 1, 3)
    made: dict[int, Any] = {}
    fresh = Maker(1).make(wanted((queries, [keys], {"values": values})), made)
    flat = [fresh[0], fresh[1][0], fresh[2]["values"]]
    assert [each.data_ptr() - flat[0].data_ptr() for each in flat] == [0, 16, 32]
    assert [each.stride() for each in flat] == [keys.stride()] * 3
    [memory] = made.values()
    assert memory.numel() == packed.numel()


def test_tensors_side_by_side_in_one_storage_get_memory_of_their_own() -> None:
    both = torch.randn(2, 8)
    made: dict[int, Any] = {}
    Maker(1).make(wanted((both[0], both[1])), made)
    assert [each.numel() for each in made.values()] == [8, 8]


def test_the_sets_of_inputs_exceed_the_cache_and_differ() -> None:
    a = torch.randn(64, 64)
    met = watched(lambda: torch.mm(a, a))
    sets = make_sets(met, Maker(1), CACHE_BYTES)
    assert len(sets.calls) == 2 * CACHE_BYTES // (64 * 64 * 4) + 1
    assert not torch.equal(sets.calls[0][0][0], sets.calls[1][0][0])
    assert len(make_sets(met, Maker(1), 2**15).calls) == 5
    timed = time_alone(met, sets, 7, CACHE_BYTES, iter(range(0, 10**9, 1000)).__next__)
    assert timed.times_s == [1e-6] * 7
    assert len(timed.pages) == 7


def test_a_primitive_counts_for_as_many_new_pages_as_the_model_met() -> None:
    kept, fresh = Timed([1e-3] * 3, [0, 0, 0]), Timed([2e-3] * 3, [1000, 1000, 1000])
    alone = Alone(kept, fresh)
    assert alone.page_s == pytest.approx(1e-6)
    assert [alone.call_s(pages) for pages in (0, 500, 1000, 5000)] == pytest.approx(
        [1e-3, 1.5e-3, 2e-3, 2e-3]
    )
    assert Alone(kept).call_s(1000) == 1e-3
    assert Alone(kept, Timed([2e-3] * 3, [3, 3, 3])).page_s == 0.0  # too few to tell


def test_memory_that_was_given_back_lies_on_new_pages() -> None:
    a = torch.randn(4096, 4096)  # more than other tests have left free on a heap that may not be trimmed
    met = watched(lambda: torch.neg(a))
    num_pages = a.numel() * a.element_size() // mmap.PAGESIZE
    met.num_tracked, met.num_new_pages, met.outputs_cached = 1, num_pages, 1
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 2**17)  # as at the beginning: blocks freed by other tests have raised it
    try:
        alone = run_alone(met, make_sets(met, Maker(1), CACHE_BYTES), 5, CACHE_BYTES, time.perf_counter_ns)
    finally:
        libc.mallopt(M_MMAP_THRESHOLD, 2**25)
    assert alone.fresh is not None
    assert alone.fresh.call_pages >= 0.98 * num_pages, alone  # where the block begins, a page may be shared
    assert len(alone.fresh.pages) == len(alone.kept.pages) == 5


def test_what_the_model_used_a_moment_before_lies_in_the_cache() -> None:
    weights, x = torch.randn(300, 300), torch.randn(8, 300)
    watch = Watch(lambda: 0, 100_000, 0)

    def step() -> None:
        y = torch.mm(x, weights)  # 360 kB of weights leave nothing else in the cache
        torch.neg(y)

    with watch, torch.no_grad():
        step()
        with watch.tracking():
            step()
            step()
    product, negated = watch.met.values()
    assert product.inputs_cached == [0, 0]
    assert negated.inputs_cached == [2]


def test_a_part_of_what_was_just_written_lies_in_the_cache_and_the_rest_of_a_table_does_not() -> None:
    x, weights = torch.randn(6, 8), torch.randn(8, 12)
    table = torch.randn(50, 1000)  # twice what the cache holds, but views of it touch nothing
    watch = Watch(lambda: 0, 100_000, 0)

    def step() -> None:
        queries, keys, values = torch.mm(x, weights).view(6, 3, 4).unbind(1)
        torch.sum(table[:, :8])  # touches a cache line of every row
        torch.addcmul(queries, keys, values)
        torch.neg(table[:, 1:9])

    with watch, torch.no_grad():
        step()
        with watch.tracking():
            step()
            step()
    by_name = {each.description["operator"]: each for each in watch.met.values()}
    assert by_name["addcmul"].inputs_cached == [2, 2, 2]
    assert by_name["neg"].inputs_cached == [1]  # only where the step before has left it


def test_a_breakdown_tells_how_far_it_is_and_begins_no_round_too_late(
    params: Params, alone: RankContext, write: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breakdown_rounds, "TELL_EVERY_S", 0.0)
    asked = params(workload=write(NETWORK), batch=2)
    job, told = prepare(asked, alone), list[str]()
    job.step()
    found = break_down(job, asked, replace(BRIEF, num_rounds=5, last_begin_s=0.0), told.append)
    assert len(found.sums_over_steps) == 1
    assert any("round 1 of 5: 3 of " in phase and phase.endswith(" primitives alone") for phase in told)


def test_the_last_cache_is_the_largest_that_the_system_tells(tmp_path: Path) -> None:
    import os

    assert last_level_cache_bytes(False, tmp_path) == UNKNOWN_BYTES
    assert core_cache_bytes(tmp_path) == UNKNOWN_CORE_BYTES
    for number, size in enumerate(("32K", "1024K", "36M")):
        folder = tmp_path / f"cpu{min(os.sched_getaffinity(0))}" / "cache" / f"index{number}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(size + "\n")
        (folder / "level").write_text(f"{number + 1}\n")
    assert last_level_cache_bytes(False, tmp_path) == 36 * 2**20
    assert core_cache_bytes(tmp_path) == 2**20


@pytest.mark.parametrize(("shared", "total"), [(("0-3", "4-7"), 72), (("0-7", "0-7"), 36)])
def test_last_caches_of_all_cpus_of_the_process_count_once_each(
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
    assert last_level_cache_bytes(False, tmp_path) == total * 2**20
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 2})
    assert last_level_cache_bytes(False, tmp_path) == 36 * 2**20
