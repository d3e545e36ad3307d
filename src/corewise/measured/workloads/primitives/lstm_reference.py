"""Independent reference for LSTM layers in float64, forward and backward.

The order of gates is input, forget, cell, output. Measured side: standard library and numpy only,
Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np


@dataclasses.dataclass(frozen=True)
class LayerWeights:
    """The weights of one layer; the bias is the sum of both biases of a framework that has two.

    Shapes: `of_input` 4·hidden × input, `of_state` 4·hidden × state, `projection` state × hidden.
    """

    of_input: Any
    of_state: Any
    bias: Any
    projection: Optional[Any] = None


@dataclasses.dataclass(frozen=True)
class Outputs:
    """The outputs of the layers, with the values that the backward pass needs.

    `states` of the last step have the shape layers × mb × state. `saved` holds values by layer and step.
    """

    sequence: Any
    states: Any
    cells: Any
    saved: List[List[Dict[str, Any]]]


def run_forward(layers: Sequence[LayerWeights], x: Any, states: Any, cells: Any) -> Outputs:
    """Run a sequence of steps × mb × features from the initial states and cells of each layer."""
    saved: List[List[Dict[str, Any]]] = []
    last_states, last_cells = [], []
    for number, layer in enumerate(layers):
        h, c = states[number], cells[number]
        steps: List[Dict[str, Any]] = []
        for x_t in x:
            gates = x_t @ layer.of_input.T + h @ layer.of_state.T + layer.bias
            i, f, g, o = np.split(gates, 4, axis=1)
            i, f, g, o = _compute_sigmoid(i), _compute_sigmoid(f), np.tanh(g), _compute_sigmoid(o)
            step = {"x": x_t, "h": h, "c": c, "i": i, "f": f, "g": g, "o": o}
            c = f * c + i * g
            step["tanh"], step["hidden"] = np.tanh(c), o * np.tanh(c)
            h = step["hidden"] if layer.projection is None else step["hidden"] @ layer.projection.T
            steps.append({**step, "out": h})
        saved.append(steps)
        last_states.append(h)
        last_cells.append(c)
        x = np.stack([step["out"] for step in steps])
    return Outputs(x, np.stack(last_states), np.stack(last_cells), saved)


def run_backward(
    layers: Sequence[LayerWeights], outputs: Outputs, d_sequence: Any, d_states: Any, d_cells: Any
) -> Tuple[Dict[str, Any], List[LayerWeights]]:
    """Return the gradients of the input, of the initial states and cells, and of each layer's weights."""
    grads: List[LayerWeights] = []
    first_states: List[Any] = []
    first_cells: List[Any] = []
    d_out = d_sequence
    for number in reversed(range(len(layers))):
        layer, steps = layers[number], outputs.saved[number]
        d_input, d_h, d_c, grad = _run_layer_backward(layer, steps, d_out, d_states[number], d_cells[number])
        grads.insert(0, grad)
        first_states.insert(0, d_h)
        first_cells.insert(0, d_c)
        d_out = d_input
    return {"x": d_out, "states": np.stack(first_states), "cells": np.stack(first_cells)}, grads


def find_worst_difference(pairs: Sequence[Tuple[Any, Any]]) -> float:
    """Return the largest difference relative to the largest expected value; NaN if any value is NaN."""
    if any(expected.shape != computed.shape for expected, computed in pairs):
        return math.inf
    errors = [float(np.abs(computed - expected).max() / np.abs(expected).max()) for expected, computed in pairs]
    return max(errors, key=lambda error: math.inf if math.isnan(error) else error)


def _run_layer_backward(
    layer: LayerWeights, steps: List[Dict[str, Any]], d_out: Any, d_h: Any, d_c: Any
) -> Tuple[Any, Any, Any, LayerWeights]:
    d_inputs: List[Any] = []
    of_input, of_state = np.zeros_like(layer.of_input), np.zeros_like(layer.of_state)
    bias = np.zeros_like(layer.bias)
    projection = None if layer.projection is None else np.zeros_like(layer.projection)
    for step, d_step in zip(reversed(steps), d_out[::-1]):
        d_state = d_step + d_h
        d_hidden = d_state
        if layer.projection is not None:
            projection += d_state.T @ step["hidden"]
            d_hidden = d_state @ layer.projection
        d_cell = d_c + d_hidden * step["o"] * (1 - step["tanh"] ** 2)
        i, f, g, o = step["i"], step["f"], step["g"], step["o"]
        d_gates = np.concatenate(
            [
                d_cell * g * i * (1 - i),
                d_cell * step["c"] * f * (1 - f),
                d_cell * i * (1 - g**2),
                d_hidden * step["tanh"] * o * (1 - o),
            ],
            axis=1,
        )
        of_input += d_gates.T @ step["x"]
        of_state += d_gates.T @ step["h"]
        bias += d_gates.sum(axis=0)
        d_inputs.insert(0, d_gates @ layer.of_input)
        d_h, d_c = d_gates @ layer.of_state, d_cell * f
    return np.stack(d_inputs), d_h, d_c, LayerWeights(of_input, of_state, bias, projection)


def _compute_sigmoid(x: Any) -> Any:
    # This form does not overflow.
    return 0.5 * (1.0 + np.tanh(0.5 * x))
