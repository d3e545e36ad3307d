"""The environment variables of a trial."""

from pathlib import Path
from typing import Any

import pytest

from corewise.launch.environment import build_trial_environment, is_controlled, strip_controlled_variables
from corewise.measured.parameters import TrialParameters

PLAIN = TrialParameters(threads=3)
LIBRARIES = {"tcmalloc": Path("/lib/tc.so"), "jemalloc": Path("/lib/je.so"), "libiomp5": Path("/lib/iomp.so")}


def change_params(changes: dict[str, Any]) -> TrialParameters:
    return TrialParameters.from_mapping({**PLAIN.to_mapping(), **changes})


def test_a_plain_trial_sets_only_the_width_of_every_thread_pool() -> None:
    assert build_trial_environment(PLAIN, {}, {}) == {
        "OMP_NUM_THREADS": "3",
        "MKL_NUM_THREADS": "3",
        "OPENBLAS_NUM_THREADS": "3",
    }


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"wait_policy": "passive"}, {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_THREAD_TIMEOUT": "4"}),
        (
            {"allocator": "retain"},
            {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184", "MALLOC_TOP_PAD_": "67108864"},
        ),
        ({"allocator": "tcmalloc"}, {"LD_PRELOAD": "/lib/tc.so"}),
        ({"huge_pages": "transparent"}, {"THP_MEM_ALLOC_ENABLE": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}),
        (
            {"huge_pages": "transparent", "allocator": "jemalloc"},
            {"THP_MEM_ALLOC_ENABLE": "1", "MALLOC_CONF": "thp:always", "LD_PRELOAD": "/lib/je.so"},
        ),
        ({"openmp": "libiomp5"}, {"LD_PRELOAD": "/lib/iomp.so"}),
        ({"allocator": "jemalloc", "openmp": "libiomp5"}, {"LD_PRELOAD": "/lib/je.so:/lib/iomp.so"}),
    ],
)
def test_each_axis_sets_its_own_variables(change: dict[str, Any], expected: dict[str, str]) -> None:
    env = build_trial_environment(change_params(change), LIBRARIES, {})
    extra = {name: value for name, value in env.items() if not name.endswith("_NUM_THREADS")}
    assert extra == expected


JAX = {"PJRT_NPROC": "3", "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "0", "XLA_FLAGS": ""}
TENSORFLOW = {
    "TF_NUM_INTRAOP_THREADS": "3",
    "TF_NUM_INTEROP_THREADS": "0",
    "TF_ENABLE_ONEDNN_OPTS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_XLA_FLAGS": "",
    "XLA_FLAGS": "",
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"runtime": "torch"}, {}),
        ({"runtime": "jax"}, JAX),
        (
            {"runtime": "jax", "device": "cuda"},
            {**JAX, "JAX_PLATFORMS": "cuda,cpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        ),
        ({"runtime": "tensorflow"}, TENSORFLOW),
        ({"runtime": "tensorflow", "math": "vanilla"}, {**TENSORFLOW, "TF_ENABLE_ONEDNN_OPTS": "0"}),
        ({"runtime": "tensorflow", "interop_threads": 2}, {**TENSORFLOW, "TF_NUM_INTEROP_THREADS": "2"}),
        ({"runtime": "tensorflow", "device": "cuda"}, {**TENSORFLOW, "TF_FORCE_GPU_ALLOW_GROWTH": "true"}),
    ],
)
def test_each_framework_gets_the_variables_that_it_reads_at_import(
    change: dict[str, Any], expected: dict[str, str]
) -> None:
    env = build_trial_environment(change_params(change), LIBRARIES, {})
    plain = build_trial_environment(PLAIN, LIBRARIES, {})
    assert {name: value for name, value in env.items() if name not in plain} == expected


def test_compiler_flags_of_a_study_are_kept() -> None:
    env = build_trial_environment(change_params({"runtime": "jax"}), LIBRARIES, {"XLA_FLAGS": "--xla_x=1"})
    assert env["XLA_FLAGS"] == "--xla_x=1"


def test_variables_of_a_study_are_added() -> None:
    assert build_trial_environment(PLAIN, {}, {"DATA": "/scratch"})["DATA"] == "/scratch"


def test_controlled_variables_are_not_inherited() -> None:
    outer = {"PATH": "/bin", "OMP_DYNAMIC": "1", "KMP_BLOCKTIME": "0", "LD_PRELOAD": "x", "MALLOC_ARENA_MAX": "1"}
    assert strip_controlled_variables(outer) == {"PATH": "/bin"}
    assert not is_controlled("LD_LIBRARY_PATH")


def test_malleable_execution_sets_the_variables_of_its_library() -> None:
    env = build_trial_environment(change_params({"execution": "malleable"}), LIBRARIES, {})
    assert (env["GOMP_SPINCOUNT"], env["OMP_WAIT_POLICY"]) == ("300000", "ACTIVE")
    assert (env.get("MALLOC_ARENA_MAX"), env["MALLOC_MMAP_MAX_"]) == (None, "0")
    assert "GOMP_SPINCOUNT" not in build_trial_environment(change_params({"execution": "script"}), LIBRARIES, {})


@pytest.mark.parametrize(
    ("change", "absent"),
    [({"wait_policy": "passive"}, "GOMP_SPINCOUNT"), ({"allocator": "tcmalloc"}, "MALLOC_MMAP_MAX_")],
)
def test_explicit_settings_override_those_of_the_library(change: dict[str, Any], absent: str) -> None:
    assert absent not in build_trial_environment(change_params({"execution": "malleable", **change}), LIBRARIES, {})
    own = build_trial_environment(change_params({"execution": "malleable"}), LIBRARIES, {"GOMP_SPINCOUNT": "9"})
    assert own["GOMP_SPINCOUNT"] == "9"
