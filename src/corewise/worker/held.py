"""A run that is kept alive between samplings, so that candidates in a race pay their start only once.

The warm parent forks a keeper for each such run. The keeper forks the ranks, stops them between samplings (a
stopped process cannot spin on others' cores) and answers the control side over a pair of named pipes.

Measured side: standard library and the runtime's framework only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import selectors
import shutil
import signal
import time
from pathlib import Path
from typing import Any, Callable, Mapping

from corewise.machine import pinning
from corewise.spec.trial import Trial, to_json, write_json_aside
from corewise.worker.channel import Channel
from corewise.worker.sampling import decide
from corewise.worker.trial_folder import make_trial_folder
from corewise.worker.zygote import (
    GRACE_S,
    RankHandle,
    Zygote,
    ends_within,
    kill_all,
    num_oom_kills,
    post_mortem,
    reap,
)

TO_KEEPER, FROM_KEEPER = "to-keeper", "from-keeper"


def fork_keeper(zygote: Zygote, trial: Trial, folder: Path, asked_at_ns: int) -> int:
    """The process id of a new keeper, which answers over the two named pipes in `folder`."""
    zygote.warm_for(trial)
    parent_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            pinning.die_with_parent(parent_pid)
            pinning.set_process_name("cw-keeper")
            read_fd = os.open(str(folder / TO_KEEPER), os.O_RDONLY)
            write_fd = os.open(str(folder / FROM_KEEPER), os.O_WRONLY)
            _Held(zygote, trial, folder, asked_at_ns).serve(Channel(read_fd, write_fd))
        finally:
            os._exit(0)
    return pid


class _Held:
    """The ranks of one run, sampled whenever the control side says so."""

    def __init__(self, zygote: Zygote, trial: Trial, folder: Path, asked_at_ns: int) -> None:
        self.trial = trial
        self.num_samplings = 0
        self.oom_kills = num_oom_kills()
        self.rendezvous = make_trial_folder()
        self.ranks = zygote.fork_ranks(trial, self.rendezvous, folder, asked_at_ns, held=True)

    def serve(self, control: Channel) -> None:
        """Answer until the control side ends the run or a rank fails; then every rank has a result file."""
        alive = self._wait(self._all_ready)
        event = "ready"
        while alive:
            self._signal(signal.SIGSTOP)
            control.send(event=event)
            message = control.receive()
            self._signal(signal.SIGCONT)
            if message is None or message["cmd"] != "sample":
                self._tell(cmd="end")
                break
            alive = self._sample(message)
            event = "sampled"
        self._finish("stopped" if alive else "peer")
        control.send(event="done")

    def _sample(self, message: Mapping[str, Any]) -> bool:
        """True when every rank has left its samples."""
        if self.num_samplings > 0:
            self._tell(cmd="wake")
            if not self._wait(self._all_ready):
                return False
        protocol = dataclasses.replace(
            self.trial.protocol,
            min_sample_s=float(message["sample_s"]),
            min_samples=int(message["min_samples"]),
        )
        ready = [rank.ready for rank in self.ranks if rank.ready is not None]
        go = decide(protocol, [each["expected_s"] for each in ready], bool(ready[0]["independent"]))
        self.num_samplings += 1
        for rank in self.ranks:
            rank.ready = None
        self._tell(**go.message())
        return self._wait(lambda: all(rank.num_sampled == self.num_samplings for rank in self.ranks))

    def _all_ready(self) -> bool:
        return all(rank.ready is not None for rank in self.ranks)

    def _tell(self, **message: Any) -> None:
        for rank in self.ranks:
            rank.channel.send(**message)

    def _signal(self, number: int) -> None:
        for rank in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.pid, number)

    def _wait(self, done: Callable[[], bool]) -> bool:
        """True once `done`; False when a rank has gone or the trial's time limit has passed."""
        limit_s = self.trial.protocol.timeout_s
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            for rank in self.ranks:
                for fd in rank.open_watches(stack):
                    selector.register(fd, selectors.EVENT_READ, rank)
            while not done():
                found = selector.select(max(0.0, deadline - time.monotonic()))
                if not found:
                    told = f"no result within {limit_s:g} s (protocol.timeout_s); killed"
                    kill_all(self.ranks, "timeout", told)
                    return False
                if not all(_heard(key.data) for key, _ in found if key.fd == key.data.channel.read_fd):
                    return False
                if any(key.fd != key.data.channel.read_fd for key, _ in found):
                    return False
        return True

    def _finish(self, kind: str) -> None:
        reasons = {"stopped": "the run was stopped", "peer": "another rank of this run failed"}
        for rank in self.ranks:
            if not ends_within(rank, GRACE_S):
                rank.kill(kind, reasons[kind])
            reap(rank)
            rank.channel.close()
        shutil.rmtree(self.rendezvous, ignore_errors=True)
        for rank in self.ranks:
            if not rank.result_file.exists():
                result = post_mortem(rank, num_oom_kills() > self.oom_kills)
                write_json_aside(rank.result_file, to_json(result))


def _heard(rank: RankHandle) -> bool:
    """True while the rank is there, its messages taken in."""
    for message in rank.channel.receive_available():
        if message["event"] == "ready":
            rank.ready = message
        elif message["event"] == "sampled":
            rank.num_sampled += 1
    return not rank.channel.closed
