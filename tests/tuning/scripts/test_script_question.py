"""The knobs of scripts on different machines."""

from dataclasses import replace
from pathlib import Path

import pytest

from corewise.errors import UserError
from corewise.machine.machine_model import Cpu, Topology
from corewise.run.machine_view import Host, read_host
from corewise.tuning.scripts.script_command import Script
from corewise.tuning.scripts.script_question import ScriptTunable, build_script_tunable

THIS_HOST = read_host()


def build_host(num_nodes: int = 1, smt: bool = False, gpu_nodes: tuple[int, ...] = ()) -> Host:
    """Build a machine with eight cores."""
    cpus = [Cpu(n, n, 0, n * num_nodes // 8) for n in range(8)]
    cpus += [Cpu(n + 8, n, 0, n * num_nodes // 8) for n in range(8 if smt else 0)]
    allocation = replace(THIS_HOST.allocation, cpus=tuple(c.number for c in cpus), num_cores=8)
    return Host(Topology(tuple(cpus), gpu_nodes=gpu_nodes), allocation, THIS_HOST.facts, "simulated")


def build_tunable(host: Host, *arguments: str, distributed: bool = False, batch: int | None = None) -> ScriptTunable:
    script = Script(("python", "train.py", *arguments), Path("/nowhere"), batch=batch)
    return build_script_tunable(script, {}, distributed=distributed, host=host)


def list_choices(tunable: ScriptTunable, knob: str) -> list[dict[str, object]]:
    place = tunable.space.find_knob(knob)
    return [] if place is None else [dict(each) for each in tunable.space.knobs[place].choices]


def test_smt_is_a_choice_if_cores_have_siblings() -> None:
    assert {"processes": 1, "threads": 16, "smt": True} in list_choices(build_tunable(build_host(smt=True)), "shape")
    assert not any("smt" in each for each in list_choices(build_tunable(build_host()), "shape"))


def test_memory_policy_and_placement_are_choices_with_several_nodes() -> None:
    tunable = build_tunable(build_host(num_nodes=2))
    assert {"memory_policy": "interleave"} in list_choices(tunable, "memory_policy")
    assert {"placement": "spread"} in list_choices(tunable, "placement")
    assert (
        list_choices(build_tunable(build_host()), "memory_policy")
        == list_choices(build_tunable(build_host()), "placement")
        == []
    )


def test_cores_near_the_gpu_are_a_choice_for_a_script_that_may_use_it() -> None:
    near = {"bind": "rank", "placement": "gpu", "threads": 4}
    assert near in list_choices(build_tunable(build_host(num_nodes=2, gpu_nodes=(1,))), "bind")
    assert near not in list_choices(build_tunable(build_host(num_nodes=2)), "bind")


def test_a_setting_near_the_gpu_gets_the_cores_of_its_node() -> None:
    space = build_tunable(build_host(num_nodes=2, gpu_nodes=(1,))).space
    bind = space.find_knob("bind")
    assert bind is not None
    number = next(n for n, each in enumerate(space.knobs[bind].choices) if each.get("placement") == "gpu")
    params = space.build_params(space.replace_choice(space.default, bind, number))
    assert (params["placement"], params["threads"], params["bind"]) == ("gpu", 4, "rank")


def test_several_processes_need_distributed() -> None:
    assert {each["processes"] for each in list_choices(build_tunable(build_host()), "shape")} == {1}
    several = build_tunable(build_host(), "{batch_per_rank}", distributed=True, batch=64)
    assert {1, 2, 8} <= {each["processes"] for each in list_choices(several, "shape")}


def test_the_math_library_is_listed_as_not_tried_with_the_reason() -> None:
    [reason] = [
        each.reason for each in build_tunable(build_host()).offer.left_out if "math library" in each.description
    ]
    assert "bundle theirs" in reason


def test_values_inside_the_script_cannot_be_fixed_from_outside() -> None:
    script = Script(("python", "train.py"), Path("/nowhere"))
    with pytest.raises(UserError, match="--set dtype: can only be set inside the script"):
        build_script_tunable(script, {"dtype": "bfloat16"}, distributed=False, host=build_host())


def test_the_requirement_of_loader_workers_is_listed() -> None:
    [reason] = [
        each.reason for each in build_tunable(build_host()).offer.left_out if "loader workers" in each.description
    ]
    assert "{loader_workers}" in reason
    assert "COREWISE_LOADER_WORKERS" in reason
    left_out = build_tunable(build_host(), "--workers={loader_workers}").offer.left_out
    assert not any("loader workers" in each.description for each in left_out)


def test_loader_workers_of_a_script_are_tried_before_pinning_and_waiting() -> None:
    names = [knob.name for knob in build_tunable(build_host(), "--workers", "{loader_workers}").space.knobs]
    assert names.index("allocator") < names.index("loader_workers") < names.index("bind")
