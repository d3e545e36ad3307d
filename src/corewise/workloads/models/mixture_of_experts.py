"""A mixture of experts (Shazeer et al., arXiv 1701.06538): networks side by side, weighed by a gate.

Each layer is added to its input and normalised, as in a transformer; sequences are classified by their mean.
All experts compute for all tokens and the gate gives all but the best `top_k` a weight of zero, so that the
graph and its work are the same for every input.
"""

from __future__ import annotations

from corewise.workloads.branch_layers import Branches, Gated
from corewise.workloads.layers import Linear, ReLU, Residual, Sequence
from corewise.workloads.models.sequence_model import SequenceModel, Sizes
from corewise.workloads.sequence_layers import LayerNorm, MeanOverSteps


def _mixture_of_experts(sizes: Sizes) -> Sequence:
    width, hidden = sizes["width"], sizes["hidden"]
    # Not in place: from the third step on TorchScript takes what is overwritten for a weight, and refuses.
    expert = Sequence((Linear(width, hidden), ReLU(in_place=False), Linear(hidden, width)))
    experts = Branches((expert,) * sizes["experts"], join="stack")
    mixed = Gated(Linear(width, sizes["experts"], bias=False), experts, sizes["top_k"])
    head = (MeanOverSteps(), Linear(width, sizes["num_classes"]))
    return Sequence((*(Residual(mixed), LayerNorm(width)) * sizes["layers"], *head))


MIXTURE_OF_EXPERTS = SequenceModel(
    name="mixture_of_experts",
    summary="mixture of experts (args.experts), all computed, the best args.top_k added up",
    defaults={
        "layers": 2,
        "experts": 8,
        "top_k": 2,
        "width": 256,
        "hidden": 1024,
        "tokens": 64,
        "num_classes": 1000,
    },
    steps="tokens",
    features="width",
    layers_for=_mixture_of_experts,
    concurrent=True,
)
