from dataclasses import replace

import pytest

from corewise.measured.instruction_sets import build_isa_variables
from corewise.measured.parameters import Isa, TrialParameters
from corewise.measured.workloads.registry import find_workload
from corewise.study.planning.feasibility import FeasibilityContext, MachineView, explain_infeasibility

AVX512_CPU = frozenset({"sse4_2", "avx2", "fma", "avx512f", "avx512bw", "avx512vl"})
MACHINE = MachineView(num_cores=4, num_cpus=4, instruction_sets=AVX512_CPU)


def explain(machine: MachineView = MACHINE, **params: object) -> str:
    values = {"workload": "resnet18", "mode": "train", "runtime": "torch", **params}
    workload = find_workload(str(values["workload"]))
    return "; ".join(explain_infeasibility(TrialParameters.from_mapping(values), FeasibilityContext(machine, workload)))


@pytest.mark.parametrize("isa", ["default", "sse41", "avx2", "avx512"])
def test_a_processor_runs_the_instruction_sets_that_it_has(isa: str) -> None:
    assert explain(isa=isa) == ""


def test_an_instruction_set_that_the_processor_lacks_is_named() -> None:
    assert "this CPU lacks avx512_bf16" in explain(isa="avx512_bf16")
    assert "this CPU lacks avx512_bf16, amx_tile, amx_bf16" in explain(isa="amx")
    arm = replace(MACHINE, instruction_sets=frozenset({"asimd", "sve"}))
    assert "this CPU lacks avx2, fma" in explain(arm, isa="avx2")
    assert explain(replace(MACHINE, instruction_sets=None), isa="amx") == ""


@pytest.mark.parametrize(
    ("runtime", "expected"), [("jax", "--xla_cpu_max_isa"), ("tensorflow", "Eigen"), ("numpy", "BLAS")]
)
def test_only_torch_follows_the_limit(runtime: str, expected: str) -> None:
    reason = explain(workload="matmul", mode="infer", batch=1, runtime=runtime, isa="avx2")
    assert "isa: avx2 is for runtime: torch" in reason
    assert expected in reason


def test_bfloat16_products_need_an_instruction_set_with_bfloat16() -> None:
    machine = replace(MACHINE, instruction_sets=AVX512_CPU | {"amx_bf16"})
    reason = explain(machine, isa="avx2", float32_precision="bf16")
    assert "float32_precision: bf16 needs isa: default, avx512_bf16 or amx, not avx2" in reason
    assert explain(machine, float32_precision="bf16") == ""


def test_an_optimizer_without_training_has_no_effect() -> None:
    assert "optimizer: adam has no effect" in explain(mode="infer", optimizer="adam")
    assert explain(optimizer="adamw") == ""
    assert explain(mode="infer") == ""


def test_the_default_sets_no_variable() -> None:
    assert build_isa_variables(Isa.DEFAULT) == {}


@pytest.mark.parametrize("isa", [isa for isa in Isa if isa != Isa.DEFAULT])
def test_every_other_value_limits_torch_and_onednn(isa: Isa) -> None:
    assert {"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "TORCHINDUCTOR_CPP_MARCH"} <= set(build_isa_variables(isa))
