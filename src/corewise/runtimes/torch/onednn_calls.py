"""Which kernels oneDNN runs in a step and how much it reorders, heard from oneDNN itself.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sys
import tempfile
from typing import Any, Callable, Dict, Iterator, List, Mapping, Tuple

import torch

MARK = "onednn_verbose"


@dataclasses.dataclass(frozen=True)
class OnednnCall:
    """One primitive that was executed."""

    kind: str  # convolution, reorder, ...
    implementation: str
    formats: str  # of its tensors, as oneDNN writes them
    problem: str

    @property
    def num_elements(self) -> int:
        """Of a reorder: the elements it moves."""
        sizes = self.problem.split("x")
        return math.prod(int(size) for size in sizes) if all(s.isdigit() for s in sizes) else 0


def onednn_calls(step: Callable[[], Any]) -> Tuple[OnednnCall, ...]:
    """What one step has oneDNN do; nothing where torch does not tell."""
    verbose = getattr(torch.backends.mkldnn, "verbose", None)
    if verbose is None or not torch._C._has_mkldnn:
        return ()
    step()  # what happens only the first time is no part of a step
    lines: List[str] = []
    with _output_into(lines), verbose(1):
        step()
    return tuple(read_calls(lines))


def read_calls(lines: List[str]) -> Iterator[OnednnCall]:
    """The executed primitives among the lines that oneDNN printed."""
    for line in lines:
        words = line.strip().split(",")
        if words[0] != MARK or "exec" not in words:
            continue
        rest = words[words.index("exec") + 2 :]  # behind the engine
        if len(rest) >= 7:
            yield OnednnCall(rest[0], rest[1], rest[3], rest[-2])


def call_facts(calls: Tuple[OnednnCall, ...]) -> Mapping[str, Any]:
    """The calls as a record keeps them."""
    if not calls:
        return {}
    reorders = [call for call in calls if call.kind == "reorder"]
    facts: Dict[str, Any] = {
        "onednn_kernels": [f"{c.kind} {c.implementation}" for c in calls if c.kind != "reorder"],
        "onednn_formats": [c.formats for c in calls if c.kind != "reorder"],
        "num_onednn_reorders": len(reorders),
        "num_onednn_reordered": sum(call.num_elements for call in reorders),
    }
    return facts


@contextlib.contextmanager
def _output_into(lines: List[str]) -> Iterator[None]:
    """What the process writes on its standard output, libraries included, goes into the list."""
    if sys.stdout is not None:
        sys.stdout.flush()
    kept = os.dup(1)
    with tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as aside:
        os.dup2(aside.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)
            aside.seek(0)
            lines += aside.read().splitlines()
