"""An LSTM as benchdnn's rnn driver writes it: layers, steps, minibatch and feature sizes.

The rules are those of oneDNN's tests/benchdnn/doc/driver_rnn.md. Measured side: standard library only,
Python 3.9.
"""

from __future__ import annotations

import dataclasses

from corewise.workloads.primitives.descriptor import ProblemError, read_descriptor

ENTRIES = ("l", "t", "mb", "sic", "slc", "dhc", "dic")
NUM_GATES = 4


@dataclasses.dataclass(frozen=True)
class RecurrentProblem:
    """Layers of LSTM cells over a sequence."""

    l: int  # noqa: E741  (benchdnn's letters)
    t: int
    mb: int
    sic: int  # features of the state that comes in
    slc: int  # features of the layer's input
    dhc: int  # hidden features
    dic: int  # features of the state that goes out; fewer than hidden ones where they are projected
    name: str = ""

    @property
    def is_projected(self) -> bool:
        return self.dic != self.dhc

    @property
    def forward_flops(self) -> float:
        """Of the products of matrices alone, as benchdnn counts."""
        cell = 2.0 * NUM_GATES * self.dhc * self.mb * (self.sic + self.slc)
        projection = 2.0 * self.dhc * self.mb * self.dic if self.is_projected else 0.0
        return self.l * self.t * (cell + projection)

    @property
    def num_moved(self) -> int:
        """Elements that a forward pass reads and writes at least once: sequences, states, weights, biases."""
        sequences = self.t * self.mb * (self.slc + self.dic)
        states = self.l * self.mb * (self.sic + self.dic + 2 * self.dhc)
        weights = self.l * NUM_GATES * self.dhc * (self.slc + self.sic + 1)
        projection = self.l * self.dhc * self.dic if self.is_projected else 0
        return sequences + states + weights + projection

    def __str__(self) -> str:
        """The canonical form: every entry, in benchdnn's order."""
        parts = [f"l{self.l}t{self.t}mb{self.mb}", *(f"{e}{getattr(self, e)}" for e in ENTRIES[3:])]
        return "_".join([*parts, f'n"{self.name}"'] if self.name else parts)


def parse_recurrent(text: str) -> RecurrentProblem:
    """The problem a string describes; raises ProblemError that points at the mistake."""
    said = read_descriptor(text, ENTRIES, "lstm")
    values = {"l": 1, "t": 1, "mb": 2, **said.values}
    for entry, value in values.items():
        if value < 1:
            raise said.mistake(entry, f"{entry} must be at least 1, not {value}")
    if "sic" not in values:
        raise said.mistake("sic", "sic is missing")
    values.setdefault("slc", values["sic"])
    values.setdefault("dhc", values["sic"])
    values.setdefault("dic", values["dhc"])
    made = RecurrentProblem(**values, name=said.name)
    if made.t > 1 and made.sic != made.dic:
        raise said.mistake(
            "sic", f"sic{made.sic} does not fit dic{made.dic}: a step's state is the next one's"
        )
    if made.l > 1 and made.slc != made.dic:
        raise said.mistake(
            "slc", f"slc{made.slc} does not fit dic{made.dic}: a layer's output is the next one's input"
        )
    if made.dic > made.dhc:
        raise said.mistake("dic", f"dic{made.dic} is larger than dhc{made.dhc}; a projection makes fewer")
    return made


__all__ = ["ProblemError", "RecurrentProblem", "parse_recurrent"]
