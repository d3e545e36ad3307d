"""How much of what the machine attains a trial reaches: metrics of its record, where ceilings are kept."""

from collections.abc import Mapping

from corewise.machine.ceilings import Ceilings, Roof
from corewise.spec.trial import Trial
from corewise.workloads.base import is_kernel, traits_of
from corewise.workloads.custom import is_custom
from corewise.workloads.registry import UnknownName, find_workload

FLOAT32_BYTES = 4.0
STORED_BYTES = {"float64": 8.0, "float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0}
PARAMETER_PASSES = {"train": 3, "infer": 1}  # weights read; in training gradients and weights written too
ABOVE = 1.05  # of the ceiling: more is no measuring error
ABOVE_NOTE = (
    "fraction_of_ceiling is above 1: the data stay in a cache, are only read, or the ceilings were measured "
    "on a busy machine"
)


def ceiling_metrics(
    trial: Trial, metrics: Mapping[str, float], ceilings: Ceilings | None
) -> dict[str, float]:
    """The trial's ceilings, its fraction of what is attainable and what limits; nothing where unknown.

    `fraction_of_ceiling` is the least time that the roofline allows for a sample, over the time it took.
    """
    rate, flops = metrics.get("samples_per_s", 0.0), trial.work.get("flops_per_sample", 0.0)
    num_bytes = bytes_per_sample(trial, metrics)
    if ceilings is None or rate <= 0 or (flops <= 0 and num_bytes <= 0):
        return {}
    roof = roof_of(trial, ceilings)
    attainable = roof.attainable(flops, num_bytes)
    if attainable is None:
        return {}
    found = {
        "fraction_of_ceiling": attainable.seconds * rate,
        "memory_bound": float(attainable.limit == "memory"),
    }
    if roof.gflop_per_s is not None and flops > 0:
        found["ceiling_gflop_per_s"] = roof.gflop_per_s
    if roof.gbyte_per_s is not None and num_bytes > 0:
        found["ceiling_gbyte_per_s"] = roof.gbyte_per_s
    if flops > 0 and num_bytes > 0:
        found["flops_per_byte"] = flops / num_bytes
    return found


def bytes_per_sample(trial: Trial, metrics: Mapping[str, float]) -> float:
    """The least traffic of a sample in the trial's number format, its share of the weights included."""
    own = trial.work.get("bytes_per_sample", 0.0)
    if own <= 0:
        return 0.0
    dtype, is_exact = (
        str(trial.params.get("dtype", "float32")),
        _counts_its_format(str(trial.params["workload"])),
    )
    shrink = 1.0 if is_exact else STORED_BYTES.get(dtype, FLOAT32_BYTES) / FLOAT32_BYTES
    passes = PARAMETER_PASSES.get(str(trial.params["mode"]), 1)
    weights = trial.work.get("num_parameters", 0.0) * FLOAT32_BYTES * passes * trial.num_ranks
    return shrink * (own + weights / max(1.0, metrics.get("samples_per_step", 1.0)))


def roof_of(trial: Trial, ceilings: Ceilings) -> Roof:
    """The roof over a trial: all its threads together, or all its GPUs."""
    params = trial.params
    cpus = {cpu for rank in trial.ranks for cpu in rank.cpus}
    threads = min(int(params["processes"]) * int(params["threads"]), len(cpus) or 1)
    return ceilings.roof(
        rate_format(params),
        str(params["device"]),
        threads=threads,
        placement=str(params["placement"]),
        gpus=trial.num_ranks,
    )


def rate_format(params: Mapping[str, object]) -> str:
    """The number format whose flop rate bounds the trial."""
    dtype, precision = str(params.get("dtype", "float32")), str(params.get("float32_precision", "default"))
    if dtype != "float32":
        return dtype
    if precision in ("tf32", "bf16"):
        return {"tf32": "tf32", "bf16": "bfloat16"}[precision]
    if params.get("device") == "cuda" and _takes_images(str(params["workload"])):
        return "tf32"  # what convolutions are computed in on a GPU unless one forbids it
    return dtype


def _counts_its_format(name: str) -> bool:
    """True of workloads whose work is counted in the trial's number format; of models it is in float32."""
    try:
        return not is_custom(name) and is_kernel(find_workload(name))
    except UnknownName:
        return True


def _takes_images(name: str) -> bool:
    try:
        return not is_custom(name) and bool(traits_of(find_workload(name), {}).takes_images)
    except UnknownName:
        return False
