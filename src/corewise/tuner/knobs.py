"""Which knobs a workload has on a machine, in the order of what they are likely to give."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from corewise.spec.axes import AXES
from corewise.spec.feasibility import MachineView
from corewise.spec.knob_classes import AXIS_CLASSES, FREE, KnobClass, judge
from corewise.tuner.space import Knob, LeftOut, Setting, Space
from corewise.workloads.base import Traits

# What plain `python` does where our own defaults are more careful.
STOCK: Mapping[str, Any] = {"processes": 1, "bind": "none", "batch_scope": "global"}
# What someone who knows the field sets by hand: one process pinned to all cores, images laid out for oneDNN.
BY_HAND: Mapping[str, Any] = {"bind": "rank", "memory_format": "channels_last"}
ALLOCATORS_BY_HAND = ("tcmalloc", "retain")  # the first of them that is here
GRANTED: tuple[KnobClass, ...] = tuple(each for each in KnobClass if each not in FREE)  # by --allow
BATCH_FACTORS = (2, 4, 0.5)
LOADER_WORKERS = (1, 2, 4, 8)
OF_THE_CPU = ("shape", "allocator", "openmp", "huge_pages", "wait_policy", "denormals", "math")
OF_ANY_RUNTIME = ("shape", "allocator", "bind", "huge_pages", "placement", "memory_policy", "batch")
# Runtimes without most of what torch offers, with the knobs they have all the same.
OTHER_RUNTIMES = {
    "numpy": OF_ANY_RUNTIME,
    "jax": OF_ANY_RUNTIME,
    "tensorflow": (*OF_ANY_RUNTIME, "math"),
}
OF_MODELS = ("memory_format", "execution", "batch")
Reason = Callable[[Mapping[str, Any]], str]  # why a point does not exist here; empty when it does


@dataclass(frozen=True)
class Asked:
    """What a user wants tuned, as far as it decides which knobs there are."""

    mode: str
    runtime: str
    traits: Traits
    fixed: Mapping[str, Any]  # by the user: not varied
    batch: int  # in all processes together
    allow: Collection[str]
    machine: MachineView
    may_use_gpu: bool = False  # a script: where it computes is not known
    own: Collection[str] = ()  # what of it is fixed by the workload itself
    kernel: str = ""  # its name, where one is tuned: a step is one sample

    @property
    def on_gpu(self) -> bool:
        return self.fixed.get("device") == "cuda"


@dataclass(frozen=True)
class Offer:
    """The knobs there are, and what is not tried with its reason."""

    space: Space
    left_out: tuple[LeftOut, ...]


def knobs_for(asked: Asked, reason_against: Reason) -> Offer:
    """The knobs of a workload here; `reason_against` tells why a point cannot be measured."""
    base = {**STOCK, "batch": asked.batch, **asked.fixed}
    base.setdefault("threads", _threads_that_fill(asked.machine, base))
    left_out: list[LeftOut] = []
    knobs = []
    for knob in _all_knobs(asked):
        if asked.on_gpu and knob.name in OF_THE_CPU:
            left_out.append(LeftOut(knob.name, "a knob of the CPU; the work is done on the GPU"))
            continue
        if asked.kernel and knob.name in OF_MODELS:
            left_out.append(LeftOut(knob.name, f"for models; {asked.kernel} is a kernel"))
            continue
        if knob.name not in OTHER_RUNTIMES.get(asked.runtime, (knob.name,)):
            left_out.append(LeftOut(knob.name, f"the {asked.runtime} runtime has no such thing"))
            continue
        kept = _kept(knob, asked, base, reason_against, left_out)
        if kept is not None:
            knobs.append(kept)
    left_out += _absent(asked)
    return Offer(Space(base, tuple(knobs)), together(left_out))


def hand_setting(space: Space) -> Setting:
    """What someone who knows the field would set, as far as it exists here."""
    there = {choice.get("allocator") for knob in space.knobs for choice in knob.choices}
    allocators = [word for word in ALLOCATORS_BY_HAND if word in there]
    return space.near({**space.base, **BY_HAND, **({"allocator": allocators[0]} if allocators else {})})


def good_starts(space: Space, hand: Setting) -> tuple[Setting, ...]:
    """The hand setting, then what few know of and often gives most: layers on our own kernels.

    In training quickened, in inference frozen and in a process for each core; the same in bfloat16 where that
    is allowed. Other knobs are tried from the best of these.
    """
    by_hand, found = space.params(hand), [hand]
    quick = {**by_hand, "execution": "quickened"}
    frozen = {**by_hand, **_most_processes(space), "execution": "eager", "freezing": "full"}
    own = [params for params in (quick, frozen) if _holds(space, params, ("execution", "freezing"))]
    found += map(space.near, own)
    unquickened = frozen if frozen in own else by_hand  # quickened layers know no bfloat16
    short = {**unquickened, "dtype": "bfloat16"}
    if _holds(space, short, ("dtype",)):
        found.append(space.near(short))
    return tuple(dict.fromkeys(found))


def _most_processes(space: Space) -> Mapping[str, Any]:
    """The shape with the most processes there may be, a core or more for each."""
    shape = space.index("shape")
    if shape is None or not space.knobs[shape].ladders:
        return {}
    return space.knobs[shape].choices[space.knobs[shape].ladders[0][-1]]


def _holds(space: Space, params: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Whether there is a setting with these values of the named axes, as far as they are given."""
    made = space.params(space.near(params))
    return all(made.get(name) == params[name] for name in names if name in params)


def together(left_out: Iterable[LeftOut]) -> tuple[LeftOut, ...]:
    """Those left out for the same reason in one."""
    reasons: dict[str, list[str]] = {}
    for each in left_out:
        reasons.setdefault(each.reason, []).append(each.what)
    return tuple(LeftOut("; ".join(what), reason) for reason, what in reasons.items())


def has_native(space: Space) -> bool:
    """Whether some setting runs what is built from C++: prepared weights, or widths that change."""
    on_gpu = space.base.get("device", "cpu") != "cpu"
    choices = [{**space.base, **choice} for knob in space.knobs for choice in ({}, *knob.choices)]
    return not on_gpu and any(
        each.get("execution") in ("malleable", "quickened")
        or (each.get("freezing") == "full" and each.get("execution", "eager") == "eager")
        for each in choices
    )


def _all_knobs(asked: Asked) -> Iterable[Knob]:
    """Every knob that exists anywhere, those that usually give most first."""
    yield _shape(asked.machine)
    layouts = ("contiguous", "channels_last", *(("blocked",) if asked.mode == "infer" else ()))
    layout = _plain("memory_format", layouts, "kernels without reorders")
    if asked.mode != "infer" and asked.traits.takes_images is not False:
        yield layout
    yield _precision(asked)
    if asked.mode != "infer" and asked.traits.concurrent_under is not None:
        yield _execution(asked)
    if asked.mode == "infer":  # fixed weights, folded and fused, give more than what follows
        yield _execution(asked)
        if asked.traits.takes_images is not False:  # blocks exclude frozen weights, which bring their own
            yield layout
    yield _plain("allocator", AXES["allocator"].choices, "memory is not returned and fetched again")
    if asked.fixed.get("data", "synthetic") != "synthetic":
        workers = tuple({"loader_workers": num} for num in (0, *LOADER_WORKERS))
        yield Knob("loader_workers", workers, "images come while others are worked on")
    if asked.on_gpu:
        pinned = ({"pinned_memory": False}, {"pinned_memory": True})
        yield Knob("pinned_memory", pinned, "the GPU fetches batches by itself")
    yield Knob("batch", _batches(asked.batch), "more samples share the work of a step")
    if asked.machine.num_numa_nodes > 1:
        apart = [word for word in AXES["placement"].choices if word != "gpu"]
        if not asked.on_gpu:
            yield _plain("placement", apart, "ranks beside their memory")
        yield _plain("memory_policy", AXES["memory_policy"].choices, "memory beside its ranks")
    yield _plain("huge_pages", AXES["huge_pages"].choices, "fewer misses of the address cache")
    yield _bind(asked)
    if asked.mode != "infer" and asked.traits.concurrent_under is None:
        yield _execution(asked)
    yield _plain("openmp", ("default", "libiomp5"), "another runtime starts the threads")
    yield _plain("wait_policy", AXES["wait_policy"].choices, "threads that spin begin at once")
    yield _plain("denormals", AXES["denormals"].choices, "numbers near zero are slow")
    yield _plain("math", AXES["math"].choices, "kernels of torch itself")


def _absent(asked: Asked) -> Iterable[LeftOut]:
    """Knobs of other machines, each with what is missing here."""
    if asked.machine.num_numa_nodes == 1:
        yield LeftOut("placement, memory_policy", "the allocation lies on one NUMA node")
    if asked.machine.num_cpus == asked.machine.num_cores and not asked.on_gpu:
        yield LeftOut("smt", "the allocation has one hardware thread of each core")


def _threads_that_fill(machine: MachineView, base: Mapping[str, Any]) -> int:
    num_usable = machine.allocation(
        smt=bool(base.get("smt", False)), num_reserved_cores=int(base.get("reserved_cores", 0))
    )
    return max(1, num_usable // int(base["processes"]))


def _plain(name: str, values: Iterable[str], why: str) -> Knob:
    return Knob(name, tuple({name: value} for value in values), why)


def _shape(machine: MachineView) -> Knob:
    """Processes × threads: every factorisation of the cores, of the CPUs with SMT, and fewer threads."""
    cores, cpus = machine.num_cores, machine.num_cpus
    whole = [{"processes": p, "threads": cores // p} for p in _divisors(cores)]
    fewer = [{"processes": 1, "threads": cores // d} for d in _divisors(cores)[1:]]
    more: list[dict[str, Any]] = []
    if cpus > cores:
        more = [{"processes": p, "threads": cpus // p, "smt": True} for p in _divisors(cpus)]
    choices = (*whole, *fewer, *more)
    first, second = len(whole), len(whole) + len(fewer)
    ladders = (tuple(range(first)), (0, *range(first, second)), tuple(range(second, len(choices))))
    return Knob("shape", choices, "cores that wait less for each other", ladders=ladders)


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _bind(asked: Asked) -> Knob:
    """How threads are pinned; beside a GPU, also to the cores on its NUMA node."""
    words = ("none", "rank") if asked.on_gpu else ("none", "rank", "core")
    choices: list[Mapping[str, Any]] = [{"bind": word} for word in words]
    near = asked.machine.cores_near_gpu
    if (asked.on_gpu or asked.may_use_gpu) and 0 < near < asked.machine.num_cores:
        choices.append({"bind": "rank", "placement": "gpu", "threads": near})
    return Knob("bind", tuple(choices), "threads stay with their caches")


def _precision(asked: Asked) -> Knob:
    """Shorter numbers; some ways to execute know none, plain execution knows all."""
    dtypes = ("bfloat16", "float16") if asked.on_gpu else ("bfloat16", "int8")
    short = [word for word in AXES["float32_precision"].choices if word != "default"]
    choices = ({}, *({"dtype": word} for word in dtypes), *({"float32_precision": word} for word in short))
    needs = {i: {"execution": "eager", "freezing": "none"} for i in range(1, len(choices))}
    return Knob("precision", choices, "fewer digits are quicker", needs=needs)


def _batches(batch: int) -> tuple[Mapping[str, Any], ...]:
    others = [int(batch * factor) for factor in BATCH_FACTORS]
    return ({"batch": batch}, *({"batch": each} for each in others if each >= 1 and each != batch))


def _execution(asked: Asked) -> Knob:
    """Ways to execute a model, with its weights made constants where they are not trained."""
    traits, mode = asked.traits, asked.mode
    freezing = [word for word in AXES["freezing"].choices if word != "none" and mode == "infer"]
    freezing.reverse()  # all that can be frozen gives most
    found: list[Mapping[str, Any]] = [{"execution": "eager"}]
    found += [{"execution": "eager", "freezing": word} for word in freezing]
    quickened = {"execution": "quickened"}
    if mode == "train":  # frozen weights bring these kernels to inference
        found.append(quickened)
    under = traits.concurrent_under
    if under is not None:
        found += [{"execution": under, "interop_threads": num} for num in (2, 4, 8)]
    is_narrow = under is None and traits != Traits()  # of one's own workload nothing is known
    for execution in AXES["execution"].choices:
        if execution not in ("eager", "quickened") and not (execution == "malleable" and is_narrow):
            found += [{"execution": execution, "freezing": word} for word in freezing]
            found.append({"execution": execution})
    compiled = frozenset(i for i, choice in enumerate(found) if choice["execution"] == "compile")
    one_process = {"processes": 1, "threads": asked.machine.num_cores} if mode == "train" else {}
    needs = {
        i: {"bind": "rank", "openmp": "default", **one_process}
        for i, choice in enumerate(found)
        if choice["execution"] == "malleable"
    }
    if mode == "train" and traits.takes_images is not False:
        needs[found.index(quickened)] = {"memory_format": "channels_last"}
    why = "operators are fused, or run side by side"
    return Knob("execution", tuple(found), why, costly=compiled, needs=needs)


def _kept(
    knob: Knob, asked: Asked, base: Mapping[str, Any], reason_against: Reason, left_out: list[LeftOut]
) -> Knob | None:
    """The knob with the choices that may be tried; None when there is nothing to choose."""
    fixed = sorted({name for choice in knob.choices for name in choice if name in asked.fixed})
    stock = next(
        (choice for choice in knob.choices if all(base.get(n, _default(n)) == v for n, v in choice.items())),
        {},
    )
    kept, numbers = [stock], {knob.choices.index(stock): 0} if stock in knob.choices else {}
    told: dict[str, list[str]] = {}
    for number, choice in enumerate(knob.choices):
        is_fixed = bool(choice) and all(base.get(name) == value for name, value in choice.items())
        if choice == stock or is_fixed or (not choice and knob.name == "precision"):
            continue
        needed = {n: v for n, v in knob.needs.get(number, {}).items() if n not in asked.fixed}
        against = _against(choice, fixed, asked, {**base, **needed, **choice}, reason_against)
        if against:
            told.setdefault(against, []).append(knob.words(number))
        else:
            numbers[number] = len(kept)
            kept.append(choice)
    for reason, words in told.items():
        left_out.append(LeftOut(_what(knob, words), reason))
    if len(kept) < 2:
        return None
    ladders = tuple(tuple(numbers[n] for n in ladder if n in numbers) for ladder in knob.ladders)
    costly = frozenset(numbers[n] for n in knob.costly if n in numbers)
    needs = {numbers[n]: needed for n, needed in knob.needs.items() if n in numbers}
    return Knob(knob.name, tuple(kept), knob.why, costly, tuple(each for each in ladders if each), needs)


def _against(
    choice: Mapping[str, Any],
    fixed: Iterable[str],
    asked: Asked,
    params: Mapping[str, Any],
    reason_against: Reason,
) -> str:
    for name in fixed:
        if params[name] != asked.fixed[name]:
            who = f"{asked.kernel or 'the workload'} itself" if name in asked.own else "you"
            return f"{who} fixed {name} to {asked.fixed[name]}"
    if asked.kernel and params["processes"] > 1:
        return f"a step of {asked.kernel} is one sample, which processes cannot share"
    for name, value in choice.items():
        found = judge(name, value, mode=asked.mode, traits=asked.traits)
        if name == "batch":  # the axis' own default is another batch than the user's, too
            found = AXIS_CLASSES[name]
        if found.knob_class not in FREE and found.knob_class not in asked.allow:
            return f"{found.why}; allow it with --allow {found.knob_class}"
    return reason_against(params)


def _default(name: str) -> Any:
    return AXES[name].default if name in AXES else None


def _what(knob: Knob, words: list[str]) -> str:
    if len(words) > 3 and knob.name == "shape":
        return f"{words[0]} to {words[-1]}"
    return ", ".join(dict.fromkeys(words))
