"""What the primitives in benchdnn's notation have in common as workloads.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
from typing import Mapping, Tuple

REORDERS = ("included", "excluded")
INT8_SOURCES = ("u8", "s8")
FLOAT_DTYPES = ("float32", "bfloat16", "float16", "float64")
DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


@dataclasses.dataclass(frozen=True)
class PrimitiveWorkload:
    """A problem; one sample is one execution of the whole of it."""

    name: str
    summary: str
    modes: Tuple[str, ...] = ("infer",)
    concurrent: bool = False
    counts_by_dtype: bool = True

    @property
    def builders(self) -> Mapping[str, str]:
        """For each runtime, what turns a trial into a job."""
        raise NotImplementedError

    @property
    def runtimes(self) -> Tuple[str, ...]:
        return tuple(self.builders)
