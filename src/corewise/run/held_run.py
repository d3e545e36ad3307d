"""A run whose ranks stay alive between samplings, so candidates can be sampled in alternation."""

import os
import selectors
import signal
import time
from pathlib import Path

from corewise.measured.trial import Trial
from corewise.measured.worker.control_pipe import Channel
from corewise.measured.worker.descendants import find_descendants, read_parents, send_signal
from corewise.measured.worker.held_ranks import FROM_KEEPER, STOPPED, TO_KEEPER
from corewise.measured.worker.rank import build_segment_path
from corewise.run.rank_results import read_result
from corewise.run.run_collector import collect_run
from corewise.run.warm_parent import ANSWER_GRACE_S, ParentFailure, WarmParent
from corewise.study.trial_run import TrialRun

# A keeper that needs longer than this to kill its ranks is killed too.
KILL_LIMIT_S = 5.0


class HeldRun:
    """A started run that can be sampled repeatedly; other held runs stand still meanwhile."""

    def __init__(self, parent: WarmParent, trial: Trial, folder: Path) -> None:
        self.trial, self.folder = trial, folder
        self.num_samplings = 0
        # Set when the run has ended and cannot be sampled any more.
        self.failure: TrialRun | None = None
        folder.mkdir(parents=True, exist_ok=True)
        for name in (TO_KEEPER, FROM_KEEPER):
            os.mkfifo(folder / name)
        self._pid = parent.start_held_run(trial, folder)
        self._channel = self._open_channel(trial.protocol.timeout_s)

    def _open_channel(self, limit_s: float) -> Channel:
        # The keeper opens both pipes too. Neither open blocks, so a dead keeper cannot hang us.
        read_fd = os.open(self.folder / FROM_KEEPER, os.O_RDONLY | os.O_NONBLOCK)
        until = time.monotonic() + limit_s
        while True:
            try:
                write_fd = os.open(self.folder / TO_KEEPER, os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError:
                # The keeper has not opened the pipe yet.
                if time.monotonic() > until:
                    os.close(read_fd)
                    raise ParentFailure("crash", "the keeper of a held run did not start") from None
                time.sleep(0.001)
        for fd in (read_fd, write_fd):
            os.set_blocking(fd, True)
        return Channel(read_fd, write_fd)

    def wait_until_ready(self) -> TrialRun | None:
        """Wait until the ranks are checked, warm and standing still; return the failed run otherwise."""
        return self._wait_for("ready")

    def sample(self, sample_s: float, min_samples: int = 3, limit_s: float | None = None) -> TrialRun:
        """Sample once more within the time limit and return the result, or the failed run."""
        if self.failure is not None:
            return self.failure
        self._channel.send(cmd="sample", sample_s=sample_s, min_samples=min_samples, limit_s=limit_s)
        failed = self._wait_for("sampled")
        if failed is not None:
            return failed
        number, self.num_samplings = self.num_samplings, self.num_samplings + 1
        files = [build_segment_path(self._build_result_path(rank), number) for rank in range(self.trial.num_ranks)]
        return collect_run(self.trial, [read_result(path, rank) for rank, path in enumerate(files)])

    def close(self) -> None:
        """End the ranks."""
        if self.failure is None and not self._channel.closed:
            self._channel.send(cmd="end")
            self._wait_for("done", ANSWER_GRACE_S)
        self._channel.close()

    def kill(self) -> None:
        """Kill the ranks and the processes that they left behind."""
        self.failure = self.failure or TrialRun(status="failed", kind="stopped", reason=STOPPED)
        if not self._channel.closed:
            self._end_keeper()
        self._channel.close()

    def _end_keeper(self) -> None:
        """Let the keeper kill its ranks, which it does when our end of its pipe closes; kill one that hangs."""
        self._channel.stop_sending()
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel.read_fd, selectors.EVENT_READ)
            # Its end of our pipe closes when it has ended.
            while not self._channel.closed and selector.select(KILL_LIMIT_S):
                self._channel.receive_available()
        if not self._channel.closed:
            send_signal([*find_descendants(self._pid, read_parents()), self._pid], signal.SIGKILL)

    def _build_result_path(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.json"

    def _wait_for(self, event: str, limit_s: float | None = None) -> TrialRun | None:
        """Wait for an event of the keeper; return the failed run if it ends or exceeds the limit instead."""
        if self.failure is not None:
            return self.failure
        if limit_s is None:
            limit_s = 2 * self.trial.protocol.timeout_s + ANSWER_GRACE_S
        until = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel.read_fd, selectors.EVENT_READ)
            while selector.select(max(0.0, until - time.monotonic())):
                for message in self._channel.receive_available():
                    if message["event"] == event:
                        return None
                    if message["event"] == "done":
                        self.failure = self._collect_failure()
                        return self.failure
                if self._channel.closed:
                    self.failure = TrialRun(status="failed", kind="crash", reason="the keeper of a held run has died")
                    return self.failure
        self.kill()
        return self.failure

    def _collect_failure(self) -> TrialRun:
        results = [read_result(self._build_result_path(rank), rank) for rank in range(self.trial.num_ranks)]
        run = collect_run(self.trial, results)
        if run.status == "ok":
            return TrialRun(status="failed", kind="stopped", reason="the run has ended")
        return run
