"""The knobs of a workload on a machine, in order of their likely gain."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from corewise.measured.parameters import GENERATED_DATA
from corewise.measured.workloads.base import Traits
from corewise.study.axes import AXES
from corewise.study.planning.feasibility import MachineView
from corewise.study.planning.numerical_effects import AXIS_EFFECTS, FREE_EFFECTS, NumericalEffect, judge_setting
from corewise.tuning.search.setting_space import Cause, Knob, Refusal, Setting, Space, UntriedChoice

# What plain `python` does where the defaults of a study differ.
STOCK: Mapping[str, Any] = {"processes": 1, "bind": "none", "batch_scope": "global"}
# What an expert sets by hand: one process pinned to all cores, and the image layout that oneDNN prefers.
HAND_VALUES: Mapping[str, Any] = {"bind": "rank", "memory_format": "channels_last"}
# An expert takes the first of these that is installed.
HAND_ALLOCATORS = ("tcmalloc", "retain")
# Effects on the results that need --allow.
ALLOWABLE_CLASSES: tuple[NumericalEffect, ...] = tuple(each for each in NumericalEffect if each not in FREE_EFFECTS)
# Instruction sets that compute in bfloat16.
BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16", "bf16", "svebf16")
BATCH_FACTORS = (2, 4, 0.5)
LOADER_WORKERS = (1, 2, 4, 8)
CPU_KNOBS = ("shape", "allocator", "openmp", "huge_pages", "wait_policy", "denormals", "math")
COMMON_KNOBS = ("shape", "allocator", "bind", "huge_pages", "placement", "memory_policy", "batch")
# The knobs of runtimes that lack most of the options of torch.
OTHER_RUNTIMES = {"numpy": (*COMMON_KNOBS, "wait_policy"), "jax": COMMON_KNOBS, "tensorflow": (*COMMON_KNOBS, "math")}
MODEL_KNOBS = ("memory_format", "execution", "batch")
# Returns why a point is infeasible here, or an empty text.
InfeasibilityCheck = Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True)
class KnobRequest:
    """The part of a question that decides which knobs there are.

    Attributes:
        fixed: Axes that are not varied, with their values.
        batch: The batch of all processes together.
        may_use_gpu: True for a script, whose device is unknown.
        set_by_workload: Names in `fixed` whose value comes from the workload, not from the user.
        kernel: The name of the kernel, if one is tuned; its step is one sample.
        is_custom: True for a user's own workload, whose branches are unknown.
    """

    mode: str
    runtime: str
    traits: Traits
    fixed: Mapping[str, Any]
    batch: int
    allow: Collection[str]
    machine: MachineView
    may_use_gpu: bool = False
    set_by_workload: Collection[str] = ()
    kernel: str = ""
    is_custom: bool = False

    @property
    def on_gpu(self) -> bool:
        return self.fixed.get("device") == "cuda"


@dataclass(frozen=True)
class Offer:
    """The search space, and the choices that are not tried with their reasons."""

    space: Space
    left_out: tuple[UntriedChoice, ...]


def select_knobs(request: KnobRequest, explain_infeasible: InfeasibilityCheck) -> Offer:
    """Select the knobs of a workload on this machine, and list the choices that are not tried."""
    base = {**STOCK, "batch": request.batch, **request.fixed}
    base.setdefault("threads", _count_filling_threads(request.machine, base))
    left_out: list[UntriedChoice] = []
    knobs = []
    for knob in _list_knobs(request):
        if request.on_gpu and knob.name in CPU_KNOBS:
            left_out.append(UntriedChoice(knob.name, "affects the CPU only; the work runs on the GPU"))
            continue
        if request.kernel and knob.name in MODEL_KNOBS:
            left_out.append(UntriedChoice(knob.name, f"applies to models only; {request.kernel} is a kernel"))
            continue
        if knob.name not in OTHER_RUNTIMES.get(request.runtime, (knob.name,)):
            left_out.append(UntriedChoice(knob.name, f"not available in the {request.runtime} runtime"))
            continue
        reduced = _select_choices(knob, request, base, explain_infeasible, left_out)
        if reduced is not None:
            knobs.append(reduced)
    left_out += _list_absent(request)
    return Offer(Space(base, tuple(knobs)), group_by_reason(left_out))


def build_hand_setting(space: Space) -> Setting:
    """Return the setting that an expert would choose, as far as it exists here."""
    available = {choice.get("allocator") for knob in space.knobs for choice in knob.choices}
    allocators = [name for name in HAND_ALLOCATORS if name in available]
    return space.find_nearest({**space.base, **HAND_VALUES, **({"allocator": allocators[0]} if allocators else {})})


def list_hand_starts(space: Space, hand: Setting, *, is_busy: bool) -> tuple[Setting, ...]:
    """List the hand setting; on CPUs that others use, also with idle threads that sleep instead of spinning."""
    passive = {**space.build_params(hand), "wait_policy": "passive"}
    if not is_busy or not _has_setting(space, passive, ("wait_policy",)):
        return (hand,)
    return tuple(dict.fromkeys((hand, space.find_nearest(passive))))


def list_good_starts(space: Space, hand: Setting, *, is_busy: bool = False) -> tuple[Setting, ...]:
    """List good starting points: the hand setting, then those that use our own kernels.

    If other processes use the CPUs (`is_busy`), passive waiting comes second. Training uses fast kernels;
    inference uses frozen weights and one process per core. If allowed, the same in the more promising of
    bfloat16 and int8 follows. Other knobs are varied from the best of these.
    """
    by_hand, starts = space.build_params(hand), [*list_hand_starts(space, hand, is_busy=is_busy)]
    quick = {**by_hand, "execution": "fast-kernels"}
    frozen = {**by_hand, **_find_most_processes(space), "execution": "eager", "freezing": "full"}
    own = [params for params in (quick, frozen) if _has_setting(space, params, ("execution", "freezing"))]
    starts += map(space.find_nearest, own)
    # The fast kernels do not support bfloat16. In int8, the weights are packed already.
    plain = frozen if frozen in own else by_hand
    shape = _find_most_processes(space) if frozen in own else {}
    reduced = {
        "bfloat16": {**plain, "dtype": "bfloat16"},
        "int8": {**by_hand, **shape, "execution": "eager", "dtype": "int8"},
    }
    first = next((dtype for dtype in _list_dtypes(space) if dtype in reduced), "")
    if first and _has_setting(space, reduced[first], ("dtype",)):
        starts.append(space.find_nearest(reduced[first]))
    return tuple(dict.fromkeys(starts))


def _list_dtypes(space: Space) -> list[str]:
    """List the number formats of the precision knob, the most promising one first."""
    knob = space.find_knob("precision")
    return [] if knob is None else [str(each["dtype"]) for each in space.knobs[knob].choices if "dtype" in each]


def _find_most_processes(space: Space) -> Mapping[str, Any]:
    """Return the shape with the most processes that still have a core each."""
    shape = space.find_knob("shape")
    if shape is None or not space.knobs[shape].ladders:
        return {}
    return space.knobs[shape].choices[space.knobs[shape].ladders[0][-1]]


def _has_setting(space: Space, params: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Return whether a setting has these values of the named axes, as far as they are given."""
    built = space.build_params(space.find_nearest(params))
    return all(built.get(name) == params[name] for name in names if name in params)


def group_by_reason(left_out: Iterable[UntriedChoice]) -> tuple[UntriedChoice, ...]:
    """Merge choices that are not tried for the same reason."""
    reasons: dict[str, list[UntriedChoice]] = {}
    for each in left_out:
        reasons.setdefault(each.reason, []).append(each)
    return tuple(
        UntriedChoice(
            "; ".join(each.description for each in group),
            reason,
            group[0].cause,
            frozenset[str]().union(*(each.axes for each in group)),
        )
        for reason, group in reasons.items()
    )


def has_native(space: Space) -> bool:
    """Return whether some setting runs our C++ kernels: frozen weights, fast kernels or malleable threads."""
    on_gpu = space.base.get("device", "cpu") != "cpu"
    choices = [{**space.base, **choice} for knob in space.knobs for choice in ({}, *knob.choices)]
    return not on_gpu and any(
        each.get("execution") in ("malleable", "fast-kernels")
        or (each.get("freezing") == "full" and each.get("execution", "eager") == "eager")
        for each in choices
    )


def _list_knobs(request: KnobRequest) -> Iterable[Knob]:
    """Yield all knobs that may exist on any machine, those with the largest usual gain first."""
    yield _build_shape_knob(request)
    layout = _build_layout_knob(request)
    if request.mode != "infer" and layout is not None:
        yield layout
    yield _build_precision_knob(request)
    if request.mode != "infer" and request.traits.concurrent_under is not None:
        yield _build_execution_knob(request)
    # In inference, frozen weights gain more than all knobs that follow.
    if request.mode == "infer":
        yield _build_execution_knob(request)
        # The blocked layout excludes frozen weights, which have their own layout.
        if layout is not None:
            yield layout
    yield _build_knob("allocator", "memory is reused instead of returned to the kernel")
    if request.fixed.get("data", "synthetic") not in GENERATED_DATA:
        workers = tuple({"loader_workers": num} for num in (0, *LOADER_WORKERS))
        yield Knob("loader_workers", workers, "images are loaded while others are processed")
    if request.on_gpu:
        pinned = ({"pinned_memory": False}, {"pinned_memory": True})
        yield Knob("pinned_memory", pinned, "batches are copied to the GPU asynchronously")
    yield Knob("batch", _list_batches(request.batch), "more samples share the overhead of a step")
    if request.machine.num_numa_nodes > 1:
        placements = [name for name in AXES["placement"].choices if name != "gpu"]
        if not request.on_gpu:
            yield _build_knob("placement", "ranks run close to their memory", placements)
        yield _build_knob("memory_policy", "memory is allocated close to its ranks")
    yield _build_knob("huge_pages", "fewer TLB misses")
    yield _build_bind_knob(request)
    if request.mode != "infer" and request.traits.concurrent_under is None:
        yield _build_execution_knob(request)
    yield _build_knob("openmp", "another OpenMP runtime", ("default", "libiomp5"))
    yield _build_knob("wait_policy", "spinning threads start without delay")
    yield _build_knob("denormals", "denormal numbers are slow")
    yield _build_knob("math", "kernels of torch instead of a math library")


def _list_absent(request: KnobRequest) -> Iterable[UntriedChoice]:
    """Yield the knobs that this machine lacks, with the reason."""
    if request.machine.num_numa_nodes == 1:
        yield UntriedChoice("placement, memory_policy", "the allocation lies on one NUMA node")
    if request.machine.num_cpus == request.machine.num_cores and not request.on_gpu:
        yield UntriedChoice("smt", "the allocation has one hardware thread of each core")


def _count_filling_threads(machine: MachineView, base: Mapping[str, Any]) -> int:
    num_usable = machine.count_usable(
        smt=bool(base.get("smt", False)), num_reserved_cores=int(base.get("reserved_cores", 0))
    )
    return max(1, num_usable // int(base["processes"]))


def _build_knob(name: str, why: str, values: Iterable[str] | None = None) -> Knob:
    values = AXES[name].choices if values is None else values
    return Knob(name, tuple({name: value} for value in values), why)


def _build_layout_knob(request: KnobRequest) -> Knob | None:
    """Build the knob of memory layouts; only images have channels, and only inference packs weights."""
    takes_no_images = request.traits.takes_images is False
    if takes_no_images and not request.is_custom:
        return None
    layouts = ["contiguous", *(() if takes_no_images else ("channels_last",))]
    layouts += ["blocked"] if request.mode == "infer" else []
    return _build_knob("memory_format", "kernels without reorders", layouts) if len(layouts) > 1 else None


def _build_shape_knob(request: KnobRequest) -> Knob:
    """Build the knob of processes × threads: factorisations of cores and of CPUs, and fewer threads.

    In training, several processes also exchange their gradients in shared memory. That is part of the shape, because
    over gloo several processes may lose although they win over shared memory.
    """
    cores, cpus = request.machine.num_cores, request.machine.num_cpus
    whole = [{"processes": p, "threads": cores // p} for p in _list_divisors(cores)]
    exchanges = request.mode == "train" and request.runtime == "torch" and not request.on_gpu
    is_chosen = "collectives" in request.fixed
    shared = [{**shape, "collectives": "shared"} for shape in whole[1:]] if exchanges and not is_chosen else []
    fewer = [{"processes": 1, "threads": cores // d} for d in _list_divisors(cores)[1:]]
    more: list[dict[str, Any]] = []
    if cpus > cores:
        more = [{"processes": p, "threads": cpus // p, "smt": True} for p in _list_divisors(cpus)]
    choices: list[Mapping[str, Any]] = []
    ladders = []
    for part in (whole, shared, fewer, more):
        # Fewer threads begin at the shape that uses all cores.
        start = (0,) if part is fewer else ()
        ladders.append((*start, *range(len(choices), len(choices) + len(part))))
        choices += part
    return Knob("shape", tuple(choices), "less waiting between cores", ladders=tuple(filter(None, ladders)))


def _list_divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _build_bind_knob(request: KnobRequest) -> Knob:
    """Build the knob of thread pinning; with a GPU, also to the cores of its NUMA node."""
    names = ("none", "rank") if request.on_gpu else ("none", "rank", "core")
    choices: list[Mapping[str, Any]] = [{"bind": name} for name in names]
    near = request.machine.cores_near_gpu
    if (request.on_gpu or request.may_use_gpu) and 0 < near < request.machine.num_cores:
        choices.append({"bind": "rank", "placement": "gpu", "threads": near})
    return Knob("bind", tuple(choices), "threads keep their caches")


def _build_precision_knob(request: KnobRequest) -> Knob:
    """Build the knob of reduced precision; eager execution supports all of them, others do not."""
    dtypes = ("bfloat16", "float16") if request.on_gpu else ("bfloat16", "int8")
    flags = request.machine.instruction_sets
    # Without instructions for bfloat16, it is slower than float32.
    if not request.on_gpu and flags is not None and not flags.intersection(BFLOAT16_FLAGS):
        dtypes = ("int8", "bfloat16")
    reduced = [name for name in AXES["float32_precision"].choices if name != "default"]
    choices = ({}, *({"dtype": name} for name in dtypes), *({"float32_precision": name} for name in reduced))
    needs = {i: {"execution": "eager", "freezing": "none"} for i in range(1, len(choices))}
    return Knob("precision", choices, "reduced precision is faster", needs=needs)


def _list_batches(batch: int) -> tuple[Mapping[str, Any], ...]:
    others = [int(batch * factor) for factor in BATCH_FACTORS]
    return ({"batch": batch}, *({"batch": each} for each in others if each >= 1 and each != batch))


def _build_execution_knob(request: KnobRequest) -> Knob:
    """Build the knob of execution modes, with frozen weights in inference."""
    traits, mode = request.traits, request.mode
    levels = [level for level in AXES["freezing"].choices if level != "none" and mode == "infer"]
    # Full freezing usually gains most. Folding needs a batch normalisation.
    freezing = [level for level in reversed(levels) if level != "fold" or traits.has_batch_norm is not False]
    choices: list[Mapping[str, Any]] = [{"execution": "eager"}]
    choices += [{"execution": "eager", "freezing": level} for level in freezing]
    fast = {"execution": "fast-kernels"}
    # In inference, frozen weights use the same kernels.
    if mode == "train":
        choices.append(fast)
    under = traits.concurrent_under
    if under is not None:
        choices += [{"execution": under, "interop_threads": num} for num in (2, 4, 8)]
    # Nothing is known about the branches of a custom workload.
    has_no_branches = under is None and traits != Traits() and not request.is_custom
    # The execution modes that gain most often come first; those that are compiled start slowly.
    if not has_no_branches:
        choices += [{"execution": "malleable"}, *({"execution": "malleable", "freezing": each} for each in freezing)]
    for execution in AXES["execution"].choices:
        if execution not in ("eager", "fast-kernels", "malleable"):
            choices += [{"execution": execution, "freezing": level} for level in freezing]
            choices.append({"execution": execution})
    compiled = frozenset(i for i, choice in enumerate(choices) if choice["execution"] == "compile")
    one_process = {"processes": 1, "threads": request.machine.num_cores} if mode == "train" else {}
    needs = {
        i: {"bind": "rank", "openmp": "default", **one_process}
        for i, choice in enumerate(choices)
        if choice["execution"] == "malleable"
    }
    if mode == "train" and traits.takes_images is not False:
        needs[choices.index(fast)] = {"memory_format": "channels_last"}
    why = "operators are fused or run concurrently"
    return Knob("execution", tuple(choices), why, costly=compiled, needs=needs)


def _select_choices(
    knob: Knob,
    request: KnobRequest,
    base: Mapping[str, Any],
    explain_infeasible: InfeasibilityCheck,
    left_out: list[UntriedChoice],
) -> Knob | None:
    """Return the knob with the choices that may be tried, or None if fewer than two remain."""
    fixed = sorted({name for choice in knob.choices for name in choice if name in request.fixed})
    stock = next(
        (choice for choice in knob.choices if all(base.get(n, _get_default(n)) == v for n, v in choice.items())), {}
    )
    choices, indices = [stock], {knob.choices.index(stock): 0} if stock in knob.choices else {}
    refused: dict[Refusal, list[int]] = {}
    for number, choice in enumerate(knob.choices):
        is_fixed = bool(choice) and all(base.get(name) == value for name, value in choice.items())
        if choice == stock or is_fixed or (not choice and knob.name == "precision"):
            continue
        needed = {n: v for n, v in knob.needs.get(number, {}).items() if n not in request.fixed}
        refusal = _find_refusal(choice, fixed, request, {**base, **needed, **choice}, explain_infeasible)
        if refusal is not None:
            refused.setdefault(refusal, []).append(number)
        else:
            indices[number] = len(choices)
            choices.append(choice)
    for refusal, refused_indices in refused.items():
        axes = {refusal.axis} if refusal.axis else {name for number in refused_indices for name in knob.choices[number]}
        texts = [knob.describe(number) for number in refused_indices]
        left_out.append(UntriedChoice(_describe_choices(knob, texts), refusal.reason, refusal.cause, frozenset(axes)))
    if len(choices) < 2:
        return None
    ladders = tuple(tuple(indices[n] for n in ladder if n in indices) for ladder in knob.ladders)
    costly = frozenset(indices[n] for n in knob.costly if n in indices)
    needs = {indices[n]: needed for n, needed in knob.needs.items() if n in indices}
    return Knob(knob.name, tuple(choices), knob.why, costly, tuple(each for each in ladders if each), needs)


def _find_refusal(
    choice: Mapping[str, Any],
    fixed: Iterable[str],
    request: KnobRequest,
    params: Mapping[str, Any],
    explain_infeasible: InfeasibilityCheck,
) -> Refusal | None:
    for name in fixed:
        if params[name] != request.fixed[name]:
            source = (request.kernel or "the workload") if name in request.set_by_workload else "you"
            return Refusal(Cause.FIXED, f"{source} fixed {name} to {request.fixed[name]}", name)
    if request.kernel and params["processes"] > 1:
        reason = f"a step of {request.kernel} is one sample; several processes cannot share it"
        return Refusal(Cause.INFEASIBLE, reason)
    for name, value in choice.items():
        effect = judge_setting(name, value, mode=request.mode, traits=request.traits)
        # Even the default of the axis differs from the batch that the user asked for.
        if name == "batch":
            effect = AXIS_EFFECTS[name]
        if effect.effect not in FREE_EFFECTS and effect.effect not in request.allow:
            reason = f"{effect.reason}; allow it with --allow {effect.effect}"
            return Refusal(Cause.NOT_ALLOWED, reason)
    reason = explain_infeasible(params)
    return Refusal(Cause.INFEASIBLE, reason) if reason else None


def _get_default(name: str) -> Any:
    return AXES[name].default if name in AXES else None


def _describe_choices(knob: Knob, texts: list[str]) -> str:
    if len(texts) > 3 and knob.name == "shape":
        return f"{texts[0]} to {texts[-1]}"
    return ", ".join(dict.fromkeys(texts))
