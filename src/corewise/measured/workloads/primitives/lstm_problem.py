"""LSTM problems in the notation of benchdnn's rnn driver: layers, steps, minibatch and feature sizes.

The rules are those of oneDNN's tests/benchdnn/doc/driver_rnn.md. Measured side: standard library only,
Python 3.9.
"""

from __future__ import annotations

import dataclasses

from corewise.measured.workloads.primitives.problem_notation import ProblemError, parse_descriptor

ENTRIES = ("l", "t", "mb", "sic", "slc", "dhc", "dic")
NUM_GATES = 4


@dataclasses.dataclass(frozen=True)
class RecurrentProblem:
    """Layers of LSTM cells over a sequence, with the letters of benchdnn.

    `sic` counts the features of the incoming state, `slc` those of the layer's input, `dhc` hidden features
    and `dic` those of the outgoing state, which are fewer than `dhc` with a projection.
    """

    l: int  # noqa: E741
    t: int
    mb: int
    sic: int
    slc: int
    dhc: int
    dic: int
    name: str = ""

    @property
    def is_projected(self) -> bool:
        return self.dic != self.dhc

    @property
    def forward_flops(self) -> float:
        """Flops of the matrix products only, as benchdnn counts."""
        cell = 2.0 * NUM_GATES * self.dhc * self.mb * (self.sic + self.slc)
        projection = 2.0 * self.dhc * self.mb * self.dic if self.is_projected else 0.0
        return self.l * self.t * (cell + projection)

    @property
    def num_moved(self) -> int:
        """Elements that a forward pass must read or write: sequences, states, weights and biases."""
        sequences = self.t * self.mb * (self.slc + self.dic)
        states = self.l * self.mb * (self.sic + self.dic + 2 * self.dhc)
        weights = self.l * NUM_GATES * self.dhc * (self.slc + self.sic + 1)
        projection = self.l * self.dhc * self.dic if self.is_projected else 0
        return sequences + states + weights + projection

    def __str__(self) -> str:
        """Return the canonical form: every entry, in benchdnn's order."""
        parts = [f"l{self.l}t{self.t}mb{self.mb}", *(f"{e}{getattr(self, e)}" for e in ENTRIES[3:])]
        return "_".join([*parts, f'n"{self.name}"'] if self.name else parts)


def parse_recurrent(text: str) -> RecurrentProblem:
    """Parse a problem; raise ProblemError that points at the mistake."""
    descriptor = parse_descriptor(text, ENTRIES, "lstm")
    values = {"l": 1, "t": 1, "mb": 2, **descriptor.values}
    for entry, value in values.items():
        if value < 1:
            raise descriptor.build_error(entry, f"{entry} must be at least 1, not {value}")
    if "sic" not in values:
        raise descriptor.build_error("sic", "sic is missing")
    values.setdefault("slc", values["sic"])
    values.setdefault("dhc", values["sic"])
    values.setdefault("dic", values["dhc"])
    problem = RecurrentProblem(**values, name=descriptor.name)
    if problem.t > 1 and problem.sic != problem.dic:
        raise descriptor.build_error(
            "sic", f"sic{problem.sic} does not fit dic{problem.dic}: the state of a step is the input of the next"
        )
    if problem.l > 1 and problem.slc != problem.dic:
        raise descriptor.build_error(
            "slc", f"slc{problem.slc} does not fit dic{problem.dic}: the output of a layer is the input of the next"
        )
    if problem.dic > problem.dhc:
        raise descriptor.build_error(
            "dic", f"dic{problem.dic} is larger than dhc{problem.dhc}; a projection reduces features"
        )
    return problem


__all__ = ["ProblemError", "RecurrentProblem", "parse_recurrent"]
