import pytest
from hypothesis import given
from hypothesis import strategies as st

from corewise.cluster.hostlist import expand_counts, expand_hostlist
from corewise.machine.slurm import read_grant

JOB = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_CPUS_PER_NODE": "8(x2),4"}


def test_ranges_single_numbers_and_plain_names_expand_in_order() -> None:
    assert expand_hostlist("n[1-3,7],login") == ("n1", "n2", "n3", "n7", "login")


def test_zero_padding_is_kept() -> None:
    assert expand_hostlist("n[08-11]") == ("n08", "n09", "n10", "n11")
    assert expand_hostlist("n[098-101]") == ("n098", "n099", "n100", "n101")


def test_several_brackets_multiply() -> None:
    assert expand_hostlist("r[0-1]n[1-2]-ib") == ("r0n1-ib", "r0n2-ib", "r1n1-ib", "r1n2-ib")


@pytest.mark.parametrize("text", ["n[1-", "n]1[", "n[3-1]", "n[a-b]", "n[]", "n[0-99999999]", "n[0-9999]m[0-9999]"])
def test_a_malformed_or_endless_host_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host"):
        expand_hostlist(text)


ranges = st.tuples(st.integers(0, 200), st.integers(0, 20), st.integers(1, 4))


@given(st.lists(st.tuples(st.sampled_from(["n", "gpu-", "r1c"]), st.lists(ranges, min_size=1, max_size=3)), max_size=4))
def test_a_host_list_expands_to_what_it_was_made_of(groups: list[tuple[str, list[tuple[int, int, int]]]]) -> None:
    entries, expected = [], []
    for prefix, spans in groups:
        texts = [f"{low:0{width}d}-{low + more:0{width}d}" for low, more, width in spans]
        entries.append(f"{prefix}[{','.join(texts)}]")
        for low, more, width in spans:
            padded = max(width, len(str(low)))
            expected += [f"{prefix}{number:0{padded}d}" for number in range(low, low + more + 1)]
    assert expand_hostlist(",".join(entries)) == tuple(expected)


@given(st.text(alphabet="n[]0123456789,-", max_size=12))
def test_any_text_is_a_host_list_or_a_value_error(text: str) -> None:
    try:
        hosts = expand_hostlist(text)
    except ValueError:
        return
    assert all("[" not in host and "," not in host for host in hosts)


def test_counts_repeat() -> None:
    assert expand_counts("8(x2),4") == (8, 8, 4)
    with pytest.raises(ValueError, match="counts"):
        expand_counts("8(x2),four")


def test_each_host_gets_its_own_count() -> None:
    counts = [grant.num_cpus for host in ("n1", "n2", "n3") if (grant := read_grant(JOB, host))]
    assert counts == [8, 8, 4]


def test_a_host_outside_the_job_has_no_grant() -> None:
    assert read_grant(JOB, "login1") is None
    assert read_grant(JOB, "n11") is None
    assert read_grant({}, "n1") is None


def test_domain_names_are_no_obstacle() -> None:
    grant = read_grant(JOB, "n3.cluster.example")
    assert grant is not None
    assert (grant.host, grant.num_cpus) == ("n3", 4)


def test_a_node_known_to_slurm_by_another_name_is_in_the_job() -> None:
    grant = read_grant({**JOB, "SLURMD_NODENAME": "n3", "SLURM_CPUS_ON_NODE": "2"}, "ip-10-0-0-7")
    assert grant is not None
    assert grant.num_cpus == 2


def test_a_step_smaller_than_the_job_counts() -> None:
    grant = read_grant({**JOB, "SLURM_CPUS_ON_NODE": "2"}, "n1")
    assert grant is not None
    assert grant.num_cpus == 2
    assert grant.cpus_detail == "SLURM_CPUS_ON_NODE=2"


def test_the_count_of_another_node_is_not_taken_for_ours() -> None:
    grant = read_grant({**JOB, "SLURMD_NODENAME": "n3", "SLURM_CPUS_ON_NODE": "4"}, "n1")
    assert grant is not None
    assert grant.num_cpus == 8


def test_memory_is_granted_per_node_or_per_cpu() -> None:
    per_node = read_grant({**JOB, "SLURM_MEM_PER_NODE": "2048"}, "n1")
    per_cpu = read_grant({**JOB, "SLURM_MEM_PER_CPU": "512"}, "n1")
    everything = read_grant({**JOB, "SLURM_MEM_PER_NODE": "0"}, "n1")
    assert per_node is not None
    assert per_cpu is not None
    assert everything is not None
    assert per_node.memory_bytes == 2 << 30
    assert per_cpu.memory_bytes == 4 << 30
    assert everything.memory_bytes is None


def test_damaged_variables_grant_nothing_and_raise_nothing() -> None:
    assert read_grant({"SLURM_JOB_NODELIST": "n[1-"}, "n1") is None
    broken = {"SLURM_JOB_NODELIST": "n1", "SLURM_JOB_CPUS_PER_NODE": "?", "SLURM_CPUS_ON_NODE": "many"}
    grant = read_grant({**broken, "SLURM_MEM_PER_NODE": "1G"}, "n1")
    assert grant is not None
    assert grant.num_cpus is None
    assert grant.memory_bytes is None
