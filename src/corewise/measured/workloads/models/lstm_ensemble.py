"""An ensemble of bidirectional LSTMs, as in PyTorch's tutorial "Dynamic Parallelism in TorchScript".

Members are independent, and so are the two directions of a member: all of them can run in parallel. The
outputs of a member's directions are concatenated, those of the members are summed. The study of thread widths
that uses it infers sequences of 400 steps in batches of 400. The mean over steps and the linear head are our
addition, so that it can be trained as well.
"""

from __future__ import annotations

from corewise.measured.workloads.models.branch_layers import Branches
from corewise.measured.workloads.models.layers import Linear, Sequence
from corewise.measured.workloads.models.sequence_layers import Lstm, MeanOverSteps, TimeMajor
from corewise.measured.workloads.models.sequence_model import SequenceModel, Sizes


def _build_lstm_ensemble(sizes: Sizes) -> Sequence:
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
    summary="ensemble of bidirectional LSTMs (args.members), which can run in parallel",
    defaults={"time_steps": 400, "features": 10, "hidden": 10, "members": 4, "num_classes": 1000},
    steps="time_steps",
    features="features",
    layers_for=_build_lstm_ensemble,
    time_major=True,
    concurrent=True,
)
