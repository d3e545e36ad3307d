"""What of a script can be set from outside, on machines of several kinds."""

from dataclasses import replace
from pathlib import Path

import pytest

from corewise.engine.machine_view import Host, read_host
from corewise.machine.model import Cpu, Topology
from corewise.spec.errors import UserError
from corewise.tuner.script import Script
from corewise.tuner.script_question import ScriptTunable, make_script

HERE = read_host()


def host(num_nodes: int = 1, smt: bool = False, gpu_nodes: tuple[int, ...] = ()) -> Host:
    """A machine of eight cores."""
    cpus = [Cpu(n, n, 0, n * num_nodes // 8) for n in range(8)]
    cpus += [Cpu(n + 8, n, 0, n * num_nodes // 8) for n in range(8 if smt else 0)]
    allocation = replace(HERE.allocation, cpus=tuple(c.number for c in cpus), num_cores=8)
    return Host(Topology(tuple(cpus), gpu_nodes=gpu_nodes), allocation, HERE.facts, "made")


def made(on: Host, *words: str, distributed: bool = False, batch: int | None = None) -> ScriptTunable:
    script = Script(("python", "train.py", *words), Path("/nowhere"), batch=batch)
    return make_script(script, {}, distributed=distributed, host=on)


def choices(tunable: ScriptTunable, knob: str) -> list[dict[str, object]]:
    place = tunable.space.index(knob)
    return [] if place is None else [dict(each) for each in tunable.space.knobs[place].choices]


def test_smt_is_a_choice_where_cores_have_siblings() -> None:
    assert {"processes": 1, "threads": 16, "smt": True} in choices(made(host(smt=True)), "shape")
    assert not any("smt" in each for each in choices(made(host()), "shape"))


def test_memory_policy_and_placement_are_choices_where_there_are_nodes() -> None:
    found = made(host(num_nodes=2))
    assert {"memory_policy": "interleave"} in choices(found, "memory_policy")
    assert {"placement": "spread"} in choices(found, "placement")
    assert choices(made(host()), "memory_policy") == choices(made(host()), "placement") == []


def test_cores_near_the_gpu_are_a_choice_for_a_script_that_may_use_it() -> None:
    near = {"bind": "rank", "placement": "gpu", "threads": 4}
    assert near in choices(made(host(num_nodes=2, gpu_nodes=(1,))), "bind")
    assert near not in choices(made(host(num_nodes=2)), "bind")


def test_the_cores_near_the_gpu_are_really_those_of_the_setting() -> None:
    space = made(host(num_nodes=2, gpu_nodes=(1,))).space
    bind = space.index("bind")
    assert bind is not None
    number = next(n for n, each in enumerate(space.knobs[bind].choices) if each.get("placement") == "gpu")
    params = space.params(space.changed(space.default, bind, number))
    assert (params["placement"], params["threads"], params["bind"]) == ("gpu", 4, "rank")


def test_processes_stay_one_unless_they_may_be_several() -> None:
    assert {each["processes"] for each in choices(made(host()), "shape")} == {1}
    several = made(host(), "{batch_per_rank}", distributed=True, batch=64)
    assert {1, 2, 8} <= {each["processes"] for each in choices(several, "shape")}


def test_the_math_library_is_listed_as_not_tried_with_the_reason() -> None:
    [reason] = [each.reason for each in made(host()).offer.left_out if "math library" in each.what]
    assert "carry theirs within" in reason


def test_what_only_the_script_can_set_is_not_fixed_from_outside() -> None:
    script = Script(("python", "train.py"), Path("/nowhere"))
    with pytest.raises(UserError, match="--set dtype: can only be set inside the script"):
        make_script(script, {"dtype": "bfloat16"}, distributed=False, host=host())


def test_what_loader_workers_need_is_listed_where_it_is_missing() -> None:
    [reason] = [each.reason for each in made(host()).offer.left_out if "loader workers" in each.what]
    assert "{loader_workers}" in reason
    assert "COREWISE_LOADER_WORKERS" in reason
    told = made(host(), "--workers={loader_workers}").offer.left_out
    assert not any("loader workers" in each.what for each in told)


def test_loader_workers_of_a_script_are_tried_before_pinning_and_waiting() -> None:
    names = [knob.name for knob in made(host(), "--workers", "{loader_workers}").space.knobs]
    assert names.index("allocator") < names.index("loader_workers") < names.index("bind")
