"""Kernels in studies: one step is one sample, and number formats of their own."""

from pathlib import Path

import pytest

from corewise.study.planning.expansion import Expansion, MachineView, expand_study
from corewise.study.study import load_study

MACHINE = MachineView(num_cores=4, num_cpus=4, has_cuda=True, num_gpus=1)


def expand_text(folder: Path, text: str) -> Expansion:
    (folder / "study.yaml").write_text(f"question: How fast?\nmode: infer\n{text}")
    return expand_study(load_study(folder / "study.yaml"), MACHINE)


def test_a_kernel_steps_on_one_sample_where_the_study_says_nothing(tmp_path: Path) -> None:
    expansion = expand_text(tmp_path, "workload: [gemm, stream, matmul]\n")
    assert [(p.params["workload"], p.params["batch"], p.params["dtype"]) for p in expansion.points] == [
        ("gemm", 1, "float32"),
        ("stream", 1, "float64"),
        ("matmul", 16, "float32"),
    ]


def test_a_batch_asked_of_a_kernel_is_refused_and_not_of_others(tmp_path: Path) -> None:
    expansion = expand_text(tmp_path, "workload: [gemm, matmul]\naxes: {batch: [1, 4]}\n")
    assert [(p.params["workload"], p.params["batch"]) for p in expansion.points] == [
        ("gemm", 1),
        ("matmul", 1),
        ("matmul", 4),
    ]
    assert [p.reason for p in expansion.skipped] == [
        "batch 4: a step of gemm is one sample; omit batch, or set it to 1"
    ]


def test_a_number_format_of_the_study_wins_over_the_kernels_default(tmp_path: Path) -> None:
    expansion = expand_text(tmp_path, "workload: stream\nfixed: {dtype: float32}\n")
    assert [p.params["dtype"] for p in expansion.points] == ["float32"]


@pytest.mark.parametrize(
    ("fixed", "reason"),
    [
        ("dtype: bfloat16", "stream has no dtype bfloat16; it has float64, float32"),
        ("execution: compile", "execution: compile is for models; stream is a kernel"),
        ("memory_format: channels_last", "memory_format: channels_last is for models; stream is a kernel"),
        ("args.operation: swap", "operation must be one of copy, scale, add, triad, not 'swap'"),
        ("args.size_bytes: 3", "size_bytes must be a whole number of at least 8, not 3"),
    ],
)
def test_what_a_kernel_does_not_have_is_skipped_with_the_reason(tmp_path: Path, fixed: str, reason: str) -> None:
    expansion = expand_text(tmp_path, f"workload: stream\nfixed: {{{fixed}}}\n")
    assert not expansion.points
    assert reason in expansion.skipped[0].reason


def test_whole_numbers_are_multiplied_on_a_gpu_too(tmp_path: Path) -> None:
    expansion = expand_text(tmp_path, "workload: gemm\nfixed: {dtype: int8, device: cuda}\n")
    assert len(expansion.points) == 1


def test_complex_numbers_are_refused_for_models(tmp_path: Path) -> None:
    expansion = expand_text(tmp_path, "workload: resnet18\nfixed: {dtype: complex128}\n")
    assert "dtype: complex128 is for kernels, for example fft" in expansion.skipped[0].reason
