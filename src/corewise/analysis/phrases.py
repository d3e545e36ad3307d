"""Phrases for workloads, parameters and points in sentences, titles and labels."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from corewise.analysis.groups import WIDTHS, Group
from corewise.study.record import Record
from corewise.text_format import (
    PLAIN_BACKTICK,
    format_count,
    format_figure,
    format_parameter_name,
    format_value,
    shorten,
)

_MODES = {"train": "training", "infer": "inference"}
_DISPLAY_NAMES = {
    "alexnet": "AlexNet",
    "resnext50_32x4d": "ResNeXt-50 32×4d",
    "wide_resnet101_2": "Wide ResNet-101-2",
    "inception_v3": "Inception-v3",
    "lstm_ensemble": "LSTM ensemble",
    "two_tower": "two-tower recommender",
    "mixture_of_experts": "mixture of experts",
    "matmul": "square matrix product",
    "matrix_product": "matrix product",
    "lstm_cell": "LSTM cell",
    "stream": "STREAM",
    "gemm": "GEMM",
    "tiled_product": "tiled product",
    "cg": "conjugate gradient",
    "fft": "FFT",
}
# What a sample is called. On a GPU, one step holds many samples of a primitive.
_SAMPLE_NOUNS = {
    "matmul": "products",
    "gemm": "products",
    "matrix_product": "products",
    "convolution": "convolutions",
    "lstm_cell": "passes",
}
# The rate of a kernel with a lower intensity is given in bytes per second, otherwise in flops.
_MIN_FLOPS_PER_BYTE = 0.5
_LEVEL_AXES = {"math": "math", "dtype": "", "memory_format": "", "execution": "execution", "data": "data"}


def describe_workload(workload: str) -> str:
    """Return the name of a workload as papers write it, for example ResNet-50."""
    match = re.fullmatch(r"resnet(\d+)", workload)
    name = _DISPLAY_NAMES.get(workload, _clean_text(workload))
    return f"ResNet-{match[1]}" if match else name or "the workload"


def replace_backticks(text: str) -> str:
    """Replace backticks in a value, because they mark code in a sentence."""
    return text.replace("`", PLAIN_BACKTICK)


def _clean_text(text: str) -> str:
    return replace_backticks(shorten(text))


def describe_task(group: Group) -> str:
    """Describe workload and mode, for example "ResNet-50 training"; a kernel has only its name."""
    mode = "" if _is_kernel(group.records[:1]) else describe_mode(group.mode)
    return f"{describe_workload(group.workload_name)} {mode}".strip()


def describe_mode(mode: str) -> str:
    """Describe a mode as a noun, for example "training"."""
    return _MODES.get(mode, _clean_text(mode))


def name_samples(records: Sequence[Record]) -> str:
    """Return what the samples of a workload are, for example "images" if it counts pixels."""
    for record in records:
        if record.params.get("workload") in _SAMPLE_NOUNS:
            return _SAMPLE_NOUNS[str(record.params["workload"])]
        if record.work.get("whole_runs"):
            return "runs"
        if record.work.get("whole_steps"):
            return "steps"
        if record.work.get("pixels_per_sample"):
            return "images"
        if _is_kernel([record]):
            return "steps"
    return "samples"


def _is_kernel(records: Sequence[Record]) -> bool:
    return any("gbyte_per_s" in record.metrics for record in records)


def name_rate_unit(group: Group) -> str:
    """Return the unit of throughput, for example "images/s"."""
    return f"{name_samples(group.records[:1])}/s"


def describe_machine_rate(group: Group, i: int) -> str:
    """Describe the bandwidth or flop rate of a kernel, for example "43.5 GB/s"; empty for models."""
    gbyte_per_s = float(group.get_metric("gbyte_per_s")[i])
    gflop_per_s = float(group.get_metric("gflop_per_s")[i])
    if not math.isfinite(gbyte_per_s):
        return ""
    if gflop_per_s > _MIN_FLOPS_PER_BYTE * gbyte_per_s:
        return format_figure(gflop_per_s, unit="Gflop/s")
    return format_figure(gbyte_per_s, unit="GB/s")


def format_axis_title(name: str) -> str:
    """Format an axis name as the title of a column or chart axis."""
    return "math kernels" if name == "math" else _clean_text(format_parameter_name(name).replace("_", " "))


def describe_value(name: str, value: Any) -> str:
    """Describe one value of a parameter, for example "16 threads", "batch 4" or "channels_last"."""
    if name in ("threads", "processes", "nodes") and isinstance(value, int):
        return format_count(value, name.removesuffix("es") if name == "processes" else name.removesuffix("s"), name)
    if name == "version":
        return f"version {_clean_text(format_value(value))}"
    if name == "machine" or name == "store":
        return _clean_text(format_value(value))
    if isinstance(value, bool):
        return f"{'with' if value else 'without'} {_clean_text(format_parameter_name(name))}"
    if value is None:
        return f"{_clean_text(format_parameter_name(name).replace('_', ' '))} unset"
    if isinstance(value, str) and name in _LEVEL_AXES:
        return f"{_clean_text(value)} {_LEVEL_AXES[name]}".strip()
    return f"{_clean_text(format_parameter_name(name).replace('_', ' '))} {_clean_text(format_value(value))}"


def describe_point(point: Mapping[str, Any], without: Sequence[str] = ()) -> str:
    """Describe a point, for example "4 processes × 4 threads at batch 16"."""
    remaining = {name: value for name, value in point.items() if name not in without}
    parts = []
    if "processes" in remaining and "threads" in remaining:
        parts.append(describe_shape(remaining.pop("processes"), remaining.pop("threads")))
    for name in WIDTHS:
        if name in remaining:
            parts.append(describe_value(name, remaining.pop(name)))
    if "batch" in remaining:
        batch = describe_value("batch", remaining.pop("batch"))
        parts = [f"{parts[0]} at {batch}"] if parts else [batch]
    parts += [describe_value(name, value) for name, value in remaining.items()]
    return ", ".join(parts)


def select_main_params(record: Record) -> dict[str, Any]:
    """Select processes, threads and batch, which describe a trial if no parameter varies."""
    return {name: record.params[name] for name in (*WIDTHS, "batch") if record.params.get(name) is not None}


def describe_shape(processes: Any, threads: Any) -> str:
    """Describe processes and threads, for example "4 processes × 4 threads"."""
    return f"{describe_value('processes', processes)} × {describe_value('threads', threads)}"


def label_shape(processes: Any, threads: Any) -> str:
    """Return a chart label for processes and threads, for example "4×4"."""
    return f"{format_value(processes)}×{format_value(threads)}"
