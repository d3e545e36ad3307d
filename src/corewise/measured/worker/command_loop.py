"""The command loop of the warm parent: read commands of the control side and answer them.

Measured side: standard library and the runtime's framework only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from corewise.measured.trial import NodePart, parse_trial
from corewise.measured.worker.control_pipe import Channel
from corewise.measured.worker.held_ranks import start_keeper
from corewise.measured.worker.zygote import Zygote


def serve(runtime_name: str, warm: bool, control: Channel) -> None:
    """Answer the control side until it closes the pipe."""
    started = time.monotonic()
    try:
        zygote = Zygote(runtime_name, warm)
    except Exception as problem:
        control.send(event="broken", kind="missing", reason=f"{problem}")
        return
    keepers: list[int] = []
    control.send(event="warm", warm_s=time.monotonic() - started)
    while True:
        message = control.receive()
        if message is None or message["cmd"] == "stop":
            return
        # A message to the ranks of a run that has ended meanwhile.
        if message["cmd"] not in ("run", "hold"):
            continue
        trial = parse_trial(message["trial"])
        if message["cmd"] == "hold":
            keepers = [pid for pid in keepers if not _has_ended(pid)]
            keepers.append(start_keeper(zygote, trial, Path(message["out"]), int(message["asked_at_ns"])))
            if not control.send(event="held", pid=keepers[-1]):
                return
            continue
        part = NodePart(**message.get("part", {}))
        leftovers = zygote.run(trial, Path(message["out"]), int(message["asked_at_ns"]), control, part)
        if leftovers is None or not control.send(event="done", leftovers=leftovers):
            return


def _has_ended(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    return True
