"""Run an LSTM layer on our row-parallel kernel, which splits the batch among threads.

Measured side: standard library and torch only, Python 3.9. Needs the C++ module.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor, nn

States = Tuple[Tensor, Tensor]


def run_lstm_rows(layer: nn.LSTM, x: Tensor, states: Optional[States] = None, reverse: bool = False) -> Any:
    """Run the layer on a batch of sequences and return what its `forward` would."""
    if states is None:
        num_states = layer.num_layers * (2 if layer.bidirectional else 1)
        zeros = x.new_zeros(num_states, x.shape[0 if layer.batch_first else 1], layer.hidden_size)
        states = (zeros, zeros)
    layer.check_forward_args(x, states, None)
    sizes = (layer.bias, layer.num_layers, float(layer.dropout), layer.training, layer.bidirectional)
    rows, hidden, cells = torch.ops.corewise.lstm(
        x, list(states), layer._flat_weights, *sizes, layer.batch_first, reverse
    )
    return rows, (hidden, cells)
