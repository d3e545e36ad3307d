"""Lines of ranks are whole and prefixed, and nothing that a rank writes can block or break the relay."""

import os
import selectors
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corewise.launch.supervision.output_streams import (
    MAX_LINE_BYTES,
    LineAssembler,
    OutputRelay,
    OutputSink,
    PassThrough,
)


def test_a_line_waits_until_it_is_whole() -> None:
    lines = LineAssembler(b"[0] ")
    assert lines.push(b"one\ntw") == b"[0] one\n"
    assert lines.push(b"o") == b""
    assert lines.push(b"\n\n") == b"[0] two\n[0] \n"
    assert lines.finish() == b""


def test_an_unfinished_last_line_is_shown_at_the_end() -> None:
    lines = LineAssembler(b"[1] ")
    lines.push(b"no newline")
    assert lines.finish() == b"[1] no newline\n"


@given(st.lists(st.binary(max_size=40)))
def test_without_a_prefix_every_byte_is_forwarded(chunks: list[bytes]) -> None:
    lines = LineAssembler(b"")
    out = b"".join(map(lines.push, chunks)) + lines.finish()
    sent = b"".join(chunks)
    assert out == sent + b"\n" * (bool(sent) and not sent.endswith(b"\n"))


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_the_result_does_not_depend_on_how_the_bytes_are_split(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    lines = LineAssembler(b"[0] ")
    pieces = [lines.push(data[a:b]) for a, b in pairwise(edges)]
    whole = LineAssembler(b"[0] ")
    assert b"".join(pieces) + lines.finish() == whole.push(data) + whole.finish()


def test_a_line_that_never_ends_is_cut() -> None:
    lines = LineAssembler(b"[0] ")
    out = b"".join(lines.push(b"x" * 60_000) for _ in range(40)) + lines.finish()
    cut = out.split(b"\n")
    assert len(cut) == 4
    assert all(len(line) <= MAX_LINE_BYTES + 70_000 for line in cut)
    assert out.count(b"x") == 40 * 60_000


def test_a_progress_bar_is_shown_as_a_line() -> None:
    lines = LineAssembler(b"[0] ")
    assert lines.push(b"\r 10%") == b""
    assert lines.push(b"\r 20%") == b""
    assert lines.has_update
    assert lines.render_update() == b"[0]  20%\n"
    assert not lines.has_update
    assert lines.push(b"\r100%\ndone\n") == b"[0] 100%\n[0] done\n"
    assert lines.finish() == b""


def test_a_progress_bar_costs_no_memory() -> None:
    lines = LineAssembler(b"[0] ")
    for _ in range(1000):
        lines.push(b"\r" + b"#" * 1000)
    assert lines.finish() == b"[0] " + b"#" * 1000 + b"\n"


def test_windows_line_ends_are_line_ends() -> None:
    assert LineAssembler(b"[0] ").push(b"one\r\ntwo\r\n") == b"[0] one\n[0] two\n"


class Wired:
    """A relay whose outputs are files or pipes of the test, with one rank's pipe."""

    def __init__(self, lines: LineAssembler | PassThrough, out_fd: int, log: Path | None = None) -> None:
        self.selector = selectors.PollSelector()
        self.relay = OutputRelay(self.selector)
        self.relay.stdout = self.relay.stderr = OutputSink(out_fd)
        read_end, self.rank = os.pipe()
        self.log = None if log is None else log.open("wb", buffering=0)
        self.relay.add(read_end, lines, self.relay.stdout, self.log)

    def turn(self) -> None:
        self.relay.check_sinks()
        self.relay.update_selector()
        for key, _ in self.selector.select(0):
            key.data()

    def close(self) -> None:
        os.close(self.rank)
        self.relay.read_remaining()
        if self.log is not None:
            self.log.close()
        self.selector.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    yield read_end, write_end
    for fd in (read_end, write_end):
        with suppress(OSError):
            os.close(fd)


def test_a_reader_that_stops_reading_blocks_nobody_but_the_rank(pipe: tuple[int, int]) -> None:
    wired = Wired(PassThrough(), pipe[1])
    os.set_blocking(wired.rank, False)
    sent = 0
    for _ in range(400):
        with suppress(BlockingIOError):
            sent += os.write(wired.rank, b"y" * 65536)
        wired.turn()
    # The rank blocks; the relay does not buffer everything.
    assert sent < 2 * 1024 * 1024
    received = 0
    while wired.relay.num_waiting_bytes or received < sent:
        with suppress(BlockingIOError):
            received += len(os.read(pipe[0], 1 << 20))
        wired.turn()
    assert received == sent
    wired.close()


def test_after_the_reader_closes_the_next_write_of_the_rank_fails(pipe: tuple[int, int]) -> None:
    wired = Wired(LineAssembler(b"[0] "), pipe[1])
    os.close(pipe[0])
    os.write(wired.rank, b"one\n")
    for _ in range(4):
        wired.turn()
    with pytest.raises(BrokenPipeError):
        os.write(wired.rank, b"two\n")
    assert wired.relay.list_problems() == []
    wired.close()


def test_logging_continues_after_the_reader_closes(pipe: tuple[int, int], tmp_path: Path) -> None:
    wired = Wired(LineAssembler(b"[0] "), pipe[1], tmp_path / "rank-0.log")
    os.close(pipe[0])
    for _ in range(4):
        os.write(wired.rank, b"a\0b\r\n")
        wired.turn()
    wired.close()
    assert (tmp_path / "rank-0.log").read_bytes() == b"a\0b\r\n" * 4


def test_a_full_disk_is_reported() -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        wired = Wired(LineAssembler(b""), full.fileno())
        os.write(wired.rank, b"one\n")
        for _ in range(3):
            wired.turn()
        assert wired.relay.list_problems() == [
            "writing to standard output failed: No space left on device",
            "writing to standard error failed: No space left on device",
        ]
        wired.close()
