"""Record which kernels oneDNN runs in a step and how much it reorders, from its verbose output.

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

VERBOSE_PREFIX = "onednn_verbose"


@dataclasses.dataclass(frozen=True)
class OnednnCall:
    """An executed primitive (convolution, reorder, ...), with tensor formats in oneDNN's notation."""

    primitive: str
    implementation: str
    formats: str
    problem: str

    @property
    def num_elements(self) -> int:
        """The elements that a reorder moves."""
        sizes = self.problem.split("x")
        return math.prod(int(size) for size in sizes) if all(s.isdigit() for s in sizes) else 0


def record_onednn_calls(step: Callable[[], Any]) -> Tuple[OnednnCall, ...]:
    """Record the primitives that oneDNN executes in one step; none if torch cannot report them."""
    verbose = getattr(torch.backends.mkldnn, "verbose", None)
    if verbose is None or not torch._C._has_mkldnn:
        return ()
    # The first step also does one-time work.
    step()
    lines: List[str] = []
    with _capture_output(lines), verbose(1):
        step()
    return tuple(parse_calls(lines))


def parse_calls(lines: List[str]) -> Iterator[OnednnCall]:
    """Parse the executed primitives from oneDNN's verbose output."""
    for line in lines:
        fields = line.strip().split(",")
        if fields[0] != VERBOSE_PREFIX or "exec" not in fields:
            continue
        # The field after "exec" is the engine.
        details = fields[fields.index("exec") + 2 :]
        if len(details) >= 7:
            yield OnednnCall(details[0], details[1], details[3], details[-2])


def summarize_calls(calls: Tuple[OnednnCall, ...]) -> Mapping[str, Any]:
    """Summarize the calls as facts of a record."""
    if not calls:
        return {}
    reorders = [call for call in calls if call.primitive == "reorder"]
    facts: Dict[str, Any] = {
        "onednn_kernels": [f"{c.primitive} {c.implementation}" for c in calls if c.primitive != "reorder"],
        "onednn_formats": [c.formats for c in calls if c.primitive != "reorder"],
        "num_onednn_reorders": len(reorders),
        "num_onednn_reordered": sum(call.num_elements for call in reorders),
    }
    return facts


@contextlib.contextmanager
def _capture_output(lines: List[str]) -> Iterator[None]:
    """Append what the process, including C libraries, writes to standard output to the list."""
    if sys.stdout is not None:
        sys.stdout.flush()
    saved_stdout = os.dup(1)
    with tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as capture:
        os.dup2(capture.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(saved_stdout, 1)
            os.close(saved_stdout)
            capture.seek(0)
            lines += capture.read().splitlines()
