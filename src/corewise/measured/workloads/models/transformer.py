"""A transformer encoder (Vaswani et al., arXiv 1706.03762) with post-normalisation and ReLU.

It takes sequences of vectors, so it has no embedding, and classifies their mean. Queries, keys and values
come from one product and enter torch's fused attention, in training and in inference. On a CPU this is as
fast as torch.nn.TransformerEncoder with its inference fast path. Dropout follows the activation and both
products, but not the attention weights: torch's fused attention on a CPU does not support it.
"""

from __future__ import annotations

from typing import Tuple

from corewise.measured.workloads.models.layers import Dropout, Layer, Linear, ReLU, Residual, Sequence
from corewise.measured.workloads.models.sequence_layers import Attention, LayerNorm, MeanOverSteps
from corewise.measured.workloads.models.sequence_model import SequenceModel, Sizes


def _build_transformer(sizes: Sizes) -> Sequence:
    width, feed_forward = sizes["width"], sizes["feed_forward"]
    dropped: Tuple[Layer, ...] = (Dropout(sizes["dropout"]),) if sizes["dropout"] else ()
    attention = (Linear(width, 3 * width), Attention(width, sizes["heads"]), Linear(width, width), *dropped)
    # Not in place: from the third step on, TorchScript takes the overwritten value for a weight and fails.
    widened = (Linear(width, feed_forward), ReLU(in_place=False), *dropped, Linear(feed_forward, width), *dropped)
    block = (Residual(Sequence(attention)), LayerNorm(width), Residual(Sequence(widened)), LayerNorm(width))
    head = (MeanOverSteps(), Linear(width, sizes["num_classes"]))
    return Sequence((*block * sizes["layers"], *head))


TRANSFORMER = SequenceModel(
    name="transformer",
    summary="transformer encoder: self-attention and two wide products in each layer",
    defaults={
        "layers": 6,
        "width": 512,
        "heads": 8,
        "feed_forward": 2048,
        "tokens": 128,
        "dropout": 0.0,
        "num_classes": 1000,
    },
    steps="tokens",
    features="width",
    layers_for=_build_transformer,
)
