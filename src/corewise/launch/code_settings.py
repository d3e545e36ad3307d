"""Settings of a tuned file that only the program can apply, with the line of code that applies each."""

from collections.abc import Mapping
from typing import Any

_ONEDNN_PARTS = " = ".join(f"torch.backends.mkldnn.{part}.fp32_precision" for part in ("matmul", "conv", "rnn"))

# Parameter -> value -> line of code. Values that are not listed need no code.
_LINES: Mapping[str, Mapping[Any, str]] = {
    "memory_format": {
        "channels_last": "model = model.to(memory_format=torch.channels_last)  # each batch of images too",
        "blocked": "model = torch.utils.mkldnn.to_mkldnn(model)  # model(x.to_mkldnn()).to_dense()",
    },
    "freezing": {
        "fold": "conv = torch.nn.utils.fusion.fuse_conv_bn_eval(conv, norm)  # each norm after a convolution",
        "full": "import corewise; model = corewise.freeze(model.eval(), (batch,){dtype})",
    },
    "execution": {
        "fast-kernels": "import corewise; model = corewise.use_fast_kernels(model)",
        "compile": "model = torch.compile(model)",
        "script": "model = torch.jit.script(model)",
        "malleable": "import corewise; model = corewise.malleable(model, (batch,))  # after .train() or .eval()",
    },
    "dtype": {
        "bfloat16": "with torch.autocast({device!r}, torch.bfloat16): ...  # around the forward pass",
        "float16": "with torch.autocast({device!r}, torch.float16): ...  # around the forward pass",
        "int8": "import corewise; model = corewise.quantize(model.eval(), (batch,))  # two batches are better",
        "float64": "model = model.double()  # each batch too",
    },
    "float32_precision": {"bf16": f"{_ONEDNN_PARTS} = 'bf16'", "tf32": f"{_ONEDNN_PARTS} = 'tf32'"},
    "collectives": {
        "shared": "import corewise; corewise.collectives.attach(ddp)  # after ddp = DistributedDataParallel(model)"
    },
    "denormals": {"flush": "torch.set_flush_denormal(True)  # before the first operator"},
    "math": {"vanilla": "torch.backends.mkldnn.enabled = False"},
}
# Lines that depend on another setting: (parameter, value, other parameter, its value) -> line of code.
_SPECIAL_LINES = {
    ("freezing", "full", "execution", "compile"): (
        "torch._inductor.config.freezing = True  # before torch.compile; model.eval()"
    ),
    ("freezing", "full", "execution", "script"): (
        "model = torch.jit.optimize_for_inference(torch.jit.script(model.eval()))"
    ),
    ("float32_precision", "tf32", "device", "cuda"): "torch.set_float32_matmul_precision('high')",
}


def list_code_settings(params: Mapping[str, Any]) -> dict[str, str]:
    """Map `name: value` of each such setting in the parameters to the code that applies it."""
    code_lines = {}
    for name, lines in _LINES.items():
        if params.get(name) in lines:
            dtype = ", torch.bfloat16" if params.get("dtype") == "bfloat16" else ""
            line = lines[params[name]].format(device=params.get("device", "cpu"), dtype=dtype)
            code_lines[f"{name}: {params[name]}"] = line
    for (name, value, other, other_value), line in _SPECIAL_LINES.items():
        if params.get(name) == value and params.get(other) == other_value:
            code_lines[f"{name}: {value}"] = line
    interop = params.get("interop_threads")
    if interop is not None:
        code_lines[f"interop_threads: {interop}"] = (
            f"torch.set_num_interop_threads({interop})  # before the first operator"
        )
    workers = params.get("loader_workers")
    if workers:
        code_lines[f"loader_workers: {workers}"] = f"DataLoader(..., num_workers={workers})"
    if params.get("pinned_memory"):
        code_lines["pinned_memory: true"] = (
            "DataLoader(..., pin_memory=True)  # and batch.to('cuda', non_blocking=True)"
        )
    return {**code_lines, **_describe_batch_split(params)}


def _describe_batch_split(params: Mapping[str, Any]) -> dict[str, str]:
    """Describe how data-parallel processes split a global batch, which only the program can do."""
    num_processes, batch = params.get("processes", 1), params.get("batch")
    if params.get("batch_scope") != "global" or num_processes < 2 or not batch:
        return {}
    share, rest = divmod(int(batch), int(num_processes))
    text = f"batch_size={share} in each of the {num_processes} processes"
    if rest:
        text = f"batch_size={share + 1} in {rest} of the {num_processes} processes, {share} in the others"
    return {f"batch: {batch} in all": text}
