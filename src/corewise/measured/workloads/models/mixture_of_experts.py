"""A mixture of experts (Shazeer et al., arXiv 1701.06538): parallel networks, weighted by a gate.

Each layer is added to its input and normalised, as in a transformer. Sequences are classified by their mean.
All experts compute for all tokens, and the gate sets all but the best `top_k` weights to zero. The graph and
its work are therefore the same for every input.
"""

from __future__ import annotations

from corewise.measured.workloads.models.branch_layers import Branches, Gated
from corewise.measured.workloads.models.layers import Linear, ReLU, Residual, Sequence
from corewise.measured.workloads.models.sequence_layers import LayerNorm, MeanOverSteps
from corewise.measured.workloads.models.sequence_model import SequenceModel, Sizes


def _build_mixture_of_experts(sizes: Sizes) -> Sequence:
    width, hidden = sizes["width"], sizes["hidden"]
    # Not in place: from the third step on, TorchScript takes the overwritten value for a weight and fails.
    expert = Sequence((Linear(width, hidden), ReLU(in_place=False), Linear(hidden, width)))
    experts = Branches((expert,) * sizes["experts"], join="stack")
    mixed = Gated(Linear(width, sizes["experts"], bias=False), experts, sizes["top_k"])
    head = (MeanOverSteps(), Linear(width, sizes["num_classes"]))
    return Sequence((*(Residual(mixed), LayerNorm(width)) * sizes["layers"], *head))


MIXTURE_OF_EXPERTS = SequenceModel(
    name="mixture_of_experts",
    summary="mixture of experts (args.experts): all are computed, the best args.top_k are summed",
    defaults={"layers": 2, "experts": 8, "top_k": 2, "width": 256, "hidden": 1024, "tokens": 64, "num_classes": 1000},
    steps="tokens",
    features="width",
    layers_for=_build_mixture_of_experts,
    concurrent=True,
)
