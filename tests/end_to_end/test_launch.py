"""`corewise launch` with real commands: placement, environment, output, exit codes and signals."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .conftest import Bench

TWO = ("-p", "2", "-t", "1", "--oversubscribe")
CPUS = sorted(os.sched_getaffinity(0))
needs_two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")

REPORT = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "COREWISE_RANK")
variables = {name: os.environ.get(name) for name in names}
print(json.dumps({"cpus": sorted(os.sched_getaffinity(0)), **variables}))
"""


def launch(bench: Bench, *arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
    given = {"stdin": subprocess.DEVNULL, "capture_output": True, "errors": "replace", "timeout": 120, **options}
    return subprocess.run(bench.build_command("launch", *arguments), cwd=bench.folder, env=bench.env, **given)  # type: ignore[call-overload,no-any-return]


def parse_reports(done: "subprocess.CompletedProcess[str]") -> list[dict[str, object]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line.partition("] ")[2] or line) for line in sorted(done.stdout.splitlines())]


@contextmanager
def start_launch(bench: Bench, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a launch and wait until its command has printed its first line."""
    process = subprocess.Popen(
        bench.build_command("launch", *arguments),
        cwd=bench.folder,
        env=bench.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first, process.communicate()
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def write_script(bench: Bench, code: str, name: str = "command.py") -> list[str]:
    (bench.folder / name).write_text(code)
    return ["--", sys.executable, name]


# Placement and environment


@needs_two_cpus
def test_ranks_get_separate_cpus_and_the_variables_of_torchrun(bench: Bench) -> None:
    first, second = parse_reports(launch(bench, "--processes", "2", "--threads", "1", *write_script(bench, REPORT)))
    assert not set(first["cpus"]) & set(second["cpus"])  # type: ignore[call-overload]
    assert {*first["cpus"], *second["cpus"]} <= set(CPUS)  # type: ignore[misc]
    assert [first["RANK"], second["RANK"], first["WORLD_SIZE"], second["LOCAL_RANK"]] == ["0", "1", "2", "1"]
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    assert first["OMP_NUM_THREADS"] == "1"


@needs_two_cpus
def test_a_launch_stays_within_the_affinity_it_was_given(bench: Bench) -> None:
    last = CPUS[-1]
    done = launch(bench, *write_script(bench, REPORT), preexec_fn=lambda: os.sched_setaffinity(0, {last}))
    [only] = parse_reports(done)
    assert (only["cpus"], only["OMP_NUM_THREADS"]) == ([last], "1")


def test_a_single_command_gets_no_rendezvous(bench: Bench) -> None:
    [plain] = parse_reports(launch(bench, *write_script(bench, REPORT)))
    assert (plain["RANK"], plain["COREWISE_RANK"]) == (None, "0")
    [one] = parse_reports(launch(bench, "--processes", "1", *write_script(bench, REPORT)))
    assert (one["RANK"], one["WORLD_SIZE"], one["MASTER_PORT"]) == (None, None, None)
    [asked] = parse_reports(launch(bench, "--processes", "1", "--rendezvous", *write_script(bench, REPORT)))
    assert (asked["RANK"], asked["WORLD_SIZE"]) == ("0", "1")


def test_replicas_get_only_their_number(bench: Bench) -> None:
    replicas = parse_reports(launch(bench, *TWO, "--replicas", *write_script(bench, REPORT)))
    assert [(each["RANK"], each["COREWISE_RANK"]) for each in replicas] == [(None, "0"), (None, "1")]


def test_one_process_under_another_launcher_keeps_its_rank(bench: Bench) -> None:
    outer = {"RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "head", "MASTER_PORT": "29500"}
    arguments = bench.build_command("launch", "--processes", "1", *write_script(bench, REPORT))
    done = subprocess.run(
        arguments, cwd=bench.folder, env={**bench.env, **outer}, capture_output=True, text=True, timeout=60
    )
    [only] = parse_reports(done)
    assert {name: only[name] for name in outer} == outer


def test_variables_of_the_user_are_overridden_with_a_message_or_kept(bench: Bench) -> None:
    env = {**bench.env, "OMP_NUM_THREADS": "77", "KMP_BLOCKTIME": "0"}
    for option, threads, has_message in (("--quiet", "1", False), ("--verify", "1", True), ("--keep-env", "77", False)):
        arguments = bench.build_command("launch", "-t", "1", option, *write_script(bench, REPORT))
        done = subprocess.run(arguments, cwd=bench.folder, env=env, capture_output=True, text=True, timeout=60)
        assert parse_reports(done)[0]["OMP_NUM_THREADS"] == threads
        assert ("overrides KMP_BLOCKTIME=0 (now unset), OMP_NUM_THREADS=77 (now 1)" in done.stderr) == has_message


def test_the_line_of_a_dry_run_has_the_same_effect(bench: Bench, need: Callable[[bool, str], None]) -> None:
    need(Path("/usr/bin/taskset").exists(), "taskset")
    # Each test process uses another port, below the range that the kernel assigns.
    port = str(20_000 + os.getpid() % 10_000)
    arguments = ["-p", "1", "-t", "1", "--master-port", port, *write_script(bench, REPORT)]
    dry = launch(bench, "--dry-run", *arguments)
    by_shell = subprocess.run(
        dry.stdout, shell=True, cwd=bench.folder, env=bench.env, capture_output=True, text=True, timeout=60
    )
    assert parse_reports(by_shell) == parse_reports(launch(bench, *arguments))


@pytest.mark.parametrize("policy", ["default", "local", "interleave"])
def test_the_memory_policy_holds_in_the_command(policy: str, bench: Bench) -> None:
    code = "from corewise.measured.pinning import read_memory_policy; print(read_memory_policy()[0])"
    done = launch(bench, "--memory-policy", policy, *write_script(bench, code))
    if "cannot set the memory policy" in done.stderr:
        pytest.skip(done.stderr)
    assert done.stdout.strip() == policy, done.stderr


@pytest.mark.parametrize("allocator", ["tcmalloc", "jemalloc"])
def test_an_allocator_is_loaded_into_the_command(
    allocator: str, bench: Bench, need: Callable[[bool, str], None]
) -> None:
    from corewise.machine.software import find_library

    need(find_library(allocator) is not None, allocator)
    maps = write_script(bench, "print(open('/proc/self/maps').read())")
    assert f"lib{allocator}" in launch(bench, "--allocator", allocator, *maps).stdout


HUGE = """
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
ctypes.memset(libc.malloc(ctypes.c_size_t(64 << 20)), 1, 64 << 20)
print(sum(int(line.split()[1]) for line in open("/proc/self/smaps") if line.startswith("AnonHugePages")))
"""


def test_huge_pages_are_used(bench: Bench, need: Callable[[bool, str], None]) -> None:
    from corewise.cli.launching.settings import MIN_GLIBC, TRANSPARENT_HUGE_PAGES
    from corewise.machine.software import read_glibc_version

    version = tuple(map(int, (read_glibc_version() or "0").split(".")[:2]))
    modes = TRANSPARENT_HUGE_PAGES.read_text() if TRANSPARENT_HUGE_PAGES.exists() else "[never]"
    if "[madvise]" not in modes or version < MIN_GLIBC:
        pytest.skip(f"glibc {version}, huge pages {modes}")
    done = launch(bench, "--huge-pages", "transparent", *write_script(bench, HUGE))
    assert int(done.stdout) >= 32 << 10, done.stderr
    assert int(launch(bench, *write_script(bench, HUGE)).stdout) == 0


# Errors


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "no command to launch"),
        (["--", "no-such-command"], 127, "no-such-command: command not found"),
        (["--", "./no/such"], 127, "./no/such: no such file"),
        (["--", "/etc/passwd"], 126, "/etc/passwd: not executable"),
        (["--", "/tmp"], 126, "/tmp: is a directory"),
        (["-p", "0", "--", "true"], 2, "0 processes: at least 1 needed"),
        (["-t", "-1", "--", "true"], 2, "-1 threads: at least 1 needed"),
        (["-p", "999", "-t", "9", "--", "true"], 2, "999 processes × 9 threads need 8991 cores; the allocation has"),
        (["--policy", "compct", "--", "true"], 2, "did you mean 'compact'?"),
        (["--config", "none.yaml", "--", "true"], 2, "none.yaml: cannot be read"),
        (["--adapt", "--", "true"], 2, "--adapt needs a tuned file; name it with --config"),
        (["--openmp", "libiomp5", "--", "true"], 2, "--openmp libiomp5: not installed here; pip install"),
        (["--log-dir", "/proc/none", "--", "true"], 2, "--log-dir /proc/none"),
        (["--json", "/none/out.json", "--", "true"], 2, "--json /none/out.json: no file can be written there"),
        (["--", "echo a"], 127, "echo a: command not found; check its name, and PATH (pass the"),
        (["--json", "/tmp", "--", "true"], 2, "--json /tmp: no file can be written there"),
        (["-p", "1", "--master-port", "99999", "--", "true"], 2, "--master-port 99999"),
    ],
)
def test_errors_are_reported(arguments: list[str], code: int, message: str, bench: Bench) -> None:
    done = launch(bench, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_script_without_an_interpreter_line_is_reported(bench: Bench) -> None:
    script = bench.folder / "script"
    script.write_text("echo hello\n")
    script.chmod(0o755)
    done = launch(bench, "--", "./script")
    assert done.returncode == 126
    assert "rank 0 could not start: ./script: Exec format error; does its first line lack a #!" in done.stderr


# Output


@pytest.mark.slow
def test_one_process_has_our_descriptors_and_its_output_is_untouched(bench: Bench) -> None:
    code = "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data + b'\\0\\xff no newline')"
    arguments = bench.build_command("launch", *write_script(bench, code))
    done = subprocess.run(arguments, cwd=bench.folder, env=bench.env, input=b"in\n", capture_output=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == (b"in\n\0\xff no newline", b"", 0)


def test_lines_of_ranks_are_prefixed_and_never_torn(bench: Bench) -> None:
    code = (
        "import os, sys\n"
        "r = os.environ['RANK']\n"
        "for i in range(2000):\n"
        "    for part in (r * 50, ' ', str(i)): sys.stdout.write(part); sys.stdout.flush()\n"
        "    print()\n"
        "print('z' * 300_000)\n"
        "print('end', end='')\n"
    )
    done = launch(bench, *TWO, *write_script(bench, code))
    assert done.returncode == 0, done.stderr
    for rank in "01":
        mine = [line for line in done.stdout.splitlines() if line.startswith(f"[{rank}] ")]
        assert mine == [
            *(f"[{rank}] {rank * 50} {i}" for i in range(2000)),
            f"[{rank}] {'z' * 300_000}",
            f"[{rank}] end",
        ]
    assert len(done.stdout.splitlines()) == 4004


def test_output_and_error_of_ranks_are_separate(bench: Bench) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr)"
    done = launch(bench, *TWO, *write_script(bench, code))
    assert sorted(done.stdout.splitlines()) == ["[0] out", "[1] out"]
    assert sorted(done.stderr.splitlines()) == ["[0] err", "[1] err"]
    plain = launch(bench, *TWO, "--no-prefix", *write_script(bench, code))
    assert plain.stdout == "out\nout\n"


def test_each_rank_has_a_log(bench: Bench) -> None:
    code = "import os; os.write(1, b'a\\rb\\n'); os.write(2, b'\\xff' + os.environ['COREWISE_RANK'].encode())"
    done = launch(bench, *TWO, "--log-dir", "logs/deep", *write_script(bench, code))
    assert done.returncode == 0, done.stderr
    logs = sorted((bench.folder / "logs/deep").iterdir())
    assert [log.name for log in logs] == ["rank-0.log", "rank-1.log"]
    assert [sorted(log.read_bytes()) for log in logs] == [sorted(b"a\rb\n\xff" + n) for n in (b"0", b"1")]
    alone = launch(bench, "--log-dir", "alone", "--", "echo", "hello")
    assert alone.stdout == (bench.folder / "alone/rank-0.log").read_text() == "hello\n"


def test_only_rank_0_reads_standard_input(bench: Bench) -> None:
    code = "import sys; print(repr(sys.stdin.read()))"
    arguments = bench.build_command("launch", *TWO, *write_script(bench, code))
    done = subprocess.run(
        arguments, cwd=bench.folder, env=bench.env, input="data", capture_output=True, text=True, timeout=60
    )
    assert sorted(done.stdout.splitlines()) == ["[0] 'data'", "[1] ''"]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("-t", "1"), TWO], ids=["one", "two"])
def test_closing_the_output_ends_the_launch(arguments: tuple[str, ...], bench: Bench) -> None:
    command = " ".join([*bench.build_command("launch", *arguments), "--", "yes", "|", "head", "-n1"])
    done = subprocess.run(
        ["bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"],
        cwd=bench.folder,
        env=bench.env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    first, code = done.stdout.splitlines()
    assert first.endswith("y")
    assert code == str(128 + signal.SIGPIPE)
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_closed_descriptors_are_handled(bench: Bench) -> None:
    line = " ".join(
        bench.build_command("launch", *TWO, "--log-dir", "logs", "--", "echo", "hello", "<&-", ">&-", "2>&-")
    )
    done = subprocess.run(["bash", "-c", line], cwd=bench.folder, env=bench.env, timeout=60)
    assert done.returncode == 0
    assert (bench.folder / "logs/rank-1.log").read_text() == "hello\n"


# Ending


def test_the_rank_that_failed_first_is_named_and_its_code_returned(bench: Bench) -> None:
    code = "import os, time, sys\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(50)"
    done = launch(bench, *TWO, *write_script(bench, code))
    assert done.returncode == 7
    assert "corewise: rank 1 failed first, after" in done.stderr
    assert "exit code 7; rank 0 ended with it" in done.stderr


def test_the_exit_code_of_a_signal_is_128_plus_its_number(bench: Bench) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    done = launch(bench, *write_script(bench, code))
    assert (done.returncode, done.stderr) == (139, "corewise: the command was killed by SIGSEGV\n")


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace_period(bench: Bench) -> None:
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: open('terminated', 'w').close())\n"
        "if os.environ['RANK'] == '0':\n"
        "    while not os.path.exists('ready'): time.sleep(0.01)\n"
        "    os._exit(3)\n"
        "open('ready', 'w').close()\n"
        "while True: time.sleep(0.1)\n"
    )
    # A busy machine calls signal handlers late.
    done = launch(bench, *TWO, "--grace", "2s", *write_script(bench, code))
    assert done.returncode == 3
    assert (bench.folder / "terminated").exists()
    assert "rank 1 ended with it (rank 1 killed after 2 s of grace)" in done.stderr


@pytest.mark.slow
def test_a_rank_that_succeeds_does_not_end_the_others(bench: Bench) -> None:
    code = "import os, time\nif os.environ['RANK'] == '1': time.sleep(0.5); print('done')"
    done = launch(bench, *TWO, *write_script(bench, code))
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1] done\n", "")


PRINT_SIGNALS = """
import os, signal, sys, time
def print_signal(number, frame):
    os.write(1, f"got {signal.Signals(number).name}".encode() + bytes([10]))
    if number == signal.SIGTERM: sys.exit(0)
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, print_signal)
print("ready", flush=True)
while True: time.sleep(0.05)
"""


@pytest.mark.parametrize("arguments", [("-t", "1"), TWO], ids=["one", "two"])
def test_signals_are_forwarded_to_every_rank(arguments: tuple[str, ...], bench: Bench) -> None:
    num_ranks = 2 if arguments == TWO else 1
    with start_launch(bench, *arguments, *write_script(bench, PRINT_SIGNALS)) as process:
        assert process.stdout is not None
        if num_ranks == 2:
            assert process.stdout.readline().endswith("ready\n")
        for name in ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGTERM"):
            process.send_signal(signal.Signals[name])
            lines = {process.stdout.readline() for _ in range(num_ranks)}
            prefixes = ("[0] ", "[1] ") if num_ranks == 2 else ("",)
            assert lines == {f"{prefix}got {name}\n" for prefix in prefixes}
        assert process.wait(timeout=60) == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ranks_killed_by_a_forwarded_signal_give_its_code(number: signal.Signals, bench: Bench) -> None:
    with start_launch(bench, *TWO, "--", "sh", "-c", "echo ready; exec sleep 50") as process:
        assert process.stdout is not None
        # Skip the line of the other rank.
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(timeout=60) == 128 + number
        assert process.stderr is not None
        assert process.stderr.read() == ""


RELOADS = """
trap "echo reloaded" HUP
echo ready
while [ ! -e go ] || [ $COREWISE_RANK = 1 ]; do sleep 0.05; done
exit 3
"""


@pytest.mark.slow
def test_a_failure_long_after_a_survived_signal_is_reported(bench: Bench) -> None:
    with start_launch(bench, *TWO, "--grace", "100ms", "--", "sh", "-c", RELOADS) as process:
        assert process.stdout is not None
        # Skip the line of the other rank.
        process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        for _ in range(2):
            assert "reloaded" in process.stdout.readline()
        time.sleep(0.2)
        (bench.folder / "go").touch()
        assert process.wait(timeout=60) == 3
        assert process.stderr is not None
        assert "rank 0 failed first" in process.stderr.read()


@pytest.mark.slow
def test_an_ignored_signal_is_not_forwarded(bench: Bench) -> None:
    arguments = bench.build_command("launch", *TWO, *write_script(bench, PRINT_SIGNALS))
    process = subprocess.Popen(
        ["nohup", *arguments],
        cwd=bench.folder,
        env=bench.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    lines += process.communicate(timeout=60)[0].splitlines()
    assert {line.strip()[4:] for line in lines} == {"ready", "got SIGTERM"}


# Verifying


# Waits until `--verify` has observed the rank. Its parent observes it and sleeps in between.
WAIT_FOR_OBSERVATION = """
import os, time
def count_sleeps():
    status = open(f"/proc/{os.getppid()}/status").read()
    return int(status.partition("\\nvoluntary_ctxt_switches:")[2].split()[0])
def wait_until_observed():
    before = count_sleeps()
    while count_sleeps() < before + 3:
        time.sleep(0.01)
"""


def test_verify_observes_every_thread_and_process(bench: Bench) -> None:
    code = WAIT_FOR_OBSERVATION + (
        "import subprocess, threading\n"
        "is_observed = threading.Event()\n"
        "[threading.Thread(target=is_observed.wait).start() for _ in range(3)]\n"
        "sleeper = subprocess.Popen(['sleep', '600'])\n"
        "wait_until_observed()\n"
        "is_observed.set(); sleeper.kill(); sleeper.wait()\n"
    )
    done = launch(bench, *TWO, "--verify", "--json", "out.json", *write_script(bench, code))
    assert done.returncode == 0, done.stderr
    assert "every thread stayed within its rank's CPUs" in done.stderr
    out = json.loads((bench.folder / "out.json").read_text())
    assert [(rank["threads"], rank["processes"]) for rank in out["verify"]["ranks"]] == [(5, 2), (5, 2)]
    assert [rank["exit_code"] for rank in out["ranks"]] == [0, 0]
    assert all(set(seen["ran_on"]) <= set(seen["cpus"]) for seen in out["verify"]["ranks"])


@needs_two_cpus
def test_verify_names_a_thread_outside_its_cpus(bench: Bench) -> None:
    code = WAIT_FOR_OBSERVATION + (
        "import threading\n"
        "def leave_cpus():\n"
        f"    os.sched_setaffinity(threading.get_native_id(), {{{CPUS[1]}}})\n"
        "    wait_until_observed()\n"
        "thread = threading.Thread(target=leave_cpus); thread.start()\n"
        "print(thread.native_id); thread.join()\n"
    )
    done = launch(bench, "-t", "1", "--verify", *write_script(bench, code))
    assert done.returncode == 1
    assert "some threads ran outside their rank's CPUs" in done.stderr
    thread = f"rank 0: thread {done.stdout.strip()} ("
    assert thread in done.stderr
    assert f"may run on {CPUS[1]}, outside {CPUS[0]}" in done.stderr
    unobserved = code.replace("    wait_until_observed()", "    pass")
    assert launch(bench, "-t", "1", *write_script(bench, unobserved)).returncode == 0


def test_verify_observes_even_the_shortest_command(bench: Bench) -> None:
    done = launch(bench, *TWO, "--verify", "--", "true")
    assert done.returncode == 0, done.stderr


def test_a_failed_command_keeps_its_code_under_verify(bench: Bench) -> None:
    assert launch(bench, "--verify", "--", "sh", "-c", "exit 9").returncode == 9


# Sleeping


@pytest.mark.slow
def test_both_guards_sleep_while_the_command_is_quiet(bench: Bench) -> None:
    with start_launch(bench, *TWO, "--", "sh", "-c", "echo ready; exec sleep 50") as process:
        assert process.stdout is not None
        process.stdout.readline()
        guards = (process.pid, *_find_children(process.pid))
        assert len(guards) == 2
        before, now = None, [_count_wakes(pid) for pid in guards]
        until = time.monotonic() + 20
        # Processes that have just started may still have work to do.
        while now != before and time.monotonic() < until:
            time.sleep(1.0)
            before, now = now, [_count_wakes(pid) for pid in guards]
        assert now == before


def _count_wakes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return sum(int(line.split()[1]) for line in status.splitlines() if "_ctxt_switches" in line)


def _find_children(pid: int) -> list[int]:
    from corewise.measured.worker.descendants import read_parents

    return [child for child, parent in read_parents().items() if parent == pid]


def test_launch_imports_no_library_of_the_other_verbs(bench: Bench) -> None:
    arguments = [sys.executable, "-X", "importtime", "-m", "corewise", "launch", "--", "true"]
    done = subprocess.run(arguments, env=bench.env, capture_output=True, text=True, timeout=60)
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "typer" in loaded
    assert not loaded & {"rich", "yaml", "numpy", "scipy", "duckdb", "archspec", "orjson"}


def test_help_is_shown_for_launch_and_not_for_the_command(bench: Bench) -> None:
    done = launch(bench, "--help")
    assert done.returncode == 0
    assert "--processes" in done.stdout
    done = launch(bench, *TWO, "--dry-run", "--", "echo", "-h")
    assert [line.endswith(" echo -h") for line in done.stdout.splitlines()] == [True, True]
