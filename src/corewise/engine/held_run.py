"""A trial whose ranks stay alive between samplings: what a race between candidates is made of."""

import os
import selectors
import signal
import time
from contextlib import suppress
from pathlib import Path

from corewise.engine.collect import collect_run
from corewise.engine.warm_parent import ANSWER_GRACE_S, ParentFailed, WarmParent, read_result
from corewise.spec.run import Run
from corewise.spec.trial import Trial
from corewise.worker.channel import Channel
from corewise.worker.held import FROM_KEEPER, TO_KEEPER
from corewise.worker.rank import segment_file


class HeldRun:
    """One started run; `sample` may be called again and again, other held runs standing still meanwhile."""

    def __init__(self, parent: WarmParent, trial: Trial, trial_file: Path, folder: Path) -> None:
        self.trial, self.folder = trial, folder
        self.num_samplings = 0
        self.ended: Run | None = None  # why it cannot be sampled any more
        folder.mkdir(parents=True, exist_ok=True)
        for name in (TO_KEEPER, FROM_KEEPER):
            os.mkfifo(folder / name)
        self._pid = parent.hold(trial_file, folder)
        self._channel = self._open(trial.protocol.timeout_s)

    def _open(self, limit_s: float) -> Channel:
        # The keeper opens both pipes too; neither open waits, so that a dead keeper cannot hang us.
        read_fd = os.open(self.folder / FROM_KEEPER, os.O_RDONLY | os.O_NONBLOCK)
        until = time.monotonic() + limit_s
        while True:
            try:
                write_fd = os.open(self.folder / TO_KEEPER, os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError:  # not opened there yet
                if time.monotonic() > until:
                    os.close(read_fd)
                    raise ParentFailed("crash", "the keeper of a held run did not start") from None
                time.sleep(0.001)
        for fd in (read_fd, write_fd):
            os.set_blocking(fd, True)
        return Channel(read_fd, write_fd)

    def wait_until_ready(self) -> Run | None:
        """None once the ranks are checked and warm and stand still; else the run that failed."""
        return self._answered("ready")

    def sample(self, sample_s: float, min_samples: int = 3) -> Run:
        """What one more sampling gave, or the run that failed."""
        if self.ended is not None:
            return self.ended
        self._channel.send(cmd="sample", sample_s=sample_s, min_samples=min_samples)
        failed = self._answered("sampled")
        if failed is not None:
            return failed
        number, self.num_samplings = self.num_samplings, self.num_samplings + 1
        files = [segment_file(self._result_file(rank), number) for rank in range(self.trial.num_ranks)]
        return collect_run(self.trial, [read_result(path, rank) for rank, path in enumerate(files)])

    def close(self) -> None:
        """End the ranks."""
        if self.ended is None:
            self._channel.send(cmd="end")
            self._answered("done")
        self._channel.close()

    def kill(self) -> None:
        """End the ranks at once; the kernel kills them when their keeper dies."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self.ended = self.ended or Run(status="failed", kind="stopped", reason="the run was stopped")
        self._channel.close()

    def _result_file(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.json"

    def _answered(self, event: str) -> Run | None:
        """None when the keeper answered so; else why the run has ended."""
        if self.ended is not None:
            return self.ended
        until = time.monotonic() + 2 * self.trial.protocol.timeout_s + ANSWER_GRACE_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel.read_fd, selectors.EVENT_READ)
            while selector.select(max(0.0, until - time.monotonic())):
                for message in self._channel.receive_available():
                    if message["event"] == event:
                        return None
                    if message["event"] == "done":
                        self.ended = self._post_mortem()
                        return self.ended
                if self._channel.closed:
                    self.ended = Run(
                        status="failed", kind="crash", reason="the keeper of a held run has died"
                    )
                    return self.ended
        self.kill()
        return self.ended

    def _post_mortem(self) -> Run:
        results = [read_result(self._result_file(rank), rank) for rank in range(self.trial.num_ranks)]
        run = collect_run(self.trial, results)
        if run.status == "ok":
            return Run(status="failed", kind="stopped", reason="the run has ended")
        return run
