"""The optimizers of a training against their definitions and those of torch."""

from typing import Any

import numpy as np
import pytest
import torch

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.torch.modules.adam import BETA1, BETA2, EPSILON, WEIGHT_DECAY, CpuAdam
from corewise.measured.runtimes.torch.modules.optimizers import (
    ADAM_LEARNING_RATE,
    build_optimizer,
    choose_learning_rate,
)
from corewise.measured.runtimes.torch.modules.sgd import CpuSgd
from corewise.measured.runtimes.torch.settings import Settings

SHAPES = ((64, 33), (7,), (2, 3, 5, 5))
NUM_STEPS = 4
LEARNING_RATE = 0.01


def build_settings(optimizer: str, *, training: bool = True) -> Settings:
    return Settings(torch.device("cpu"), "float32", "contiguous", "eager", training, optimizer=optimizer)


def draw_parameters(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in SHAPES]


def set_gradients(parameters: list[torch.nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


def update_by_the_book(values: list[np.ndarray], gradients: list[list[np.ndarray]], decay: float) -> None:
    """Adam as in the paper, in float64."""
    means = [np.zeros_like(value) for value in values]
    squares = [np.zeros_like(value) for value in values]
    for step, of_step in enumerate(gradients, 1):
        for value, mean, square, gradient in zip(values, means, squares, of_step, strict=True):
            value *= 1 - LEARNING_RATE * decay
            mean[...] = BETA1 * mean + (1 - BETA1) * gradient
            square[...] = BETA2 * square + (1 - BETA2) * gradient**2
            corrected = np.sqrt(square / (1 - BETA2**step)) + EPSILON
            value -= LEARNING_RATE * mean / (1 - BETA1**step) / corrected


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("is_adamw", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adam_agrees_with_the_definition_in_float64(is_adamw: bool, is_fused: bool, dtype: torch.dtype) -> None:
    parameters = draw_parameters(dtype)
    wanted = [p.detach().double().numpy().copy() for p in parameters]
    optimizer = CpuAdam(parameters, LEARNING_RATE, decoupled_decay=is_adamw)
    optimizer.is_fused = is_fused and optimizer.is_fused
    gradients = []
    for step in range(NUM_STEPS):
        set_gradients(parameters, step)
        gradients.append([p.grad.double().numpy() for p in parameters if p.grad is not None])
        optimizer.step()
    update_by_the_book(wanted, gradients, WEIGHT_DECAY if is_adamw else 0.0)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for parameter, value in zip(parameters, wanted, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("is_fused", [True, False])
def test_a_parameter_without_gradient_does_not_change(is_fused: bool) -> None:
    parameters = draw_parameters()
    optimizer = CpuAdam(parameters, LEARNING_RATE, decoupled_decay=True)
    optimizer.is_fused = is_fused and optimizer.is_fused
    set_gradients(parameters, 0)
    parameters[1].grad = None
    before = [p.detach().clone() for p in parameters]
    optimizer.step()
    assert [torch.equal(a, b) for a, b in zip(before, parameters, strict=True)] == [False, True, False]
    optimizer.zero_grad()
    assert all(p.grad is None for p in parameters)
    optimizer.step()


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_the_optimizers_of_torch_make_the_same_steps(name: str) -> None:
    ours, theirs = draw_parameters(), draw_parameters()
    built = build_optimizer(ours, build_settings(name), ADAM_LEARNING_RATE)
    reference = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name](theirs, lr=ADAM_LEARNING_RATE)
    for step in range(NUM_STEPS):
        set_gradients(ours, step)
        set_gradients(theirs, step)
        built.step()
        reference.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def choose(optimizer: str, **more: Any) -> float:
    params = {"workload": "resnet18", "mode": "train", "runtime": "torch", "optimizer": optimizer, **more}
    return choose_learning_rate(TrialParameters.from_mapping(params), LEARNING_RATE)


def test_sgd_keeps_the_learning_rate_of_the_workload() -> None:
    assert isinstance(build_optimizer(draw_parameters(), build_settings("sgd"), LEARNING_RATE), CpuSgd)
    assert choose("sgd") == LEARNING_RATE
    assert choose("adam") == choose("adamw") == ADAM_LEARNING_RATE


def test_the_learning_rate_of_every_optimizer_follows_the_rule() -> None:
    assert choose("sgd", processes=4, learning_rate_rule="linear") == 4 * LEARNING_RATE
    assert choose("adam", processes=4, learning_rate_rule="linear") == 4 * ADAM_LEARNING_RATE
