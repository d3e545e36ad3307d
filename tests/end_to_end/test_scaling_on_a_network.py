"""Two hosts on a network: the report names the link as the cause of lost scaling only where the link is slow."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.network_hosts import need_network_hosts, run_two_hosts

pytestmark = pytest.mark.slow

# 47 MB of gradients per step: 4 s over 100 Mbit/s, much longer than the compute.
STUDY = """
workload: resnet18
mode: train
axes: {nodes: [1, 2]}
fixed: {threads: 1, batch: 8, batch_scope: process, args.image_size: 64}
protocol: {min_runs: 3, max_runs: 3, min_samples: 2, min_warmup_steps: 1, min_sample_s: 0.3, max_warmup_s: 1.0,
  max_repeats_disturbed: 0}
"""
OF_NETWORK = "network between nodes"


@pytest.fixture(autouse=True)
def _two_hosts(need: Callable[[bool, str], None]) -> None:
    need(len(os.sched_getaffinity(0)) >= 2, "two CPUs, one for each node")
    need_network_hosts(need)


def measure(folder: Path, rate: str = "") -> tuple[list[str], dict[str, Any]]:
    """Run the study over a link of this rate; return the titles of the findings and the scaling curve."""
    study, store = folder / "study.yaml", folder / "store"
    study.write_text(STUDY)
    corewise = [sys.executable, "-P", "-m", "corewise"]
    with run_two_hosts() as hosts:
        if rate:
            hosts.limit(rate)
        options = ["--store", str(store), "--on", "openmpi", "--hostfile", str(hosts.hostfile)]
        done = hosts.run([*corewise, "run", str(study), *options])
        assert done.returncode == 0, done.stderr

    def read(verb: str) -> Any:
        done = subprocess.run([*corewise, verb, "--store", str(store), "--json"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    [curve] = read("show")[0]["scaling"]
    return [finding["title"] for finding in read("report")["findings"]], curve


def test_a_slow_link_is_named_as_the_cause(tmp_path: Path) -> None:
    titles, curve = measure(tmp_path, "100mbit")
    assert [title for title in titles if OF_NETWORK in title]
    assert curve["cause"] == f"bandwidth of the {OF_NETWORK}"
    one, two = curve["counts"]
    assert two["efficiency"] < 0.6
    # The link needs 47 MB / 12.5 MB/s for each step, whatever else runs on the machine.
    assert two["step_s"] > 3.5
    parts = two["parts_s"]
    assert parts["exposed communication"] == max(parts.values())
    assert one["parts_s"]["exposed communication"] == 0


def test_an_unlimited_link_is_not_named(tmp_path: Path) -> None:
    titles, curve = measure(tmp_path)
    assert not [title for title in titles if OF_NETWORK in title]
    assert OF_NETWORK not in (curve["cause"] or "")
