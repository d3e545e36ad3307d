"""Floating-point operations and traffic of torch operators."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional

from corewise.measured.runtimes.torch.breakdown.operator_flops import count_flops
from corewise.measured.runtimes.torch.breakdown.operator_recorder import OperatorRecorder
from corewise.measured.runtimes.torch.breakdown.work_classes import describe_convolution
from corewise.measured.workloads.primitives.convolution_problem import parse_convolution


def described(call: Callable[[], Any], operator: str, infers: bool = True) -> dict[str, Any]:
    """Describe the first operator of this name that the call meets."""
    watch = OperatorRecorder(lambda: 0, 2**18, 0)
    with torch.inference_mode(infers), torch.set_grad_enabled(not infers), watch:
        call()
    met = [each.description for each in watch.operators.values()]
    return next(each for each in met if each["operator"] == operator)


def test_work_is_counted_for_strided_grouped_and_one_dimensional_convolutions() -> None:
    image, weight = torch.randn(2, 8, 9, 9), torch.randn(4, 2, 3, 3)
    args = (image, weight, None, [2, 2], [1, 1], [1, 1], 4)
    made = torch.conv2d(*args)
    assert describe_convolution("conv2d", args, made) == "g4mb2ic8ih9oc4oh5kh3sh2ph1"
    assert count_flops("conv2d", args, made) == parse_convolution("g4mb2ic8ih9oc4oh5kh3sh2ph1").flops
    plain = (image, torch.randn(4, 8, 3, 3))
    made = torch.conv2d(*plain)
    assert describe_convolution("conv2d", plain, made) == "mb2ic8ih9oc4oh7kh3"
    assert count_flops("conv2d", plain, made) == 2 * made.numel() * 8 * 3 * 3
    signal, taps = torch.randn(2, 3, 50), torch.randn(5, 3, 7)
    line = torch.conv1d(signal, taps)
    assert count_flops("conv1d", (signal, taps), line) == 2 * line.numel() * 3 * 7
    assert describe_convolution("convolution", (signal, taps), line) == ""
    assert count_flops("mm", ("not", "tensors"), None) is None


def test_one_image_without_a_batch_is_a_batch_of_one() -> None:
    layer, image = nn.Conv2d(8, 8, 3), torch.randn(8, 66, 66)
    alone = described(lambda: layer(image), "conv2d")
    assert alone["flops"] == 2 * 64 * 64 * 8 * 8 * 3 * 3 == 4_718_592
    assert alone["problem"] == "mb1ic8ih66oc8oh64kh3"
    line, signal = nn.Conv1d(8, 4, 3), torch.randn(8, 52)
    assert described(lambda: line(signal), "conv1d")["flops"] == 2 * 50 * 4 * 8 * 3
    same = nn.Conv2d(8, 8, 3, padding="same")
    assert described(lambda: same(image), "conv2d")["flops"] == 2 * 66 * 66 * 8 * 8 * 3 * 3


# Dimensions: steps, samples, features.
X = torch.randn(5, 2, 8)


@pytest.mark.parametrize(
    ("layer", "operator", "positions", "weights"),
    [
        (nn.GRU(8, 16, 2, bidirectional=True), "gru", 10, 2 * 48 * (8 + 16) + 2 * 48 * (32 + 16)),
        (nn.GRU(8, 16, batch_first=True), "gru", 10, 48 * (8 + 16)),
        (nn.RNN(8, 16), "rnn_tanh", 10, 16 * (8 + 16)),
        (nn.LSTM(8, 16, proj_size=4), "lstm", 10, 64 * (8 + 4) + 4 * 16),
    ],
)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_recurrent_layers_are_counted_weight_by_weight(
    layer: nn.Module, operator: str, positions: int, weights: int
) -> None:
    assert described(lambda: layer(X), operator)["flops"] == 2 * positions * weights


def test_packed_sequences_and_cells_are_counted_too() -> None:
    packed = nn.utils.rnn.pack_padded_sequence(X, [5, 3])
    layer, cell = nn.GRU(8, 16), nn.LSTMCell(8, 16)
    assert described(lambda: layer(packed), "gru")["flops"] == 2 * 8 * 48 * (8 + 16)
    assert described(lambda: cell(X[0]), "lstm_cell")["flops"] == 2 * 2 * 64 * (8 + 16)


@pytest.mark.parametrize(("shape", "batch"), [((2, 3, 8, 8), 2), ((3, 8, 8), 1)])
def test_transposed_convolutions_are_counted_by_their_input(shape: tuple[int, ...], batch: int) -> None:
    layer, image = nn.ConvTranspose2d(3, 4, 3, stride=2), torch.randn(shape)
    assert described(lambda: layer(image), "conv_transpose2d")["flops"] == 2 * batch * 64 * 3 * 4 * 9


def test_attention_is_counted_for_the_pairs_it_looks_at() -> None:
    q = torch.randn(2, 4, 8, 16)

    def attend(causal: bool) -> Any:
        name = "scaled_dot_product_attention"
        call = lambda: functional.scaled_dot_product_attention(q, q, q, is_causal=causal)  # noqa: E731
        return described(call, name)["flops"]

    assert attend(False) == 2 * 2 * 4 * 8 * 8 * (16 + 16)
    assert attend(True) == 2 * 2 * 4 * (8 * 9 // 2) * (16 + 16)


def test_a_whole_encoder_layer_is_counted_with_its_products_and_its_attention() -> None:
    layer, x = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval(), torch.randn(2, 5, 16)
    description = described(lambda: layer(x), "_transformer_encoder_layer_fwd")
    weights = 4 * 16 * 16 + 2 * 16 * 32
    assert description["flops"] == 2 * 10 * weights + 4 * 2 * 5 * 5 * 16
    assert description["category"] == "attention"


def test_unknown_arithmetic_is_not_counted_as_zero() -> None:
    a = torch.randn(6, 6)
    assert described(lambda: torch.linalg.inv(a), "linalg_inv")["flops"] is None
    assert described(lambda: torch.einsum("ij,jk->ik", a, a), "einsum")["flops"] is None
    assert described(lambda: torch.cdist(a, a), "cdist")["flops"] is None
    assert count_flops("_some_fused_conv_of_tomorrow", (a,), a) is None
    for call, name in ((a.neg, "neg"), (a.sum, "sum"), (lambda: a.softmax(-1), "softmax")):
        assert described(call, name)["flops"] == 0.0


def test_a_view_in_place_is_a_view() -> None:
    x = torch.randn(3, 4)
    description = described(lambda: x.transpose_(0, 1), "transpose_")
    assert (description["category"], description["flops"], description["traffic_bytes"]) == ("view", 0.0, 0.0)


@pytest.mark.parametrize(
    ("pick", "operator", "picked"),
    [
        (lambda table, at: functional.embedding(at, table), "embedding", 3 * 8),
        (lambda table, at: table[at], "index", 3 * 8),
        (lambda table, at: table.index_select(0, at), "index_select", 3 * 8),
        (lambda table, at: table.gather(0, at[:, None]), "gather", 3),
    ],
)
def test_only_picked_rows_of_a_table_count_as_traffic(
    pick: Callable[[Any, Any], Any], operator: str, picked: int
) -> None:
    table, at = torch.randn(1000, 8), torch.tensor([1, 2, 3])
    description = described(lambda: pick(table, at), operator)
    assert description["traffic_bytes"] == 3 * 8 + 2 * 4 * picked


def test_a_bag_reads_every_row_and_writes_their_sum() -> None:
    table, at = torch.randn(1000, 8), torch.tensor([[1, 2, 3]])
    description = described(lambda: functional.embedding_bag(at, table), "embedding_bag")
    assert 4 * 3 * 8 + 4 * 8 <= description["traffic_bytes"] < 300


def test_what_is_overwritten_is_not_read() -> None:
    x, y, at = torch.randn(100, 8), torch.randn(100, 8), torch.tensor([1, 2])
    size = 4 * 800
    assert described(lambda: x.copy_(y), "copy_")["traffic_bytes"] == 2 * size
    assert described(lambda: x.fill_(1.0), "fill_")["traffic_bytes"] == size
    assert described(lambda: x.zero_(), "zero_")["traffic_bytes"] == size
    assert described(lambda: torch.zeros_like(x), "zeros_like")["traffic_bytes"] == size
    assert described(lambda: x.add_(1.0), "add_")["traffic_bytes"] == 2 * size
    assert described(lambda: torch.add(x, y, out=y), "add")["traffic_bytes"] == 3 * size
    description = described(lambda: x.index_add_(0, at, y[:2]), "index_add_")
    assert description["traffic_bytes"] == 2 * 8 + 3 * 4 * 16


def test_updates_of_many_tensors_count_what_they_write() -> None:
    weights, slopes = ([torch.randn(10) for _ in range(3)] for _ in range(2))
    description = described(lambda: torch._foreach_add_(weights, slopes), "_foreach_add_")
    assert description["traffic_bytes"] == 3 * 3 * 40
    description = described(lambda: torch._foreach_copy_(weights, slopes), "_foreach_copy_")
    assert description["traffic_bytes"] == 2 * 3 * 40
    owned = [nn.Parameter(each) for each in weights]
    for each in owned:
        each.grad = torch.ones(10)
    optimizer = torch.optim.Adam(owned, fused=True)
    optimizer.step()
    description = described(optimizer.step, "_fused_adam_", infers=False)
    # It reads four lists and the step counts, and writes three lists.
    assert description["traffic_bytes"] == (4 + 3) * 3 * 40 + 3 * 4
