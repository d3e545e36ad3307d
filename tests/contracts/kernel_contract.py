"""The contract of kernels on every supported runtime: `TestName = build_contract(KERNEL, small, large)`."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Infeasible, Job, MissingPart, RankContext
from corewise.measured.runtimes.kernel_job import require_memory
from corewise.measured.runtimes.numpy.arrays import NumpyArrays
from corewise.measured.runtimes.registry import find_runtime, list_runtimes
from corewise.measured.workloads.base import is_kernel, list_axis_defaults
from corewise.measured.workloads.registry import find_workload

Need = Callable[[bool, str], None]


class KernelContract:
    """The tests of a kernel; `build_contract` sets the class attributes."""

    kernel: ClassVar[Any]
    small: ClassVar[dict[str, Any]]
    large: ClassVar[dict[str, Any]]

    def prepare(self, need: Need, folder: Path, runtime: str, dtype: str, **values: Any) -> Job:
        """Prepare the job of a small trial; skip the test if the framework is missing."""
        if runtime not in list_runtimes():
            pytest.skip(f"no runtime {runtime}")
        instance = find_runtime(runtime)
        point = {"workload": self.kernel.name, "mode": "infer", "runtime": runtime, "dtype": dtype, "batch": 1}
        args = {f"args.{name}": value for name, value in {**self.small, **values.pop("args", {})}.items()}
        params = TrialParameters.from_mapping({**point, **args, **values})
        try:
            instance.warm()
        except MissingPart as problem:
            need(False, str(problem))
        instance.warm_for(params)
        return instance.prepare(params, RankContext(0, 1, str(folder), 1))

    def choose_default_dtype(self) -> str:
        return str(list_axis_defaults(self.kernel).get("dtype", "float32"))

    def test_it_is_registered_under_its_name_with_a_summary(self) -> None:
        assert find_workload(self.kernel.name) is self.kernel
        assert is_kernel(self.kernel)
        assert self.kernel.modes == ("infer",)
        assert len(self.kernel.summary.splitlines()) == 1
        assert list_axis_defaults(self.kernel)["batch"] == 1
        assert set(self.small) <= set(self.kernel.parameters)

    def test_its_work_is_counted_for_every_number_format(self) -> None:
        for dtype in self.kernel.list_dtypes({**self.kernel.parameters, **self.small}):
            work = self.kernel.count_work("infer", self.small, dtype)
            assert work.num_parameters == 0
            assert 0 < work.bytes_per_sample < math.inf
            assert 0 <= work.flops_per_sample < math.inf
        assert self.kernel.count_work("infer", {}).bytes_per_sample > 0

    def test_a_parameter_it_does_not_have_is_refused_with_those_it_has(self) -> None:
        known = next(iter(self.kernel.parameters))
        with pytest.raises(ValueError, match=rf"'no_such'.*{known}"):
            self.kernel.count_work("infer", {"no_such": 1})

    @pytest.mark.parametrize("runtime", ["numpy", "torch", "jax", "tensorflow"])
    def test_its_numbers_are_right_in_every_number_format(self, need: Need, tmp_path: Path, runtime: str) -> None:
        if runtime not in self.kernel.runtimes:
            pytest.skip(f"{self.kernel.name} does not run on {runtime}")
        ran = []
        for dtype in self.kernel.list_dtypes({**self.kernel.parameters, **self.small}):
            try:
                job = self.prepare(need, tmp_path, runtime, dtype)
                check = job.check()
            except Infeasible:
                if dtype in ("float32", "float64"):
                    raise
                continue
            assert check.passed, f"{runtime} {dtype}: {check}"
            assert check.reference
            # Several steps, so that a recorded step is replayed.
            for _ in range(3):
                job.step()
            assert job.check().passed
            assert job.samples_per_step == 1
            assert (job.agree(True), job.agree(False), job.read_loss()) == (True, False, None)
            json.dumps(dict(job.read_facts()))
            job.close()
            ran.append(dtype)
        assert ran

    def test_a_number_format_it_does_not_have_is_refused(self, need: Need, tmp_path: Path) -> None:
        with pytest.raises(Infeasible, match="no dtype float16; it has"):
            self.prepare(need, tmp_path, self.kernel.runtimes[0], "float16")

    def test_batches_and_settings_of_models_are_refused(self, need: Need, tmp_path: Path) -> None:
        runtime = self.kernel.runtimes[0]
        with pytest.raises(Infeasible, match=r"batch 16: a step of .* is one sample"):
            self.prepare(need, tmp_path, runtime, self.choose_default_dtype(), batch=16)
        with pytest.raises(Infeasible, match="execution compile has no effect"):
            self.prepare(need, tmp_path, runtime, self.choose_default_dtype(), execution="compile")

    def test_what_cannot_fit_is_refused_before_it_is_tried(self, need: Need, tmp_path: Path) -> None:
        with pytest.raises(Infeasible, match=r"needs \d+ bytes .* are free; "):
            self.prepare(need, tmp_path, self.kernel.runtimes[0], self.choose_default_dtype(), args=self.large)

    def test_the_suggested_size_fits_and_uses_the_memory(self) -> None:
        dtype, args = self.choose_default_dtype(), {**self.kernel.parameters, **self.large}
        free_bytes = self.kernel.estimate_memory_bytes({**args, **self.small}, dtype) * 3
        fitting = self.kernel.fit_to_memory(args, dtype, free_bytes)
        assert fitting != args
        assert self.kernel.estimate_memory_bytes(fitting, dtype) <= free_bytes
        assert self.kernel.estimate_memory_bytes(fitting, dtype) >= free_bytes / 4

    def test_the_suggested_size_is_not_refused(self) -> None:
        arrays, dtype = NumpyArrays(), self.choose_default_dtype()
        for free_bytes in (2**27, 10**9 + 7, 3 * 10**10 + 1):
            args = {**self.kernel.parameters, **self.large}
            with pytest.raises(Infeasible, match="the largest that fits is ") as refused:
                require_memory(self.kernel, args, dtype, free_bytes, arrays)
            offer = str(refused.value).split("the largest that fits is ")[1].split(", ")
            offered = {name: int(value) for name, value in (each.split(" ") for each in offer)}
            require_memory(self.kernel, {**args, **offered}, dtype, free_bytes, arrays)


def build_contract(kernel: Any, small: dict[str, Any], large: dict[str, Any]) -> type[KernelContract]:
    """Build the tests of a kernel from parameters for a small run and for one too large for any machine."""
    return type(f"Contract of {kernel.name}", (KernelContract,), {"kernel": kernel, "small": small, "large": large})
