"""The values of the axis `isa`: the variables that limit vendor kernels, and the CPU flags that each value needs.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import Mapping

from corewise.measured.parameters import Isa

# The variables of ATen, oneDNN, MKL and torch's compiler, in this order. MKL keeps its default where it has no
# name for the value: its float32 and float64 products use the same instructions.
_VALUES: Mapping[Isa, tuple[str, str, str, str]] = {
    Isa.SSE41: ("default", "SSE41", "SSE4_2", "x86-64-v2"),
    Isa.AVX2: ("avx2", "AVX2", "AVX2", "x86-64-v3"),
    Isa.AVX512: ("avx512", "AVX512_CORE", "AVX512", "x86-64-v4"),
    Isa.AVX512_BF16: ("avx512", "AVX512_CORE_BF16", "AVX512", "x86-64-v4"),
    Isa.AMX: ("avx512", "AVX512_CORE_AMX", "", "sapphirerapids"),
}
_NAMES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "TORCHINDUCTOR_CPP_MARCH")
# Flags of /proc/cpuinfo that a processor must have.
NEEDED_FLAGS: Mapping[Isa, tuple[str, ...]] = {
    Isa.SSE41: ("sse4_2",),
    Isa.AVX2: ("avx2", "fma"),
    Isa.AVX512: ("avx512f", "avx512bw", "avx512vl"),
    Isa.AVX512_BF16: ("avx512f", "avx512bw", "avx512vl", "avx512_bf16"),
    Isa.AMX: ("avx512f", "avx512_bf16", "amx_tile", "amx_bf16"),
}
# What torch reports as its CPU capability.
ATEN_CAPABILITIES: Mapping[Isa, str] = {
    Isa.SSE41: "DEFAULT",
    Isa.AVX2: "AVX2",
    Isa.AVX512: "AVX512",
    Isa.AVX512_BF16: "AVX512",
    Isa.AMX: "AVX512",
}
# Wider vectors than these must not appear among the kernels that oneDNN chooses.
FORBIDDEN_KERNELS: Mapping[Isa, tuple[str, ...]] = {
    Isa.SSE41: ("avx", "amx"),
    Isa.AVX2: ("avx512", "avx10", "amx"),
    Isa.AVX512: ("amx",),
    Isa.AVX512_BF16: ("amx",),
    Isa.AMX: (),
}


def build_isa_variables(isa: Isa) -> dict[str, str]:
    """Build the variables that limit vendor kernels to an instruction set; none for the default."""
    return {name: value for name, value in zip(_NAMES, _VALUES.get(isa, ())) if value}
