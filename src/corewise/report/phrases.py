"""Workloads, parameters and points in the words of a sentence."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from corewise.report.groups import WIDTHS, Group
from corewise.report.model import PLAIN_BACKTICK
from corewise.report.words import counted, figure, named, short, shown
from corewise.spec.record import Record

_MODES = {"train": "training", "infer": "inference"}
_PRETTY = {
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
_SAMPLES = {  # what one is; on a GPU a step holds many of a primitive
    "matmul": "products",
    "gemm": "products",
    "matrix_product": "products",
    "convolution": "convolutions",
    "lstm_cell": "passes",
}
_FLOPS_PER_BYTE = 0.5  # below which a kernel is told by the bytes it moves
_LEVEL_AXES = {"math": "math", "dtype": "", "memory_format": "", "execution": "execution", "data": "data"}


def workload_words(workload: str) -> str:
    """The workload's name as papers write it."""
    match = re.fullmatch(r"resnet(\d+)", workload)
    name = _PRETTY.get(workload, _said(workload))
    return f"ResNet-{match[1]}" if match else name or "the workload"


def literal(text: str) -> str:
    """The text as a value in a sentence: a backtick in it is no markup."""
    return text.replace("`", PLAIN_BACKTICK)


def _said(text: str) -> str:
    return literal(short(text))


def task_words(group: Group) -> str:
    """What is computed: ResNet-50 training; of a kernel its name alone."""
    mode = "" if _is_kernel(group.records[:1]) else _MODES.get(group.mode, _said(group.mode))
    return f"{workload_words(group.workload_name)} {mode}".strip()


def sample_noun(records: Sequence[Record]) -> str:
    """What a sample of the workload is: images where its work counts pixels."""
    for record in records:
        if record.params.get("workload") in _SAMPLES:
            return _SAMPLES[str(record.params["workload"])]
        if record.work.get("whole_runs"):
            return "runs"
        if record.work.get("pixels_per_sample"):
            return "images"
        if _is_kernel([record]):
            return "steps"
    return "samples"


def _is_kernel(records: Sequence[Record]) -> bool:
    return any("gbyte_per_s" in record.metrics for record in records)


def rate_unit(group: Group) -> str:
    """The unit of throughput."""
    return f"{sample_noun(group.records[:1])}/s"


def machine_rate(group: Group, i: int) -> str:
    """What a kernel's rate is of the machine, such as 43.5 GB/s; empty for models."""
    gbyte_per_s = float(group.metric("gbyte_per_s")[i])
    gflop_per_s = float(group.metric("gflop_per_s")[i])
    if not math.isfinite(gbyte_per_s):
        return ""
    if gflop_per_s > _FLOPS_PER_BYTE * gbyte_per_s:
        return figure(gflop_per_s, unit="Gflop/s")
    return figure(gbyte_per_s, unit="GB/s")


def axis_title(name: str) -> str:
    """An axis as the title of a column or of a chart's axis."""
    return "math kernels" if name == "math" else _said(named(name).replace("_", " "))


def value_words(name: str, value: Any) -> str:
    """One value of one parameter: 16 threads, batch 4, channels_last."""
    if name in ("threads", "processes") and isinstance(value, int):
        return counted(
            value, name.removesuffix("es") if name == "processes" else name.removesuffix("s"), name
        )
    if name == "version":
        return f"version {_said(shown(value))}"
    if name == "machine" or name == "store":
        return _said(shown(value))
    if isinstance(value, bool):
        return f"{'with' if value else 'without'} {_said(named(name))}"
    if value is None:
        return f"{_said(named(name).replace('_', ' '))} unset"
    if isinstance(value, str) and name in _LEVEL_AXES:
        return f"{_said(value)} {_LEVEL_AXES[name]}".strip()
    return f"{_said(named(name).replace('_', ' '))} {_said(shown(value))}"


def point_words(point: Mapping[str, Any], without: Sequence[str] = ()) -> str:
    """A point in words: 4 processes × 4 threads at batch 16."""
    left = {name: value for name, value in point.items() if name not in without}
    words = []
    if "processes" in left and "threads" in left:
        words.append(shape_words(left.pop("processes"), left.pop("threads")))
    for name in WIDTHS:
        if name in left:
            words.append(value_words(name, left.pop(name)))
    if "batch" in left:
        batch = value_words("batch", left.pop("batch"))
        words = [f"{words[0]} at {batch}"] if words else [batch]
    words += [value_words(name, value) for name, value in left.items()]
    return ", ".join(words)


def usual_point(record: Record) -> dict[str, Any]:
    """What one asks of a trial first, for where nothing varies."""
    return {name: record.params[name] for name in (*WIDTHS, "batch") if record.params.get(name) is not None}


def shape_words(processes: Any, threads: Any) -> str:
    """Processes and threads in words."""
    return f"{value_words('processes', processes)} × {value_words('threads', threads)}"


def shape_label(processes: Any, threads: Any) -> str:
    """Processes and threads as a label of a chart: 4×4."""
    return f"{shown(processes)}×{shown(threads)}"
