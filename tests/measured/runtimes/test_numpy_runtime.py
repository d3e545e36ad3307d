"""numpy as a runtime."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.arrays.matmul import prepare_arrays_matmul
from corewise.measured.runtimes.base import Infeasible, RankContext, WorkloadError
from corewise.measured.runtimes.numpy.arrays import NumpyArrays
from corewise.measured.runtimes.numpy.primitives.matmul import NumpyMatmulJob
from corewise.measured.runtimes.registry import find_runtime, list_runtimes
from corewise.measured.workloads.primitives.freivalds_check import compute_product_error
from corewise.measured.workloads.primitives.matmul import MATMUL, compute_product_tolerance
from corewise.measured.workloads.registry import UnknownName

Params = Callable[..., TrialParameters]


def test_runtimes_are_found_by_name_and_unknown_ones_suggest_the_nearest() -> None:
    assert {"numpy", "torch"} <= set(list_runtimes())
    with pytest.raises(UnknownName, match="unknown runtime 'pytorch'; did you mean 'torch'"):
        find_runtime("pytorch")


def test_numpy_reports_its_version_and_its_blas() -> None:
    versions = find_runtime("numpy").read_versions()
    assert versions["numpy"] == np.__version__
    assert "python" in versions


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("size", "batch"), [(1, 1), (33, 1), (64, 3)])
def test_a_product_passes_its_check_and_counts_its_samples(
    params: Params, alone: RankContext, dtype: str, size: int, batch: int
) -> None:
    job = find_runtime("numpy").prepare(params(dtype=dtype, size=size, batch=batch), alone)
    assert job.check().passed
    job.step()
    assert job.samples_per_step == batch
    assert job.read_facts()["output_dtype"] == dtype
    assert job.agree(True)
    assert not job.agree(False)
    assert job.read_loss() is None
    job.close()


def test_the_product_is_right() -> None:
    job = NumpyMatmulJob(size=20, batch=2, dtype="float64", seed=3)
    job.step()
    assert np.allclose(job._c, np.einsum("bij,bjk->bik", job._a, job._b), rtol=1e-12)


@pytest.mark.parametrize("spoil", [lambda c: c * (1 + 1e-3), lambda c: c.astype(np.float16), lambda c: c.T])
def test_a_wrong_product_fails_its_check(spoil: Callable[[Any], Any]) -> None:
    random = np.random.default_rng(0)
    a, b = random.uniform(-1, 1, (2, 200, 200))
    allowed = compute_product_tolerance(200, 2.0**-24, 2.0**-24)
    assert compute_product_error(a, b, (a @ b).astype(np.float32)) <= allowed
    assert compute_product_error(a, b, spoil(a @ b)) > allowed


def test_one_wrong_element_fails_the_check() -> None:
    random = np.random.default_rng(0)
    a, b = random.uniform(-1, 1, (2, 100, 100))
    c = a @ b
    c[17, 4] += 0.5
    assert compute_product_error(a, b, c) > compute_product_tolerance(100, 2.0**-24, 2.0**-24)


def test_not_a_number_fails_the_check() -> None:
    job = NumpyMatmulJob(size=8, batch=1, dtype="float32", seed=0)
    job._a[0, 0, 0] = np.nan
    assert not job.check().passed


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        ({"dtype": "bfloat16"}, "no fast product of bfloat16"),
        ({"device": "cuda"}, "device cuda has no effect"),
        ({"execution": "compile"}, "execution compile has no effect"),
        ({"mode": "train"}, "matmul has no mode 'train'"),
        ({"workload": "resnet18"}, "resnet18 does not run on numpy; it runs on torch"),
        ({"size": 0}, "size must be a whole number"),
        ({"width": 3}, "matmul has no parameter 'width'"),
        ({"batch": 1, "batch_scope": "global", "processes": 2}, "a global batch of 1 is not a multiple of 2 processes"),
    ],
)
def test_a_point_that_does_not_exist_is_infeasible_with_its_reason(
    params: Params, alone: RankContext, point: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Infeasible, match=reason):
        find_runtime("numpy").prepare(params(**point), alone)


def test_a_global_batch_is_split_between_processes(params: Params, alone: RankContext) -> None:
    job = find_runtime("numpy").prepare(params(size=4, batch=6, batch_scope="global", processes=2), alone)
    assert job.samples_per_step == 3


def test_a_custom_step_is_called_and_counted(params: Params, alone: RankContext, write: Callable[[str], str]) -> None:
    name = write(
        "CALLS = []\n"
        "def make(batch, mode, note):\n"
        "    step, check = lambda: CALLS.append(note), lambda: (len(CALLS), 0)\n"
        "    return {'step': step, 'samples_per_step': 2, 'check': check}\n"
    )
    job = find_runtime("numpy").prepare(params(workload=name, note="hi"), alone)
    assert job.check().passed
    job.step()
    assert job.samples_per_step == 2
    assert job.independent
    # The call was counted.
    assert not job.check().passed


def test_a_custom_step_without_a_check_says_so(params: Params, alone: RankContext, write: Callable[[str], str]) -> None:
    job = find_runtime("numpy").prepare(params(workload=write("def make(batch, mode): return {'step': dict}")), alone)
    assert job.check().passed
    assert job.check().reference == "none given"


def test_a_check_that_returns_nonsense_is_the_users_fault(
    params: Params, alone: RankContext, write: Callable[[str], str]
) -> None:
    name = write("def make(batch, mode): return {'step': dict, 'check': lambda: 'fine'}")
    with pytest.raises(WorkloadError, match=r"check must return \(error, tolerance\), not 'fine'"):
        find_runtime("numpy").prepare(params(workload=name), alone).check()


def test_a_module_cannot_run_on_numpy(params: Params, alone: RankContext, write: Callable[[str], str]) -> None:
    name = write("def make(batch, mode): return object(), (1,)")
    with pytest.raises(WorkloadError, match="needs runtime torch"):
        find_runtime("numpy").prepare(params(workload=name), alone)


def test_matrices_that_do_not_fit_are_refused_with_the_largest_that_do(params: Params, alone: RankContext) -> None:
    asked = params(workload="matmul", size=10**6, batch=4)
    for prepare in (
        find_runtime("numpy").prepare,
        lambda *given: prepare_arrays_matmul(NumpyArrays(), *given, facts=dict),
    ):
        with pytest.raises(Infeasible, match=r"matmul needs \d+ bytes .* are free; .* args\.size \d+") as refused:
            prepare(asked, alone)
        offered = int(str(refused.value).rsplit(" ", 1)[1])
        free_bytes = int(str(refused.value).split("GB), ")[1].split(" ")[0])
        assert free_bytes / 4 < MATMUL.estimate_memory_bytes(replace(asked, arguments={"size": offered})) <= free_bytes
