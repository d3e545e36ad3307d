"""An ensemble of bidirectional LSTMs, as in PyTorch's tutorial "Dynamic Parallelism in TorchScript".

Members do not need each other, nor do the two directions of a member: that much can run side by side. The
outputs of a member's directions are concatenated, those of the members added up. The study of thread widths
that took it up infers sequences of 400 steps in batches of 400. The mean over steps and the linear head are
ours, so that it can be trained as well.
"""

from __future__ import annotations

from corewise.workloads.branch_layers import Branches
from corewise.workloads.layers import Linear, Sequence
from corewise.workloads.models.sequence_model import SequenceModel, Sizes
from corewise.workloads.sequence_layers import Lstm, MeanOverSteps, TimeMajor


def _lstm_ensemble(sizes: Sizes) -> Sequence:
    features, hidden = sizes["features"], sizes["hidden"]
    member = Branches((Lstm(features, hidden), Lstm(features, hidden, reverse=True)), join="concatenate")
    return Sequence(
        (
            TimeMajor(),
            Branches((member,) * sizes["members"], join="sum"),
            MeanOverSteps(time_major=True),
            Linear(2 * hidden, sizes["num_classes"]),
        )
    )


LSTM_ENSEMBLE = SequenceModel(
    name="lstm_ensemble",
    summary="ensemble of bidirectional LSTMs (args.members), all side by side where asked",
    defaults={"time_steps": 400, "features": 10, "hidden": 10, "members": 4, "num_classes": 1000},
    steps="time_steps",
    features="features",
    layers_for=_lstm_ensemble,
    time_major=True,
    concurrent=True,
)
