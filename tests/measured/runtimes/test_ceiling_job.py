"""The job of `doctor --ceilings` checks every operation, keeps the best sample, and reports faults."""

import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes import ceiling_job
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.ceiling_job import CeilingsJob, Limits, Probe
from corewise.measured.runtimes.numpy.ceilings import SlicedArrays, prepare_ceilings

LIMITS = Limits(first_size=32, max_size=64, probe_s=0.0005)
ARGS = {"array_bytes": 2**20, "products": True, "probe_s": 0.0005}


def job(arrays: Any, dtypes: tuple[str, ...] = ("float32", "float64"), **args: Any) -> CeilingsJob:
    return CeilingsJob(arrays, {**ARGS, **args}, dtypes, LIMITS, dict)


def sampled(made: CeilingsJob, num_steps: int = 3) -> dict[tuple[str, str], Any]:
    """Return the figures of `num_steps` steps after warm-up, by operation and dtype."""
    made.step()
    made.read_facts()
    for _ in range(num_steps):
        made.step()
    return {(each["kind"], each["dtype"]): each for each in made.collect_sampled_facts()["figures"]}


@pytest.fixture
def arrays() -> SlicedArrays:
    return SlicedArrays(2)


def test_every_operation_agrees_with_numpy(arrays: SlicedArrays) -> None:
    assert job(arrays).check().passed


def test_a_wrong_triad_or_product_fails_the_check() -> None:
    class WrongTriad(SlicedArrays):
        def add_scaled(self, a: Any, factor: Any, b: Any, out: Any = None) -> Any:
            return super().add_scaled(a, factor * (1 + 1e-6), b, out=out)

    class WrongProduct(SlicedArrays):
        def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
            return super().matmul(a, b, out=out) + np.float32(1e-2)

    class NoNumber(SlicedArrays):
        def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
            return super().matmul(a, b, out=out) * np.float32(np.nan)

    assert not job(WrongTriad(1)).check().passed
    assert not job(WrongProduct(1)).check().passed
    assert not job(NoNumber(1)).check().passed


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_a_short_format_with_wrong_products_is_left_out_with_a_note(dtype: str) -> None:
    from corewise.measured.runtimes.torch.arrays import TorchArrays

    class Saturating(TorchArrays):
        def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
            right = super().matmul(a, b, out=out)
            return right * 0 if str(a.dtype) == f"torch.{dtype}" else right

    made = job(Saturating("cpu"), ("float32", dtype))
    assert made.check().passed
    assert ("product", dtype) not in sampled(made)
    [note] = made.collect_sampled_facts()["ceiling_notes"]
    assert note.startswith(f"{dtype}: not measured, because products are wrong here")


def test_the_figures_are_the_best_and_the_median_of_the_samples_after_warm_up(arrays: SlicedArrays) -> None:
    found = sampled(job(arrays), num_steps=3)
    assert set(found) == {
        ("triad", "float64"),
        ("copy", "float64"),
        ("read", "float64"),
        ("product", "float32"),
        ("product", "float64"),
    }
    for each in found.values():
        assert each["num_samples"] >= 3
        assert 0 < each["median"] <= each["best"]
    assert found["triad", "float64"]["size"] == 2**20
    assert found["product", "float32"]["size"] in (32, 64)


def test_the_first_products_that_count_come_after_a_rest(arrays: SlicedArrays, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(ceiling_job.time, "sleep", rests.append)
    made = CeilingsJob(arrays, ARGS, ("float32", "float64"), replace(LIMITS, rest_s=1.5), dict)
    made.step()
    # The warm-up does not count, so it needs no rest.
    assert rests == []
    made.read_facts()
    made.step()
    made.step()
    # There is one rest for each format.
    assert rests == [1.5, 1.5]


def test_rates_count_what_stream_counts() -> None:
    probe = Probe("triad", "float64", 8, 3e9, lambda: None, samples_s=[0.5, 0.25, 1.0])
    figure = probe.summarize()
    assert (figure["best"], figure["median"]) == (12.0, 6.0)


def test_bandwidth_alone_may_be_asked_for(arrays: SlicedArrays) -> None:
    assert {operation for operation, _ in sampled(job(arrays, products=False))} == {"triad", "copy", "read"}


def test_short_memory_makes_smaller_arrays_and_says_so() -> None:
    class Short(SlicedArrays):
        def free_bytes(self) -> int:
            return 12 * 2**20

    made = job(Short(1), array_bytes=2**28)
    assert sampled(made)["copy", "float64"]["size"] == 2**21
    [note] = made.collect_sampled_facts()["ceiling_notes"]
    assert note.startswith("arrays of 2 MiB, not 256, because memory is short")


def test_no_memory_at_all_is_infeasible() -> None:
    class NoMemoryArrays(SlicedArrays):
        def free_bytes(self) -> int:
            return 2**20

    with pytest.raises(Infeasible, match="free some memory"):
        job(NoMemoryArrays(1))


def test_a_format_without_a_product_is_noted(arrays: SlicedArrays) -> None:
    made = job(arrays, ("float32", "int8"))
    assert made.check().passed
    assert ("product", "int8") not in sampled(made)
    assert any(note.startswith("int8: numpy has no fast product") for note in made.ceiling_notes)


def test_a_short_format_slower_than_float32_is_no_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowWhole(SlicedArrays):
        def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
            if a.dtype == np.int8:
                time.sleep(0.002)
                return (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
            return super().matmul(a, b, out=out)

    made = job(SlowWhole(1), ("float32", "int8"))
    assert ("product", "int8") not in sampled(made)
    assert made.collect_sampled_facts()["ceiling_notes"] == ["int8: no fast product here"]
    # Even the first product is too slow.
    monkeypatch.setattr(ceiling_job, "MAX_FIRST_PRODUCT_S", 1e-9)
    assert job(SlowWhole(1), ("float32", "int8")).ceiling_notes == ["int8: no fast product here"]


def test_slices_cover_arrays_of_any_length(arrays: SlicedArrays) -> None:
    for length in (1, 2, 3, 1001):
        a, b = np.arange(float(length)), np.ones(length)
        assert (arrays.add_scaled(a, 2.0, b) == a + 2).all()
        assert (arrays.copy(a) == a).all()
        assert (arrays.create_zeros((length,), "float64") == 0).all()


def test_numpys_job_takes_its_threads_and_sizes_from_the_trial() -> None:
    params = {"threads": 2, "args.array_bytes": 2**20, "args.products": False, "args.probe_s": 0.0005}
    made = prepare_ceilings(TrialParameters.from_mapping(params), RankContext(0, 1, "", 2))
    assert sampled(made)["triad", "float64"]["size"] == 2**20


@pytest.mark.torch
def test_torch_measures_streams_and_products_through_its_own_arrays(need: Callable[[bool, str], None]) -> None:
    need(find_spec("torch") is not None, "PyTorch is not installed")
    from corewise.measured.runtimes.torch.arrays import TorchArrays
    from corewise.measured.runtimes.torch.ceilings import HOST_DTYPES

    made = job(TorchArrays("cpu"), HOST_DTYPES)
    assert made.check().passed
    assert {("product", "float32"), ("product", "float64"), ("triad", "float64")} <= set(sampled(made))
