"""Batch scripts, time limits and site files, without Slurm."""

import subprocess
import time
from pathlib import Path

import pytest

from corewise.errors import UserError
from corewise.submit.batch_script import (
    JobRequest,
    build_batch_script,
    format_slurm_time,
    override_site,
    parse_node_counts,
    parse_time_limit_s,
)
from corewise.submit.job_log import Job, JobLog
from corewise.submit.site_file import Site, load_site
from corewise.submit.slurm_commands import JobState, parse_partition, parse_queue
from corewise.submit.submission import check_store_path, check_time_limit

GOLDEN = """#!/bin/bash
#SBATCH --job-name=corewise-x-2n-1
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --partition=cpu
#SBATCH --account=proj
#SBATCH --time=0-01:30:00
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --chdir="/home/a b"
#SBATCH --output=/shared/store/jobs/corewise-x-2n-1.log
#SBATCH --hint=nomultithread

# The store must be visible here under the same path, before the first trial.
if [ ! -e /shared/store/jobs/corewise-x-2n-1.sh ]; then
  echo "corewise: $(hostname) does not see the store /shared/store" >&2
  exit 66
fi
module load gcc/13 python/3.11 || exit 127
export MKL_DYNAMIC=FALSE
export TMPDIR="/scratch/$USER"
mkdir -p "$TMPDIR"
end="${SLURM_JOB_END_TIME:-$(($(date +%s) + 5400))}"
stop_at="--stop-at=$((end - 45))"
exec apptainer exec my.sif /opt/python -P -m corewise run x.yaml --set 'a=b c' --nodes 2 --store /shared/store \
--job corewise-x-2n-1 $stop_at
"""
SITES = """cluster:
  partition: cpu
  account: proj
  modules: [gcc/13, python/3.11]
  container: apptainer exec my.sif
  environment: [export MKL_DYNAMIC=FALSE]
  scratch: /scratch/$USER
  sbatch_options: [--hint=nomultithread]
"""


def write_sites(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sites.yaml"
    path.write_text(text)
    return path


def make_request(site: Site) -> JobRequest:
    return JobRequest(
        name="corewise-x-2n-1",
        study="x",
        nodes=2,
        arguments=("x.yaml", "--set", "a=b c"),
        store=Path("/shared/store"),
        folder=Path("/home/a b"),
        python="/opt/python",
        site=site,
        time_limit_s=5400,
    )


def test_the_script_has_all_settings_of_the_site(tmp_path: Path) -> None:
    script = build_batch_script(make_request(load_site("cluster", write_sites(tmp_path, SITES))))
    assert script == GOLDEN
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


def test_mistakes_of_a_site_file_have_their_lines(tmp_path: Path) -> None:
    path = write_sites(tmp_path, "a:\n  partitoin: cpu\n  query_every_s: 0\n  qos: 'x y'\n")
    with pytest.raises(UserError) as caught:
        load_site("a", path)
    for line, text in ((2, "did you mean 'partition'"), (3, "query_every_s"), (4, "qos")):
        assert any(f":{line}:" in each and text in each for each in str(caught.value).splitlines())


def test_a_site_file_that_others_can_change_is_refused(tmp_path: Path) -> None:
    path = write_sites(tmp_path, SITES)
    path.chmod(0o666)
    with pytest.raises(UserError, match="everyone can write"):
        load_site("cluster", path)


def test_an_unknown_site_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'cluster'"):
        load_site("clusters", write_sites(tmp_path, SITES))
    assert load_site(None, tmp_path / "none.yaml") == Site()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1", 60), ("90m", 5400), ("10:30", 630), ("02:00:00", 7200), ("1-02", 93600), ("1-02:03:04", 93784)],
)
def test_time_limits_are_read_as_slurm_and_people_write_them(text: str, seconds: int) -> None:
    assert parse_time_limit_s(text) == seconds


@pytest.mark.parametrize("text", ["0", "soon", "-5"])
def test_other_time_limits_are_refused(text: str) -> None:
    with pytest.raises(UserError):
        parse_time_limit_s(text)


def test_small_parts() -> None:
    assert format_slurm_time(90061) == "1-01:02:00"
    assert parse_node_counts("1,2,2,4") == (1, 2, 4)
    for text in ("0", "a", "1,", ""):
        with pytest.raises(UserError):
            parse_node_counts(text)
    with pytest.raises(UserError, match="--partition"):
        override_site(Site(), partition="a\n#SBATCH --uid=0")
    with pytest.raises(UserError, match="below /tmp"):
        check_store_path(Path("/tmp/x"), allow_local=False)
    with pytest.raises(UserError, match="longer --time"):
        check_time_limit(60, 100.0)


def test_answers_of_slurm_are_parsed() -> None:
    text = "7|RUNNING|None|n1\n8|CANCELLED by 0|None|\n9|PENDING|Resources|\n"
    assert parse_queue(text, {"7", "8"}) == {"7": JobState("RUNNING", "", "n1"), "8": JobState("CANCELLED", "by 0")}
    limits = parse_partition("PartitionName=a Default=YES MaxNodes=4 MaxTime=1-00:00:00 TotalNodes=8")
    assert (limits.num_nodes, limits.max_nodes, limits.max_time_s) == (8, 4, 86400)


def test_the_log_of_jobs_survives_damage_and_keeps_the_first_end(tmp_path: Path) -> None:
    log, other = JobLog(tmp_path), JobLog(tmp_path)
    job = Job(job_id="5", name="n", study="s", nodes=1, purpose="p", submitted_at="2026-01-01T00:00:00Z")
    log.record_submission(job)
    other.record_state(job, "CANCELLED", "by 0", has_ended=True)
    # Times are recorded in milliseconds.
    time.sleep(0.002)
    log.record_state(job, "COMPLETED", "", has_ended=True)
    (tmp_path / "jobs" / "zz.jsonl").write_bytes(b'{"schema":1,"event":"subm')
    (read,) = log.read_jobs()
    assert (read.state, read.is_open) == ("CANCELLED", False)
