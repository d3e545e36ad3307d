import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from corewise.errors import UserError
from corewise.store import leases
from corewise.store.leases import LeaseHeld, LeaseLost, acquire_lease, list_holders, read_holder
from corewise.store.process_identity import ProcessIdentity
from corewise.store.sealed_lines import seal

HOLD = """
import sys, time
from pathlib import Path
from corewise.store.leases import acquire_lease
acquire_lease(Path(sys.argv[1]), "run")
print("held", flush=True)
time.sleep(600)
"""
CONTEND = """
import sys
from pathlib import Path
from corewise.store.leases import LeaseHeld, acquire_lease
print("ready", flush=True)
sys.stdin.readline()
try:
    acquire_lease(Path(sys.argv[1]), "run")
    print("won", flush=True)
except LeaseHeld:
    print("lost", flush=True)
sys.stdin.readline()
"""


def start(script: str, folder: Path) -> subprocess.Popen:
    arguments = [sys.executable, "-c", script, str(folder)]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


@pytest.fixture
def held(tmp_path):
    process = start(HOLD, tmp_path)
    assert process.stdout.readline() == "held\n"
    yield process
    end(process)


def contend(folder: Path, num_contenders: int) -> list[str]:
    """What each of so many processes says that all ask for the lease at once and stay alive."""
    contenders = [start(CONTEND, folder) for _ in range(num_contenders)]
    for each in contenders:
        assert each.stdout.readline() == "ready\n"
    for each in contenders:
        each.stdin.write("go\n")
        each.stdin.flush()
    answers = [each.stdout.readline().strip() for each in contenders]
    for each in contenders:
        end(each)
    return answers


def foreign_lease(folder: Path, age_s: float, **changes) -> Path:
    """A lease held elsewhere whose last heartbeat is so long ago."""
    process = {**ProcessIdentity.from_current_process().__dict__, "host": "elsewhere", "boot_id": "another", **changes}
    path = folder / "run.json"
    path.write_bytes(
        seal({"schema": 1, "token": "f00", "since": "2026-11-15T10:00:00Z", "process": process, "info": {}})
    )
    now = leases.read_clock_s(folder)
    os.utime(path, (now - age_s, now - age_s))
    return path


def test_a_lease_is_held_until_it_is_released(tmp_path):
    folder = tmp_path / "leases"
    with acquire_lease(folder, "run", {"study": "hybrid"}) as lease:
        found = read_holder(folder, "run")
        assert found.process == ProcessIdentity.from_current_process()
        assert (found.token, found.info) == (lease.token, {"study": "hybrid"})
        assert os.listdir(folder) == ["run.json"]
        with pytest.raises(LeaseHeld):
            acquire_lease(folder, "run")
    assert read_holder(folder, "run") is None
    acquire_lease(folder, "run").release()
    assert os.listdir(folder) == []


def test_leases_of_different_names_do_not_meet(tmp_path):
    with acquire_lease(tmp_path, "a"), acquire_lease(tmp_path, "a.b"):
        assert [h.name for h in list_holders(tmp_path)] == ["a", "a.b"]
    assert list_holders(tmp_path / "nowhere") == []


def test_the_second_learns_who_holds_it_since_when_and_what_to_do(tmp_path, held):
    with pytest.raises(LeaseHeld) as error:
        acquire_lease(tmp_path, "run")
    text = str(error.value)
    assert isinstance(error.value, UserError)
    assert f"process {held.pid} on {os.uname().nodename} since 20" in text
    assert f"`kill {held.pid}`" in text
    assert error.value.holder.process.pid == held.pid


def test_the_lease_of_a_killed_holder_is_taken_over_even_before_it_is_reaped(tmp_path, held):
    os.kill(held.pid, signal.SIGKILL)
    os.waitid(os.P_PID, held.pid, os.WEXITED | os.WNOWAIT)  # dead, yet still a zombie
    with acquire_lease(tmp_path, "run"):
        assert read_holder(tmp_path, "run").process.pid == os.getpid()
    assert os.listdir(tmp_path) == []


def test_a_stopped_holder_is_not_dead_however_long_it_is_silent(tmp_path, held):
    os.kill(held.pid, signal.SIGSTOP)
    os.utime(tmp_path / "run.json", (1, 1))
    with pytest.raises(LeaseHeld):
        acquire_lease(tmp_path, "run")


def test_a_process_number_used_again_is_another_process(tmp_path, held):
    found = read_holder(tmp_path, "run")
    again = replace(found, process=replace(found.process, start_ticks=found.process.start_ticks - 1))
    assert not found.is_stale(now_s=0)
    assert again.is_stale(now_s=0)


def watch_heartbeat(folder: Path, seconds: float = 1000.0) -> None:
    """Try once, so that the heartbeat is known, and let time pass."""
    with pytest.raises(LeaseHeld) as held:
        acquire_lease(folder, "run")
    assert held.value.seems_dead
    for path, (beat, since_s) in leases._known_beats.items():
        leases._known_beats[path] = (beat, since_s - seconds)


def acquire_after_watching(folder: Path) -> leases.Lease:
    watch_heartbeat(folder)
    return acquire_lease(folder, "run")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"host": os.uname().nodename},
        {"boot_id": ProcessIdentity.from_current_process().boot_id, "pid_namespace": "pid:[1]"},
    ],
    ids=["another host", "this host before a reboot", "another container"],
)
def test_a_holder_elsewhere_is_stale_only_after_its_heartbeat_stops(tmp_path, changes):
    foreign_lease(tmp_path, age_s=100, pid=2**22 + 1, **changes)
    with pytest.raises(LeaseHeld, match="process 4194305 on"):
        acquire_lease(tmp_path, "run")
    foreign_lease(tmp_path, age_s=140, pid=os.getpid(), **changes)
    acquire_after_watching(tmp_path).release()


@pytest.mark.parametrize("age_s", [-86400, 86400])
def test_a_holder_with_a_wrong_clock_keeps_its_lease_while_its_heartbeat_changes(tmp_path, age_s):
    foreign_lease(tmp_path, age_s=age_s)
    watch_heartbeat(tmp_path)
    foreign_lease(tmp_path, age_s=age_s + 20)
    with pytest.raises(LeaseHeld):
        acquire_lease(tmp_path, "run")


def test_a_holder_that_only_seems_dead_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setenv(leases.STALE_VARIABLE, "0.5")
    foreign_lease(tmp_path, age_s=86400)
    waits = []
    leases.acquire_when_free(tmp_path, "run", report_waiting=lambda: waits.append(1)).release()
    assert waits
    foreign_lease(tmp_path, age_s=0)
    with pytest.raises(LeaseHeld):
        leases.acquire_when_free(tmp_path, "run")


def test_a_contender_whose_temporary_file_was_removed_writes_it_again(tmp_path, monkeypatch):
    link = os.link

    def lose_file_once(aside, path):
        monkeypatch.setattr(os, "link", link)
        os.unlink(aside)
        link(aside, path)

    monkeypatch.setattr(os, "link", lose_file_once)
    with acquire_lease(tmp_path, "run") as lease:
        assert lease.is_held()
    assert os.listdir(tmp_path) == []


def test_the_heartbeat_is_read_by_the_file_systems_clock(tmp_path, monkeypatch):
    foreign_lease(tmp_path, age_s=1)
    monkeypatch.setattr(time, "time", lambda: 10.0**12)
    with pytest.raises(LeaseHeld):
        acquire_lease(tmp_path, "run")


def test_beating_keeps_a_lease_fresh(tmp_path):
    with acquire_lease(tmp_path, "run") as lease:
        os.utime(lease.path, (1, 1))
        lease.send_heartbeat()
        assert read_holder(tmp_path, "run").beat_at_s > 1_000_000


def test_a_holder_that_was_taken_for_dead_gets_an_error_at_its_next_heartbeat_and_harms_no_one(tmp_path):
    lease = acquire_lease(tmp_path, "run")
    foreign_lease(tmp_path, age_s=0)
    with pytest.raises(LeaseLost, match="elsewhere"):
        lease.send_heartbeat()
    lease.release()
    assert read_holder(tmp_path, "run").process.host == "elsewhere"
    (tmp_path / "run.json").unlink()
    with pytest.raises(LeaseLost, match="nobody"):
        lease.send_heartbeat()


def test_a_damaged_lease_counts_as_held_until_it_is_old(tmp_path):
    path = foreign_lease(tmp_path, age_s=0)
    path.write_bytes(path.read_bytes().replace(b"elsewhere", b"elsewherf"))
    with pytest.raises(LeaseHeld, match="an unknown process"):
        acquire_lease(tmp_path, "run")
    now = leases.read_clock_s(tmp_path)
    os.utime(path, (now - 130, now - 130))
    acquire_after_watching(tmp_path).release()


def test_a_forked_child_does_not_give_its_parents_lease_back(tmp_path):
    lease = acquire_lease(tmp_path, "run")
    pid = os.fork()
    if pid == 0:
        lease.release()
        os._exit(0)
    os.waitpid(pid, 0)
    assert read_holder(tmp_path, "run").token == lease.token


def test_of_twenty_contenders_one_wins(tmp_path):
    answers = contend(tmp_path, 20)
    assert sorted(answers) == ["lost"] * 19 + ["won"]


def test_of_many_contenders_for_a_dead_holders_lease_one_wins(tmp_path, held):
    end(held)
    answers = contend(tmp_path, 10)
    assert sorted(answers) == ["lost"] * 9 + ["won"]


def test_a_slow_contender_cannot_replace_the_lease_of_the_next_holder(tmp_path):
    foreign_lease(tmp_path, age_s=500)
    stale = read_holder(tmp_path, "run")
    winner = acquire_after_watching(tmp_path)
    # The slow contender judged the old holder before the winner came, and acts after.
    slow = leases._replace_stale(tmp_path, stale, tmp_path / ".run.slow.part", "slow", {}, 120)
    assert slow is None
    assert read_holder(tmp_path, "run").token == winner.token


def test_a_lease_names_all_holders_that_lost_it(tmp_path):
    foreign_lease(tmp_path, age_s=500)
    first = read_holder(tmp_path, "run").token
    second = acquire_after_watching(tmp_path)
    assert second.replaced == read_holder(tmp_path, "run").replaced == (first,)
    stale = read_holder(tmp_path, "run")
    third = leases._replace_stale(tmp_path, stale, tmp_path / ".run.c.part", "c", {}, 120)
    assert third.replaced == (first, second.token)
    assert (third.is_held(), second.is_held()) == (True, False)


@pytest.mark.parametrize("age_s", [-86400, 86400])
def test_a_heartbeat_from_a_wrong_clock_blocks_no_one(tmp_path, age_s):
    foreign_lease(tmp_path, age_s=age_s)
    acquire_after_watching(tmp_path).release()
    assert os.listdir(tmp_path) == []


def test_leases_of_finished_work_are_removed_once_their_holders_are_dead(tmp_path, held):
    end(held)
    alive = acquire_lease(tmp_path, "other")
    leases.remove_stale_leases(tmp_path, lambda name: name != "run")
    assert sorted(os.listdir(tmp_path)) == ["other.json", "run.json"]
    leases.remove_stale_leases(tmp_path, lambda name: True)
    assert os.listdir(tmp_path) == ["other.json"]
    assert alive.is_held()


@pytest.mark.parametrize("text", ["", "0", "-1", "inf", "nan", "soon"])
def test_the_stale_time_is_a_setting_that_is_checked(tmp_path, monkeypatch, text):
    monkeypatch.setenv(leases.STALE_VARIABLE, text)
    if text:
        with pytest.raises(UserError, match="expected a number of seconds"):
            acquire_lease(tmp_path, "run")
    else:
        assert leases.read_stale_after_s() == leases.STALE_AFTER_S
    monkeypatch.setenv(leases.STALE_VARIABLE, "2.5")
    foreign_lease(tmp_path, age_s=3)
    acquire_after_watching(tmp_path).release()


@pytest.mark.parametrize("process", [None, [], "x", {"pid": "1"}, {"host": 1}])
def test_a_lease_whose_process_is_no_process_is_damaged(tmp_path, process):
    content = {"schema": 1, "token": "t", "since": "", "process": process, "info": {}}
    (tmp_path / "run.json").write_bytes(seal(content))
    assert read_holder(tmp_path, "run").process is None


def test_a_contender_that_died_while_taking_over_stops_no_one(tmp_path, held):
    end(held)
    dead = read_holder(tmp_path, "run")
    (tmp_path / f"run~{dead.token}.json").write_bytes((tmp_path / "run.json").read_bytes())
    (tmp_path / "run~gone.json").write_bytes((tmp_path / "run.json").read_bytes())
    left = tmp_path / ".run.abc.part"
    left.touch()
    os.utime(left, (1, 1))
    lease = acquire_lease(tmp_path, "run")
    assert os.listdir(tmp_path) == ["run.json"]
    lease.release()


def test_a_folder_that_cannot_be_written_is_the_users_to_fix(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="no lease can be acquired in"):
        acquire_lease(tmp_path / "file" / "leases", "run")


@pytest.mark.parametrize("name", ["", "a/b", "a~b", "a b"])
def test_names_that_could_leave_the_folder_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="not a valid lease name"):
        acquire_lease(tmp_path, name)


def test_the_clock_of_a_folder_that_cannot_be_written_is_the_local_one(tmp_path):
    before = time.time()
    assert before <= leases.read_clock_s(tmp_path / "missing") <= time.time()


def test_processes_that_proc_hides_are_found_by_a_signal(monkeypatch):
    me = ProcessIdentity.from_current_process()
    monkeypatch.setattr("corewise.store.process_identity._read_stat_fields", lambda pid: [])
    assert me.is_alive_here()
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert replace(me, pid=process.pid).is_alive_here() is False
    assert replace(me, pid=2**70).is_alive_here() is True
