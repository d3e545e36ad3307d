"""The shared segment: for its user alone, within the limit of the cgroup, gone with its ranks."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from corewise.accelerate.collectives.node_segment import SegmentServer, receive_segment
from corewise.accelerate.unsupported import Unsupported

STRANGER = 65534
Need = Callable[[bool, str], None]


def serve_in_background(server: SegmentServer, timeout_s: float) -> tuple[threading.Thread, list[Unsupported]]:
    problems: list[Unsupported] = []

    def serve() -> None:
        try:
            server.serve(1, timeout_s)
        except Unsupported as problem:
            problems.append(problem)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread, problems


def test_the_same_user_receives_the_segment() -> None:
    server = SegmentServer(4096)
    thread, problems = serve_in_background(server, 30)
    descriptor = receive_segment(server.name, 30)
    thread.join()
    assert not problems
    assert os.fstat(descriptor).st_ino == os.fstat(server.descriptor).st_ino
    assert os.fstat(descriptor).st_mode & 0o777 == 0o600
    os.close(descriptor)
    os.close(server.descriptor)


def test_another_user_receives_nothing(need: Need) -> None:
    need(os.geteuid() == 0, "only root can start processes of another user")
    server = SegmentServer(4096)
    thread, problems = serve_in_background(server, 5)
    code = f"""if True:
        import os, socket
        os.setuid({STRANGER})
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect("\\0corewise-{server.name}")
            print(len(socket.recv_fds(connection, 1, 1)[1]))
        try:
            os.open("/proc/{os.getpid()}/fd/{server.descriptor}", os.O_RDWR)
        except PermissionError:
            print("refused")
        """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    thread.join()
    assert done.stdout.split() == ["0", "refused"]
    assert "did not ask" in str(problems[0])
    os.close(server.descriptor)


def test_no_rank_waits_for_a_first_rank_that_is_gone() -> None:
    server = SegmentServer(4096)
    with pytest.raises(Unsupported, match="1 ranks did not ask"):
        server.serve(1, 0.01)
    os.close(server.descriptor)
    with pytest.raises(ConnectionRefusedError):
        receive_segment(server.name, 1)


@pytest.mark.slow
def test_a_segment_beyond_the_limit_of_the_cgroup_is_refused(need: Need) -> None:
    old, new = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    root, limit = (old, "memory.limit_in_bytes") if old.is_dir() else (new, "memory.max")
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line.split(":", 2)[2] for line in lines if line.split(":")[1] in ("memory", "")), "/")
    folder = Path(f"{root}{own}") / f"corewise-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(512 << 20))
    except OSError as problem:
        need(False, f"no cgroup can be made: {problem}")
    code = f"""if True:
        from pathlib import Path
        Path("{folder}/cgroup.procs").write_text("0")
        from corewise.accelerate.collectives.node_segment import explain_missing_memory
        print(explain_missing_memory(64 << 20) or "enough")
        print(explain_missing_memory(1 << 30))
        """
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    finally:
        folder.rmdir()
    first, second = done.stdout.splitlines()
    assert first == "enough"
    assert "the shared segment needs 1024 MB" in second
