"""Sentences on where a model's time goes, and the commands to try next."""

import shlex
from collections.abc import Iterator, Sequence

from corewise.explain.ceiling_verdicts import WITHIN, JudgedPrimitive, PrimitivesAnswer
from corewise.measured.parameters import MemoryFormat
from corewise.measured.workloads.model_breakdown import BETWEEN
from corewise.text_format import format_count, format_duration

# Seconds; shorter calls are dominated by call overhead.
SHORT_CALL_S = 30e-6
# Shares of the step from which on a loss, new pages or the time between operators are reported.
MIN_LOSS_SHARE = 0.005
MIN_NEW_PAGES_SHARE = 0.02
MIN_BETWEEN_SHARE = 0.15


def format_share(value: float) -> str:
    """Format a share of the step: 71 %."""
    percent = 100 * value
    return f"{percent:.0f} %" if abs(percent) >= 9.5 or percent == 0 else f"{percent:.1f} %"


def label_primitive(judged: JudgedPrimitive) -> str:
    """Label a primitive by its operator and problem."""
    own = judged.primitive
    what = own.problem or own.shapes or own.dtype
    return f"{own.operator} {what}".strip()


def summarize_answer(answer: PrimitivesAnswer) -> list[str]:
    """Return the sentences, the most important first; losses only from an undisturbed breakdown."""
    rest = [_explain_wrong_primitives(answer), _describe_missing_ceilings(answer)]
    if answer.breakdown.is_doubtful:
        sentences = [_explain_doubt(answer), _describe_sum(answer), *rest]
    elif answer.breakdown.is_disturbed:
        sentences = [
            _explain_disturbance(answer), _describe_largest_share(answer), _describe_sum(answer),
            _describe_new_pages(answer), *rest,
        ]  # fmt: skip
    else:
        sentences = [
            _describe_largest_share(answer),
            _describe_sum(answer),
            *_describe_losses(answer),
            _describe_new_pages(answer),
            *rest,
        ]
    return [sentence for sentence in sentences if sentence]


def _explain_doubt(answer: PrimitivesAnswer) -> str:
    breakdown = answer.breakdown
    if breakdown.notes:
        reason = f"the machine was not quiet ({breakdown.notes[0]})"
    else:
        reason = "steps with and without instrumentation took different times"
    return (
        f"This breakdown is doubtful: its operators took {format_duration(breakdown.in_model_s)} in the "
        f"model, longer than the step of {format_duration(breakdown.step_s)} itself; {reason}. Shares and "
        "losses are not reported. Measure again on a quiet machine."
    )


def _explain_disturbance(answer: PrimitivesAnswer) -> str:
    return (
        f"The machine was not quiet ({answer.breakdown.notes[0]}): shares are approximate, time between "
        "operators is overstated, and losses are not reported."
    )


def _explain_wrong_primitives(answer: PrimitivesAnswer) -> str:
    wrong = [each for each in answer.primitives if each.primitive.is_wrong_alone]
    if not wrong:
        return ""
    more = f" ({len(wrong) - 1} more: --all lists them)" if len(wrong) > 1 else ""
    return (
        f"{label_primitive(wrong[0])} is not timed alone and counts with its time in the model: "
        f"{wrong[0].primitive.why_not_alone}{more}."
    )


def _describe_largest_share(answer: PrimitivesAnswer) -> str:
    first = answer.shares[0]
    if first.share.category == BETWEEN:
        return "The step has no operators that take time."
    sentence = f"{format_share(first.share.of_step)} of the step is {first.share.category}"
    if first.fraction is not None:
        sentence += f"; it runs at {format_share(first.fraction)} of the attainable rate"
    rest = [s for s in answer.shares[1:] if s.share.of_step >= 0.05 and s.share.category != BETWEEN][:3]
    others = ", ".join(f"{s.share.category} {format_share(s.share.of_step)}" for s in rest)
    return f"{sentence}. Then {others}." if others else f"{sentence}."


def _describe_new_pages(answer: PrimitivesAnswer) -> str:
    breakdown = answer.breakdown
    if breakdown.new_pages_s < MIN_NEW_PAGES_SHARE * breakdown.step_s:
        return ""
    num_pages = sum(each.primitive.new_pages * each.primitive.num_calls for each in answer.primitives)
    return (
        f"{format_duration(breakdown.new_pages_s)} of it, "
        f"{format_share(breakdown.new_pages_s / breakdown.step_s)}, goes into "
        f"{num_pages:,.0f} memory pages that are new to the process in every step. An allocator that "
        "retains memory avoids them: `--set allocator=retain`."
    )


def _describe_missing_ceilings(answer: PrimitivesAnswer) -> str:
    if answer.ceilings_are_busy:
        return (
            "The ceilings were measured on a busy machine. They are too low, so shares of them are too high. "
            "Run `corewise doctor --ceilings` again on a quiet machine."
        )
    if answer.ceilings_of:
        return ""
    return "The ceilings of this machine are unknown. Run `corewise doctor --ceilings` to measure them."


def _describe_sum(answer: PrimitivesAnswer) -> str:
    breakdown = answer.breakdown
    sentence = (
        f"A step takes {format_duration(breakdown.step_s)}. Its primitives take "
        f"{format_duration(breakdown.in_model_s)} in the model and {format_duration(breakdown.alone_s)} "
        f"alone, {format_share(breakdown.sum_over_step)} of the step"
    )
    if breakdown.between_s is not None:
        sentence += f"; {format_share(breakdown.between_s / breakdown.step_s)} lies between operators"
    if answer.is_within is False:
        low, high = (format_share(each) for each in WITHIN)
        sentence += f". That is outside {low} to {high}: {_explain_gap(answer)}"
    return sentence + "."


def _explain_gap(answer: PrimitivesAnswer) -> str:
    breakdown = answer.breakdown
    num_calls = sum(each.primitive.num_calls for each in answer.primitives)
    if breakdown.is_disturbed:
        return "the machine was not quiet"
    if breakdown.in_model_s < SHORT_CALL_S * num_calls or (breakdown.between_s or 0.0) > 0.1 * breakdown.step_s:
        return "operators are so short that call overhead and the framework between them matter"
    return "operators behave differently inside the model"


def _describe_losses(answer: PrimitivesAnswer) -> Iterator[str]:
    """Yield the largest loss inside the model, then the largest distance to the ceiling."""
    step_s = answer.breakdown.step_s
    taxed = [p for p in answer.primitives if p.primitive.alone_s is not None]
    worst = max(taxed, key=_compute_tax_s, default=None)
    if worst is not None and _compute_tax_s(worst) >= MIN_LOSS_SHARE * step_s:
        ratio = worst.primitive.model_over_alone or 1.0
        yield (
            f"The largest loss inside the model is {label_primitive(worst)}: it takes {ratio:.3g} times as "
            f"long as alone, {format_duration(_compute_tax_s(worst))} more per step, {_explain_tax(worst)}."
        )
    slow = max((p for p in answer.primitives if p.fraction is not None), key=_compute_loss_s, default=None)
    if slow is not None and slow.ceiling_s is not None and _compute_loss_s(slow) >= MIN_LOSS_SHARE * step_s:
        yield (
            f"The largest distance to the ceiling is {label_primitive(slow)}: "
            f"{format_duration(slow.primitive.in_model_s)} "
            f"where {'memory' if slow.limit == 'memory' else 'arithmetic'} would allow "
            f"{format_duration(slow.ceiling_s)}."
        )


def _compute_tax_s(judged: JudgedPrimitive) -> float:
    return judged.primitive.in_model_s - judged.primitive.counted_s


def _compute_loss_s(judged: JudgedPrimitive) -> float:
    return judged.primitive.in_model_s - (judged.ceiling_s or 0.0)


def _explain_tax(worst: JudgedPrimitive) -> str:
    """Return the most likely reason for the loss."""
    own = worst.primitive
    if own.in_model_s / max(1.0, own.num_calls) < SHORT_CALL_S:
        return "because its calls are so short that call overhead matters"
    if own.cached_share < 0.5:
        return "likely because neighbouring operators take cache and bandwidth"
    return "likely because its inputs are in other cores' caches or were evicted"


def suggest_commands(answer: PrimitivesAnswer) -> list[tuple[str, str]]:
    """Suggest commands to try next, each with its reason."""
    params, breakdown = answer.params, answer.breakdown
    commands: list[tuple[str, str]] = []
    if breakdown.is_doubtful:
        rounds = str(2 * len(breakdown.sums_over_steps))
        commands.append((_build_command("primitives", answer, ("--rounds", rounds)), "once the machine is quiet"))
    shares = {each.share.category: each for each in answer.shares}
    images = sum(shares[name].share.of_step for name in ("convolution", "pooling") if name in shares)
    if images > 0.2 and params.memory_format == MemoryFormat.CONTIGUOUS:
        command = _build_command("primitives", answer, ("--set", "memory_format=channels_last"))
        commands.append((command, "runs convolutions and pooling without reorders between layouts"))
    if not answer.ceilings_of:
        commands.append(("corewise doctor --ceilings", "adds the share of the attainable rate to this table"))
    between = (breakdown.between_s or 0.0) / breakdown.step_s
    reason = "searches threads, layout, allocator and compilation together"
    if between > MIN_BETWEEN_SHARE and not breakdown.is_disturbed:
        reason = f"{format_share(between)} lies between operators; compilation may fuse them"
    commands.append((_build_command("tune", answer), reason))
    return commands


def _build_command(verb: str, answer: PrimitivesAnswer, more: Sequence[str] = ()) -> str:
    arguments = ["corewise", verb, answer.subject, *_drop_layout(answer.options if verb == "primitives" else
             _select_tune_options(answer.options), more), *more]  # fmt: skip
    return shlex.join(arguments)


def _select_tune_options(options: Sequence[str]) -> list[str]:
    """Keep mode, batch and arguments; the tuner finds the rest."""
    selected = []
    for name, value in zip(options[::2], options[1::2], strict=True):
        if name in ("--mode", "--batch", "--args", "--python") or value.startswith("device="):
            selected += [name, value]
    return selected


def _drop_layout(options: Sequence[str], more: Sequence[str]) -> list[str]:
    if not any(option.startswith("memory_format=") for option in more):
        return list(options)
    pairs = zip(options[::2], options[1::2], strict=True)
    return [option for pair in pairs if not pair[1].startswith("memory_format=") for option in pair]


def describe_method(answer: PrimitivesAnswer) -> list[tuple[str, str]]:
    """Describe how the primitives were measured, as names and values."""
    breakdown = answer.breakdown
    not_alone = [p.primitive for p in answer.primitives if p.primitive.alone_s is None]
    rows = [
        (
            "in the model",
            "every operator that torch calls in a step, timed inside the model; "
            f"{breakdown.call_cost_s * 1e6:.1f} µs of instrumentation overhead are subtracted from every "
            f"call; an instrumented step took {format_duration(breakdown.watched_step_s)}, a plain one "
            f"{format_duration(breakdown.step_s)}"
            if breakdown.device == "cpu"
            else "every operator that torch calls in a step, between two events on the GPU",
        ),
        (
            "alone",
            "same shapes, strides and number formats, with random normal values of the model's mean and "
            "spread; inputs rotate over more memory than the last-level cache holds "
            f"({breakdown.cache_bytes / 2**20:.0f} MiB), so they come from memory. Inputs that the model "
            "had just used are read again right before the call; the cores' private caches are flushed first",
        ),
        (
            "check",
            f"{format_count(breakdown.num_checked, 'primitive')} alone on the input of the model's call; "
            f"largest error {breakdown.check_error:.1e}",
        ),
        (
            "rounds",
            f"{len(breakdown.sums_over_steps)}, each with steps, instrumented steps, primitives alone, "
            f"steps; sums over steps {', '.join(f'{each:.2f}' for each in breakdown.sums_over_steps)}; "
            f"{breakdown.num_repeated} more were disturbed and set aside",
        ),
        ("times", "median over rounds of the lower quartile in each, because disturbances only add time"),
        ("threads", f"{breakdown.num_threads} on {answer.machine}"),
        ("ceilings", answer.ceilings_of or "none: `corewise doctor --ceilings` measures them"),
    ]
    if not_alone:
        names = sorted({f"{each.operator} ({each.why_not_alone})" for each in not_alone})
        rows.append(("not run alone", f"{', '.join(names)}: counted with the time in the model"))
    not_judged = sorted({p.primitive.operator for p in answer.primitives if p.primitive.flops is None})
    if not_judged:
        rows.append(("not judged", f"{', '.join(not_judged)}: operations are not counted"))
    return rows
