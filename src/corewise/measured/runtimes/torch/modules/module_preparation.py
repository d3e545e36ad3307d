"""Convert an eager module to the one a trial calls: layout, fast kernels, TorchScript, compiler, malleable.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from typing import Any, Callable, Iterator, Optional, cast

import torch
from torch import Tensor, nn

from corewise.accelerate.freeze.weight_folding import freeze_scripted, freeze_when_compiled
from corewise.measured.runtimes.base import Infeasible
from corewise.measured.runtimes.torch.modules.malleable_module import wrap_malleable
from corewise.measured.runtimes.torch.settings import Settings


def place_module(module: nn.Module, settings: Settings) -> nn.Module:
    """Move the module to the device, dtype, mode and memory format of the trial."""
    module.to(settings.device, settings.tensor_dtype)
    if settings.memory_format == "channels_last":
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module.train(settings.training)


def configure_module(
    module: nn.Module, settings: Settings, wrap: Callable[[nn.Module], nn.Module], time_limit_s: Optional[float] = None
) -> nn.Module:
    """Return the module that the trial calls, with the same parameters; `wrap` adds data parallelism."""
    if settings.memory_format == "blocked":
        return convert_to_blocked(module, settings)
    if settings.execution == "script":
        made = wrap(convert_to_torchscript(module))
        with filter_deprecation_warnings():
            return freeze_scripted(made) if settings.freezing == "full" else made
    if settings.execution == "fast-kernels":
        return wrap(apply_fast_kernels(module, settings))
    if settings.execution == "malleable":
        return wrap_malleable(module, time_limit_s)
    if settings.execution == "compile":
        with filter_deprecation_warnings():
            # The compiler imports it later, which would warn.
            import torch.utils.mkldnn
        if settings.freezing == "full":
            freeze_when_compiled()
        # Only one shape is measured, so dynamic shapes are not needed.
        return cast(nn.Module, torch.compile(wrap(module), dynamic=False))
    return wrap(module)


def apply_fast_kernels(module: nn.Module, settings: Settings) -> nn.Module:
    """Run layers on fast kernels; raise Infeasible if none supports this module on this machine."""
    from corewise.accelerate.fast_kernels.use_fast_kernels import count_fast_layers, use_fast_kernels
    from corewise.accelerate.kernels.build import NativeBuildError

    try:
        use_fast_kernels(module)
    except NativeBuildError as problem:
        raise Infeasible(f"execution fast-kernels: {problem}") from problem
    if not count_fast_layers(module, channels_last=settings.memory_format == "channels_last"):
        if count_fast_layers(module) > 0:
            raise Infeasible(
                f"execution fast-kernels, memory_format {settings.memory_format}: no fast kernel runs for this "
                "module: convolutions need memory_format: channels_last"
            )
        raise Infeasible("execution fast-kernels: no fast kernel runs for this module: it has no supported layer")
    return module


def convert_to_torchscript(module: nn.Module) -> nn.Module:
    """Convert the module to TorchScript; raise Infeasible with the reason if torch cannot."""
    with filter_deprecation_warnings():
        # Modules from torch.fx have empty annotations, about which TorchScript would warn.
        warnings.filterwarnings("ignore", "The TorchScript type system doesn't support", UserWarning)
        try:
            _forget_freed_operators(module)
            return cast(nn.Module, torch.jit.script(module))
        except Exception as problem:
            reason = str(problem).strip().splitlines() or [type(problem).__name__]
            raise Infeasible(
                f"execution script: torch.jit.script does not support this module: {reason[0]}"
            ) from problem


def _forget_freed_operators(module: nn.Module) -> None:
    """Remove stale entries of TorchScript's table of operators, which is keyed by `id()`.

    A value of the module may have the id of an operator that was freed.
    """
    from torch.jit import _builtins

    table = _builtins._get_builtin_table()  # type: ignore[no-untyped-call]
    for part in module.modules():
        for value in vars(part).values():
            if not callable(value):
                table.pop(id(value), None)


def convert_to_blocked(module: nn.Module, settings: Settings) -> nn.Module:
    """Copy the module with weights in oneDNN's blocked layout; inputs and outputs stay dense."""
    with filter_deprecation_warnings():
        from torch.utils.mkldnn import to_mkldnn

        dtype = torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32
        network = to_mkldnn(copy.deepcopy(module), dtype)  # type: ignore[no-untyped-call]
        return BlockedNetwork(_replace_pooling(network), dtype)


class BlockedNetwork(nn.Module):
    """Runs a network on blocked tensors, including the conversions of inputs and outputs."""

    def __init__(self, network: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.network, self.dtype = network, dtype

    def forward(self, *inputs: Tensor) -> Any:
        out = self.network(*(x.to_mkldnn(self.dtype) if x.is_floating_point() else x for x in inputs))
        return out.to_dense() if isinstance(out, Tensor) and out.is_mkldnn else out


class DensePooling(nn.Module):
    """Adaptive pooling that converts to dense tensors if oneDNN cannot pool: unevenly divided inputs."""

    def __init__(self, pool: nn.AdaptiveAvgPool2d) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Any:
        size = self.pool.output_size
        sizes = size if isinstance(size, tuple) else (size, size)
        is_even = all(n is not None and length % n == 0 for length, n in zip(x.shape[-2:], sizes))
        return self.pool(x) if is_even or not x.is_mkldnn else self.pool(x.to_dense())


def _replace_pooling(module: nn.Module) -> nn.Module:
    for name, child in module.named_children():
        if isinstance(child, nn.AdaptiveAvgPool2d):
            setattr(module, name, DensePooling(child))
        elif not isinstance(child, torch.jit.ScriptModule):
            _replace_pooling(child)
    return module


@contextlib.contextmanager
def filter_deprecation_warnings() -> Iterator[None]:
    """Ignore TorchScript's deprecation warnings, which would come in every trial."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
        yield
