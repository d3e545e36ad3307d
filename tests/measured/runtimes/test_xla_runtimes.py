"""The jax and tensorflow runtimes: refusals, facts, and warm parents that fork."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.measured.runtimes.xla_frameworks import FRAMEWORKS, Need, need_framework, run_for_json

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Infeasible, MissingPart, RankContext, WorkloadError
from corewise.measured.runtimes.registry import find_runtime, list_runtimes

Params = Callable[..., TrialParameters]
WARM_PARENT = """
import json, os
from corewise.measured import pinning
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.registry import find_runtime
from corewise.measured.parameters import TrialParameters
runtime = find_runtime({name!r})
runtime.warm()
runtime.warm_for(TrialParameters.from_mapping({params!r}))
after_import = len(os.listdir("/proc/self/task"))
ranks = []
for cpus in {cpus!r}:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.sched_setaffinity(0, cpus)
        params, context = dict({params!r}, threads=len(cpus)), RankContext(0, 1, ".", len(cpus))
        job = runtime.prepare(TrialParameters.from_mapping(params), context)
        check = job.check()
        job.step()
        violations = pinning.find_violations(pinning.read_thread_masks(), cpus, "rank")
        result = dict(passed=check.passed, facts=dict(job.read_facts()), violations=violations)
        try:
            runtime.prepare(TrialParameters.from_mapping(dict(params, threads=7)), context)
        except Infeasible as reason:
            result["refusal"] = str(reason)
        os.write(writer, json.dumps(result).encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        ranks.append(json.load(pipe))
    assert os.waitpid(pid, 0)[1] == 0
after_forks = len(os.listdir("/proc/self/task"))
print(json.dumps(dict(after_import=after_import, after_forks=after_forks, ranks=ranks)))
"""
STEP = """
def make(batch, mode, size):
    {setup}
    results = []
    def step():
        results.append({compute})
    return {{"step": step, "samples_per_step": batch, "check": lambda: (step() or 0.0, 0.0)}}
"""
STEPS = {
    "jax": STEP.format(setup="import jax.numpy as jnp", compute="jnp.ones((size, size)) @ jnp.ones(size)"),
    "tensorflow": STEP.format(
        setup="import tensorflow as tf", compute="tf.linalg.matvec(tf.ones((size, size)), tf.ones(size))"
    ),
}


@pytest.fixture(params=FRAMEWORKS)
def name(request: pytest.FixtureRequest, need: Need) -> str:
    need_framework(need, request.param)
    return str(request.param)


def test_both_are_found_by_name() -> None:
    assert set(FRAMEWORKS) <= set(list_runtimes())


def test_a_warm_parent_has_no_threads_and_its_forks_compute_with_those_asked_for_on_their_cpus(
    name: str, params: Params, tmp_path: Path
) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    cpus = [allowed[:1], allowed[:2]]
    point = params(size=200, dtype="float64", math="vanilla" if name == "tensorflow" else "vendor")
    env = {"OPENBLAS_NUM_THREADS": "1", "PJRT_NPROC": "7", "TF_ENABLE_ONEDNN_OPTS": "0"}
    result = run_for_json(WARM_PARENT.format(name=name, params=point.to_mapping(), cpus=cpus), env, tmp_path)
    assert (result["after_import"], result["after_forks"]) == (1, 1)
    for rank, own in zip(result["ranks"], cpus, strict=True):
        assert rank["passed"]
        assert rank["violations"] == []
        assert rank["facts"]["num_threads"] == len(own)
        assert rank["facts"]["output_dtype"] == "float64"
        assert rank["facts"].get("onednn_enabled", False) is False
        # The number of threads cannot change once they exist.
        assert rank["refusal"].startswith("threads 7: ")


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(("size", "batch"), [(33, 1), (64, 3)])
def test_a_product_passes_its_check_and_counts_its_samples(
    name: str, params: Params, alone: RankContext, dtype: str, size: int, batch: int
) -> None:
    job = find_runtime(name).prepare(params(dtype=dtype, size=size, batch=batch), alone)
    assert job.check().passed
    job.step()
    assert job.samples_per_step == batch
    assert job.read_facts()["output_dtype"] == dtype
    assert (job.agree(True), job.agree(False), job.read_loss()) == (True, False, None)
    job.close()


def test_a_wrong_product_fails_its_check(name: str, params: Params, alone: RankContext) -> None:
    job: Any = find_runtime(name).prepare(params(size=50), alone)
    job.step = lambda: None
    job._c = job._arrays.scale(1.001, job._c)
    assert not job.check().passed


def test_versions_are_reported(name: str) -> None:
    versions = find_runtime(name).read_versions()
    assert {name, "python", "numpy"} <= set(versions)
    assert all(isinstance(version, str) for version in versions.values())


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        ({"execution": "compile"}, "execution compile has no effect"),
        ({"memory_format": "channels_last"}, "memory_format channels_last has no effect"),
        ({"mode": "train"}, "matmul has no mode 'train'"),
        ({"workload": "resnet18"}, "resnet18 does not run on (jax|tensorflow); it runs on torch"),
        ({"size": 0}, "size must be a whole number"),
        ({"dtype": "int8"}, "no layers to quantise"),
        ({"float32_precision": "tf32"}, "float32_precision tf32: .*does not support it on"),
        ({"float32_precision": "tf32", "dtype": "float64"}, "dtype is float64"),
    ],
)
def test_an_unsupported_trial_is_infeasible_with_its_reason(
    name: str, params: Params, alone: RankContext, point: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Infeasible, match=reason):
        find_runtime(name).prepare(params(**point), alone)


def test_a_missing_gpu_is_reported(name: str, params: Params, alone: RankContext) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there may be a GPU here")
    with pytest.raises(Infeasible, match=f"device cuda: {name} sees no CUDA device .*pip install"):
        find_runtime(name).prepare(params(device="cuda"), alone)


def test_jax_refuses_interop_threads(params: Params, alone: RankContext) -> None:
    with pytest.raises(Infeasible, match="interop_threads has no effect"):
        find_runtime("jax").prepare(params(interop_threads=2), alone)


def test_onednn_cannot_be_switched_off_after_tensorflow_is_imported(
    params: Params, alone: RankContext, need: Need
) -> None:
    need_framework(need, "tensorflow")
    from corewise.measured.runtimes.tensorflow.settings import is_onednn_enabled

    need(is_onednn_enabled(), "a tensorflow with oneDNN")
    with pytest.raises(Infeasible, match="set TF_ENABLE_ONEDNN_OPTS=0 before TensorFlow is imported"):
        find_runtime("tensorflow").prepare(params(math="vanilla"), alone)


def test_a_missing_framework_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPart, match=rf"pip install 'corewise\[{name}\]'"):
        find_runtime(name).warm()


def test_a_users_own_step_is_called_and_counted(
    name: str, params: Params, alone: RankContext, write: Callable[[str], str]
) -> None:
    job = find_runtime(name).prepare(params(workload=write(STEPS[name]), size=8, batch=2), alone)
    assert job.check().passed
    job.step()
    assert job.samples_per_step == 2
    assert job.independent
    assert "num_threads" in job.read_facts()


FUNCTIONS = {
    "jax": """
import jax, jax.numpy as jnp
def make(batch, mode, noise=0.0):
    w = jnp.arange(12.0).reshape(3, 4)
    def call(x):
        wrong = noise if isinstance(x, jax.core.Tracer) else 0.0
        return {"y": jnp.tanh(x @ w) + wrong, "n": x.sum()}
    return call, (jnp.ones((batch, 3)) / 7,)
""",
    "tensorflow": """
import tensorflow as tf
def make(batch, mode, noise=0.0):
    w = tf.reshape(tf.range(12.0), (3, 4))
    def call(x):
        wrong = 0.0 if tf.executing_eagerly() else noise
        return {"y": tf.tanh(x @ w) + wrong, "n": tf.reduce_sum(x)}
    return call, (tf.ones((batch, 3)) / 7,)
""",
}


def test_a_users_own_function_is_compiled_and_checked_against_itself(
    name: str, params: Params, alone: RankContext, write: Callable[[str], str]
) -> None:
    own = write(FUNCTIONS[name])
    job = find_runtime(name).prepare(params(workload=own, batch=5), alone)
    assert job.check().passed
    job.step()
    assert job.samples_per_step == 5
    assert not find_runtime(name).prepare(params(workload=own, noise=0.01), alone).check().passed
    with pytest.raises(Infeasible, match=r"mode train: .* to train, return"):
        find_runtime(name).prepare(params(workload=own, mode="train"), alone)


def test_objects_that_are_neither_step_nor_function_are_refused(
    name: str, params: Params, alone: RankContext, write: Callable[[str], str]
) -> None:
    own = write("def make(batch, mode): return object(), (1,)")
    with pytest.raises(WorkloadError, match="returned object and inputs; return a function and its inputs"):
        find_runtime(name).prepare(params(workload=own), alone)
    with pytest.raises(Infeasible, match="dtype float64 has no effect: a custom workload decides it"):
        find_runtime(name).prepare(params(workload=own, dtype="float64"), alone)
