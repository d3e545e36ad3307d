"""Winograd convolutions compute what torch computes in float64."""

import math
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.accelerate.winograd_cases import MOST_ERROR, built, error, images, weights
from torch.nn import functional

# The fixture is used by pytest.
__all__ = ["built"]


def convolved(x: Any, weight: Any, bias: Any = None, padding: Any = (1, 1), added: Any = None) -> Any:
    """Return the Winograd convolution and the one in float64."""
    packed = torch.ops.corewise.winograd_weight(weight)
    made = torch.ops.corewise.winograd_convolution(x, packed, bias, weight.shape[-1], padding, added, False)
    wide = [None if each is None else each.double() for each in (bias, added)]
    wanted = functional.conv2d(x.double(), weight.double(), wide[0], padding=padding)
    return made, wanted if wide[1] is None else wanted + wide[1]


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("padding", [(0, 0), (1, 1), (2, 1), (0, 4)], ids=str)
@pytest.mark.parametrize(
    ("batch", "channels", "results", "height", "width"),
    [(1, 16, 16, 5, 5), (2, 16, 48, 6, 13), (3, 48, 16, 7, 9), (1, 64, 80, 15, 8), (2, 128, 208, 14, 14)],
)
def test_results_are_those_of_float64(
    batch: int, channels: int, results: int, height: int, width: int, padding: Any, kernel: int
) -> None:
    x, weight = images(batch, channels, height, width), weights(results, channels, kernel)
    made, wanted = convolved(x, weight, torch.randn(results), padding)
    assert made.shape == wanted.shape
    assert error(made, wanted) < MOST_ERROR
    assert made.is_contiguous(memory_format=torch.channels_last)


def test_many_tiles_are_computed_in_several_parts() -> None:
    made, wanted = convolved(images(5, 16, 57, 43), weights(32, 16, 3))
    assert error(made, wanted) < MOST_ERROR
    each = (made.double() - wanted).abs().amax((1, 2, 3))
    # The last image is checked too.
    assert each.max() < 1e-4


def test_errors_stay_within_a_few_times_those_of_direct_convolution() -> None:
    x, weight = images(2, 256, 14, 14), weights(256, 256, 3)
    made, wanted = convolved(x, weight)
    assert error(made, wanted) < 4 * error(functional.conv2d(x, weight, padding=1), wanted)


@pytest.mark.parametrize("is_relu", [False, True])
@pytest.mark.parametrize("overwrites", [False, True])
def test_a_sum_and_a_relu_are_part_of_it(is_relu: bool, overwrites: bool) -> None:
    x, weight, bias, other = images(2, 32, 9, 10), weights(32, 32, 3), torch.randn(32), images(2, 32, 9, 10)
    wanted = functional.conv2d(x.double(), weight.double(), bias.double(), padding=1) + other.double()
    given = (x, torch.ops.corewise.winograd_weight(weight), bias, 3, (1, 1))
    before = other.clone()
    if overwrites:
        torch.ops.corewise.winograd_convolution_(other, *given, is_relu)
        made = other
    else:
        made = torch.ops.corewise.winograd_convolution(*given, other, is_relu)
        assert torch.equal(other, before)
    assert error(made, wanted.relu() if is_relu else wanted) < MOST_ERROR


def test_an_image_is_not_overwritten_while_it_is_read() -> None:
    weight = torch.ops.corewise.winograd_weight(weights(32, 32, 3))
    x = images(1, 32, 9, 10).contiguous(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="memory location"):
        torch.ops.corewise.winograd_convolution_(x, x, weight, None, 3, (1, 1), False)


@pytest.mark.parametrize("where", [(0, 0), (3, 4), (7, 7), (13, 12)], ids=str)
def test_nan_propagates_only_within_its_tiles(where: tuple[int, int]) -> None:
    x = images(2, 16, 14, 13)
    x[(0, 5, *where)] = math.nan
    made, wanted = convolved(x, weights(16, 16, 3))
    given = (x, torch.ops.corewise.winograd_weight(weights(16, 16, 3)), None, 3, (1, 1))
    rectified = torch.ops.corewise.winograd_convolution(*given, None, True)
    for each in (made, rectified):
        assert each[wanted.isnan()].isnan().all()
        assert not each[1].isnan().any()
        rows, columns = each[0].isnan().any(0).nonzero().T
        assert (rows - where[0]).abs().max() <= 4
        assert (columns - where[1]).abs().max() <= 4


def test_the_result_lies_as_the_image_does() -> None:
    x, weight = torch.randn(2, 16, 6, 7), weights(32, 16, 3)
    made, wanted = convolved(x, weight, added=torch.randn(2, 32, 6, 7))
    assert made.is_contiguous()
    assert error(made, wanted) < MOST_ERROR
    part = images(2, 32, 12, 7)[:, 16:, ::2]
    made, wanted = convolved(part, weight)
    assert error(made, wanted) < MOST_ERROR


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    cases = [(images(3, 32, 30, 30), weights(48, 32, 3)), (images(1, 64, 7, 7), weights(400, 64, 3))]
    for x, weight in cases:
        results = []
        for num_threads in (1, 2, 3, 7):
            torch.set_num_threads(num_threads)
            results.append(convolved(x, weight)[0])
        assert all(torch.equal(results[0], each) for each in results[1:])


def test_a_forked_child_computes_the_same() -> None:
    torch.set_num_threads(1)
    x, weight = images(2, 16, 10, 10), weights(16, 16, 3)
    packed = torch.ops.corewise.winograd_weight(weight)
    given = (x, packed, None, 3, (1, 1), None, False)
    wanted = torch.ops.corewise.winograd_convolution(*given)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if torch.equal(torch.ops.corewise.winograd_convolution(*given), wanted) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


OTHER_INSTRUCTIONS = """
import torch
from corewise.accelerate.kernels.build import load_native_module
load_native_module()
torch.manual_seed(1)
one = torch.zeros(64, 16, 3, 3)
# This is the second row of the first panel, which is as long as panels are wide.
one[0, 1] = 1.0
print(int(torch.ops.corewise.winograd_weight(one).flatten().nonzero()[0]))
for kernel in (3, 5):
    x, weight = torch.randn(2, 32, 11, 14), torch.randn(80, 32, kernel, kernel)
    packed = torch.ops.corewise.winograd_weight(weight)
    made = torch.ops.corewise.winograd_convolution(x, packed, None, kernel, (1, 1), None, False)
    wanted = torch.nn.functional.conv2d(x.double(), weight.double(), padding=1)
    print(float((made - wanted).norm() / wanted.norm()))
"""


@pytest.mark.parametrize(("capability", "panel"), [("default", (8, 16)), ("avx2", (16,))])
def test_older_instructions_compute_the_same(
    capability: str, panel: tuple[int, ...], need: Callable[[bool, str], None]
) -> None:
    if capability != "default":
        need(torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"), "a processor with AVX2")
    env = {**os.environ, "ATEN_CPU_CAPABILITY": capability, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", OTHER_INSTRUCTIONS]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=True)
    width, *errors = map(float, done.stdout.split())
    assert width in panel
    assert len(errors) == 2
    assert max(errors) < MOST_ERROR


def test_invalid_arguments_raise_and_an_empty_batch_gives_an_empty_result() -> None:
    packed = torch.ops.corewise.winograd_weight(weights(16, 16, 3))
    convolution = torch.ops.corewise.winograd_convolution
    assert convolution(images(0, 16, 5, 5), packed, None, 3, (1, 1), None, False).shape == (0, 16, 5, 5)
    meta = convolution(torch.empty(2, 16, 9, 5, device="meta"), packed.to("meta"), None, 3, (1, 0), None, True)
    assert (meta.shape, meta.device.type) == ((2, 16, 9, 3), "meta")
    for x, padding, reason in (
        (images(1, 32, 5, 5), (1, 1), "weights of 32 channels"),
        (images(1, 16, 2, 5), (0, 0), "too small"),
        (torch.randn(16, 5, 5), (1, 1), "images are needed"),
        (images(1, 16, 5, 5).double(), (1, 1), "float32 is needed"),
    ):
        with pytest.raises(RuntimeError, match=reason):
            convolution(x, packed, None, 3, padding, None, False)
    with pytest.raises(RuntimeError, match="multiples of 16"):
        torch.ops.corewise.winograd_weight(weights(16, 24, 3))
    with pytest.raises(RuntimeError, match="a bias for each channel"):
        convolution(images(1, 16, 5, 5), packed, torch.zeros(4), 3, (1, 1), None, False)
    with pytest.raises(RuntimeError, match="another form"):
        convolution(images(1, 16, 5, 5), packed, None, 3, (1, 1), images(1, 16, 5, 4), False)
