"""How a long signal and its transform are laid out over ranks.

Measured side: standard library only, Python 3.9.

The four-step transform (D. H. Bailey, 1990) sees a signal of N = A·B values as a matrix: sample a·B + b is in row a
and column b. With frequencies k = p + A·q,

    X[p + A·q] = Σ_b e^(-2πi·b·q/B) · e^(-2πi·b·p/N) · Σ_a e^(-2πi·a·p/A) · x[a·B + b].

So the columns are transformed, multiplied by twiddle factors and exchanged between ranks, and then the rows are
transformed. Two orders of samples and frequencies are known:

- interleaved: a rank has the samples of some b (every B-th sample from b on), and the frequencies of some p (every A-th
  from p on), one b or p after the other. One exchange.
- natural: a rank has consecutive samples and frequencies. Three exchanges.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Optional

ORDERS = ("interleaved", "natural")


@dataclasses.dataclass(frozen=True)
class SignalGrid:
    """A signal as a matrix of `num_rows` by `num_columns` (A and B), of which every rank has an equal share."""

    num_rows: int
    num_columns: int
    num_ranks: int

    @property
    def size(self) -> int:
        return self.num_rows * self.num_columns

    @property
    def share(self) -> int:
        """The values of one rank."""
        return self.size // self.num_ranks


def build_grid(size: int, num_ranks: int) -> Optional[SignalGrid]:
    """Split a size into two factors that the ranks divide, as equal as possible; None if there are none."""
    if size % num_ranks**2:
        return None
    rest = size // num_ranks**2
    least = next(factor for factor in range(math.isqrt(rest), 0, -1) if rest % factor == 0)
    return SignalGrid(num_ranks * least, num_ranks * (rest // least), num_ranks)
