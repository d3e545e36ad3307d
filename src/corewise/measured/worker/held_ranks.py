"""Keep a run alive between samplings, so that each candidate of a search pays its start-up only once.

The warm parent forks a keeper for each such run. The keeper forks the ranks, stops them between samplings (a
stopped process cannot spin on the cores of others) and answers the control side over two named pipes.

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
from typing import Any, Callable, Mapping, Optional

from corewise import process_control
from corewise.measured.trial import Trial, to_json, write_json_atomically
from corewise.measured.worker.control_pipe import Channel
from corewise.measured.worker.descendants import end_leftovers
from corewise.measured.worker.sampling import plan_sampling
from corewise.measured.worker.zygote import (
    GRACE_PERIOD_S,
    RankHandle,
    Zygote,
    count_oom_kills,
    create_rendezvous_folder,
    explain_death,
    kill_all,
    reap,
    wait_for_end,
)

TO_KEEPER, FROM_KEEPER = "to-keeper", "from-keeper"
STOPPED = "the run was stopped"


def start_keeper(zygote: Zygote, trial: Trial, folder: Path, asked_at_ns: int) -> int:
    """Fork a keeper that answers over the two named pipes in `folder`; return its process id."""
    zygote.warm_for(trial)
    parent_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            process_control.end_with_parent(parent_pid)
            process_control.adopt_orphans()
            process_control.set_process_name("cw-keeper")
            read_fd = os.open(str(folder / TO_KEEPER), os.O_RDONLY)
            write_fd = os.open(str(folder / FROM_KEEPER), os.O_WRONLY)
            _HeldRun(zygote, trial, folder, asked_at_ns, Channel(read_fd, write_fd)).serve()
        finally:
            os._exit(0)
    return pid


class _HeldRun:
    """The ranks of one run, sampled on command of the control side."""

    def __init__(self, zygote: Zygote, trial: Trial, folder: Path, asked_at_ns: int, control: Channel) -> None:
        self.trial, self.control = trial, control
        self.num_samplings = 0
        self.oom_kills = count_oom_kills()
        self.rendezvous = create_rendezvous_folder()
        self.ranks = zygote.start_ranks(trial, self.rendezvous, folder, asked_at_ns, held=True)

    def serve(self) -> None:
        """Answer until the control side ends the run or a rank fails, and leave a result file per rank."""
        alive = self._wait(self._is_ready)
        event = "ready"
        while alive:
            self._send_signal(signal.SIGSTOP)
            self.control.send(event=event)
            message = self.control.receive()
            if message is None:
                kill_all(self.ranks, "stopped", STOPPED)
                break
            self._send_signal(signal.SIGCONT)
            if message["cmd"] != "sample":
                self._send_all(cmd="end")
                break
            alive = self._sample(message)
            event = "sampled"
        self._finish("stopped" if alive else "peer")
        self.control.send(event="done")

    def _sample(self, message: Mapping[str, Any]) -> bool:
        """Take one sampling; return whether every rank has written its samples."""
        if self.num_samplings > 0:
            self._send_all(cmd="wake")
            if not self._wait(self._is_ready, message.get("limit_s")):
                return False
        protocol = dataclasses.replace(
            self.trial.protocol, min_sample_s=float(message["sample_s"]), min_samples=int(message["min_samples"])
        )
        ready = [rank.ready for rank in self.ranks if rank.ready is not None]
        plan = plan_sampling(protocol, [each["expected_s"] for each in ready], bool(ready[0]["independent"]))
        self.num_samplings += 1
        for rank in self.ranks:
            rank.ready = None
        self._send_all(**plan.to_message())
        return self._wait(
            lambda: all(rank.num_sampled == self.num_samplings for rank in self.ranks), message.get("limit_s")
        )

    def _is_ready(self) -> bool:
        return all(rank.ready is not None for rank in self.ranks)

    def _send_all(self, **message: Any) -> None:
        for rank in self.ranks:
            rank.channel.send(**message)

    def _send_signal(self, number: int) -> None:
        for rank in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.pid, number)

    def _wait(self, done: Callable[[], bool], limit_s: Optional[float] = None) -> bool:
        """Wait for `done`; return False if a rank or the control side ends the run, or at the time limit."""
        limit_s = min(self.trial.protocol.timeout_s, limit_s or float("inf"))
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            selector.register(self.control.read_fd, selectors.EVENT_READ)
            for rank in self.ranks:
                for fd in rank.open_watches(stack):
                    selector.register(fd, selectors.EVENT_READ, rank)
            while not done():
                events = selector.select(max(0.0, deadline - time.monotonic()))
                # The control side waits for our answer, unless it ends the run.
                if any(key.data is None for key, _ in events):
                    kill_all(self.ranks, "stopped", STOPPED)
                    return False
                if not events:
                    reason = f"no result within {limit_s:g} s (protocol.timeout_s); killed"
                    kill_all(self.ranks, "timeout", reason)
                    return False
                if not all(_receive_messages(key.data) for key, _ in events if key.fd == key.data.channel.read_fd):
                    return False
                if any(key.fd != key.data.channel.read_fd for key, _ in events):
                    return False
        return True

    def _finish(self, category: str) -> None:
        reasons = {"stopped": STOPPED, "peer": "another rank of this run failed"}
        for rank in self.ranks:
            if not wait_for_end(rank, GRACE_PERIOD_S):
                rank.kill(category, reasons[category])
            reap(rank)
            rank.channel.close()
        end_leftovers()
        shutil.rmtree(self.rendezvous, ignore_errors=True)
        for rank in self.ranks:
            if not rank.result_file.exists():
                result = explain_death(rank, count_oom_kills() > self.oom_kills)
                write_json_atomically(rank.result_file, to_json(result))


def _receive_messages(rank: RankHandle) -> bool:
    """Store the messages of the rank; return False if it has ended."""
    for message in rank.channel.receive_available():
        if message["event"] == "ready":
            rank.ready = message
        elif message["event"] == "sampled":
            rank.num_sampled += 1
    return not rank.channel.closed
