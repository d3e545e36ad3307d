"""Parsing the output of benchdnn 2.6 to 3.x."""

import sys
from pathlib import Path

import pytest

from corewise.measured.workloads.primitives.benchdnn import (
    BenchdnnError,
    build_benchdnn_command,
    read_benchdnn_output,
    run_benchdnn,
    run_first_known,
)

DEFAULT = """\
Output template: perf,%engine%,%impl%,%name%,%prb%,%Gops%,%-time%,%-Gflops%,%0time%,%0Gflops%
perf,cpu,jit:avx512_core,,--mode=P --conv mb8ic64ih28oc64oh28kh3ph1,0.440664,4.02979,109.352,11.8004,37.343
tests:1 passed:1 skipped:0 mistrusted:0 unimplemented:0 invalid_arguments:0 failed:0 listed:0
total perf: min(ms):4.02979 avg(ms):11.8004
"""
NEWER = """\
Template entries: perf,%engine%,%impl%,%name%,%prb%,%Gops%,%+ctime%,%-time%,%-Gflops%,%0time%,%0Gflops%
perf,engine,impl,name,prb,Gops,max_ctime,min_time,min_Gflops,avg_time,avg_Gflops
perf,cpu,brg:avx512_core,"net:ip1",--mode=P --ip ic2048oc1000n"net:ip1",0.008192,0.9,0.0234375,349,0.027,303
"""
CSV = """\
Output template: perf,%engine%,%impl%,%name%,%dir%,%sdt%,%DESC%,%Gops%,%-time%,%-Gflops%,%0time%,%0Gflops%
perf,cpu,brgconv:avx512_core_vnni,,FWD_I,u8:s8:s8,1,8,64,28,28,64,28,28,3,3,0.4406,0.987793,446.1,3.695,119.2
"""


def test_times_and_kernels_are_read() -> None:
    (figure,) = read_benchdnn_output(DEFAULT)
    assert figure.problem == "--mode=P --conv mb8ic64ih28oc64oh28kh3ph1"
    assert figure.implementation == "jit:avx512_core"
    assert (figure.min_s, figure.avg_s, figure.gflop) == pytest.approx((0.00402979, 0.0118004, 0.440664))
    assert figure.best_gflop_per_s == pytest.approx(109.352, rel=1e-4)


def test_newer_versions_print_a_line_of_titles_and_the_creation_time() -> None:
    (figure,) = read_benchdnn_output(NEWER)
    assert (figure.min_s, figure.avg_s) == pytest.approx((0.0234375e-3, 0.027e-3))


def test_the_csv_template_is_read_too() -> None:
    (figure,) = read_benchdnn_output(CSV)
    assert figure.min_s == pytest.approx(0.987793e-3)
    assert figure.problem.startswith("FWD_I,u8:s8:s8,")


def test_several_problems_come_in_their_order() -> None:
    assert [f.gflop for f in read_benchdnn_output(DEFAULT + NEWER)] == [0.440664, 0.008192]


def test_a_primitive_that_onednn_lacks_has_no_times() -> None:
    lines = DEFAULT.replace("4.02979", "0").replace("11.8004", "0").replace("jit:avx512_core", "")
    (figure,) = read_benchdnn_output(lines)
    assert figure.to_facts() == {"benchdnn_kernel": "unimplemented"}


@pytest.mark.parametrize("line", ["perf,cpu,jit", "perf,cpu,jit,,prb,a,b,c,d,e,f,g"])
def test_a_broken_line_is_refused(line: str) -> None:
    with pytest.raises(BenchdnnError, match="benchdnn printed"):
        read_benchdnn_output(line)


def test_another_template_is_refused() -> None:
    with pytest.raises(BenchdnnError, match="leave --perf-template out"):
        read_benchdnn_output("Output template: perf,%prb%,%-time%\nperf,mb1,3\n")


def test_the_command_names_driver_options_and_problem() -> None:
    command = build_benchdnn_command("benchdnn", "conv", "ic1ih5oc1kh3", {"dir": "FWD_B", "cfg": "f32"}, num_times=5)
    assert command == [
        *("benchdnn", "--conv", "--mode=P", "--fix-times-per-prb=5", "--dir=FWD_B", "--cfg=f32"),
        "ic1ih5oc1kh3",
    ]


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchdnnError, match=r"program .* does not exist"):
        run_benchdnn([str(tmp_path / "benchdnn"), "ic1"], 1)


def test_a_program_is_run_with_as_many_threads_and_its_figure_read(tmp_path: Path) -> None:
    program = tmp_path / "benchdnn"
    lines = DEFAULT.replace("jit:avx512_core", "jit:{threads}")
    program.write_text(
        f"#!{sys.executable}\nimport os\nprint({lines!r}.format(threads=os.environ['OMP_NUM_THREADS']))\n"
    )
    program.chmod(0o755)
    assert run_benchdnn([str(program), "--conv", "ic1"], 3).implementation == "jit:3"


def test_output_without_a_figure_is_in_the_error(tmp_path: Path) -> None:
    program = tmp_path / "benchdnn"
    program.write_text("#!/bin/sh\necho 'driver: ERROR: unknown option' >&2\nexit 2\n")
    program.chmod(0o755)
    with pytest.raises(BenchdnnError, match="unknown option"):
        run_benchdnn([str(program), "ic1"], 1)


def write_program(tmp_path: Path, option: str) -> str:
    """Write a program that accepts one option for number formats and records its arguments."""
    program = tmp_path / "benchdnn"
    program.write_text(
        f"""#!/bin/sh
        echo "$*" >> {tmp_path}/asked
        case "$*" in
          *--{option}=*) echo 'Output template: perf,%engine%,%impl%,%name%,%prb%,%Gops%,%-time%,%0time%'
            echo 'perf,cpu,jit:{option},,ic1,1,2,3';;
          *) echo "driver: ERROR: unknown option: conv '--x'" >&2; exit 2;;
        esac
        """
    )
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(("option", "num_asked"), [("dt", 1), ("cfg", 2)])
def test_an_older_program_is_run_again_with_its_options(tmp_path: Path, option: str, num_asked: int) -> None:
    program = write_program(tmp_path, option)
    commands = [[program, "--dt=f32:f32:f32", "ic1"], [program, "--cfg=f32", "ic1"]]
    assert run_first_known(commands, 1).implementation == f"jit:{option}"
    assert len((tmp_path / "asked").read_text().splitlines()) == num_asked


def test_an_invalid_problem_is_not_run_twice(tmp_path: Path) -> None:
    program = tmp_path / "benchdnn"
    program.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\necho 'no such problem' >&2\nexit 2\n")
    program.chmod(0o755)
    with pytest.raises(BenchdnnError, match="no such problem"):
        run_first_known([[str(program), "--dt=f32", "ic1"], [str(program), "--cfg=f32", "ic1"]], 1)
    assert (tmp_path / "asked").read_text() == "asked\n"
