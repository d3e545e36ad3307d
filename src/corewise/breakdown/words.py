"""Where a model's time goes, in sentences, and the command to try next."""

import shlex
from collections.abc import Iterator, Sequence

from corewise.breakdown.judged import WITHIN, Answer, JudgedPrimitive
from corewise.report.words import counted, duration
from corewise.workloads.breakdown import BETWEEN

SHORT_CALL_S = 30e-6
WORTH_TELLING = 0.005  # of the step
MUCH_NEW = 0.02  # of the step, for new pages
MUCH_BETWEEN = 0.15
POOR = 0.6  # of the ceiling
LABEL_LETTERS = 46


def share_words(value: float) -> str:
    """A share of the step as people say it: 71 %."""
    percent = 100 * value
    return f"{percent:.0f} %" if abs(percent) >= 9.5 or percent == 0 else f"{percent:.1f} %"


def label(judged: JudgedPrimitive) -> str:
    """A primitive in a few words: what it does and to what."""
    own = judged.primitive
    what = own.problem or own.shapes or own.dtype
    return f"{own.operator} {what}".strip()


def summary(answer: Answer) -> list[str]:
    """The answer, the most important first; of a doubtful one only why, of a disturbed one no losses."""
    rest = [_wrong(answer), _unknown(answer)]
    if answer.breakdown.is_doubtful:
        told = [_doubt(answer), _sum(answer), *rest]
    elif answer.breakdown.is_disturbed:
        told = [_disturbed(answer), _most(answer), _sum(answer), _pages(answer), *rest]
    else:
        told = [_most(answer), _sum(answer), *_losses(answer), _pages(answer), *rest]
    return [sentence for sentence in told if sentence]


def _doubt(answer: Answer) -> str:
    found = answer.breakdown
    if found.notes:
        why = f"the machine was not quiet ({found.notes[0]})"
    else:
        why = "the step changed its pace between steps that were watched and those that were not"
    return (
        f"This breakdown is doubtful: its operators took {duration(found.in_model_s)} in the model, longer "
        f"than the step of {duration(found.step_s)} that they are part of; {why}. Shares and losses are "
        "not told: measure again on a quiet machine."
    )


def _disturbed(answer: Answer) -> str:
    return (
        f"The machine was not quiet ({answer.breakdown.notes[0]}): shares are rough, what lies between "
        "operators is overstated, and losses are not told."
    )


def _wrong(answer: Answer) -> str:
    wrong = [each for each in answer.primitives if each.primitive.is_wrong_alone]
    if not wrong:
        return ""
    more = f" ({len(wrong) - 1} more: --all names them)" if len(wrong) > 1 else ""
    return (
        f"{label(wrong[0])} is not timed alone, and counts as in the model: "
        f"{wrong[0].primitive.why_not_alone}{more}."
    )


def _most(answer: Answer) -> str:
    first = answer.shares[0]
    if first.share.category == BETWEEN:
        return "The step has no operators that take time."
    told = f"{share_words(first.share.of_step)} of the step is {first.share.category}"
    if first.fraction is not None:
        told += f"; it runs at {share_words(first.fraction)} of what this machine attains"
    rest = [s for s in answer.shares[1:] if s.share.of_step >= 0.05 and s.share.category != BETWEEN][:3]
    others = ", ".join(f"{s.share.category} {share_words(s.share.of_step)}" for s in rest)
    return f"{told}. Then {others}." if others else f"{told}."


def _pages(answer: Answer) -> str:
    found = answer.breakdown
    if found.new_pages_s < MUCH_NEW * found.step_s:
        return ""
    num_pages = sum(each.primitive.new_pages * each.primitive.num_calls for each in answer.primitives)
    return (
        f"{duration(found.new_pages_s)} of it, {share_words(found.new_pages_s / found.step_s)}, goes into "
        f"{num_pages:,.0f} pages of memory that are new to the process at every step: an allocator that "
        "keeps its memory avoids them, as in `--set allocator=retain`."
    )


def _unknown(answer: Answer) -> str:
    if answer.ceilings_are_busy:
        return (
            "The ceilings were measured on a busy machine: too low, so that shares of them are too high. "
            "`corewise doctor --ceilings` raises them when it is quiet."
        )
    if answer.ceilings_of:
        return ""
    return "What this machine attains is not known yet: `corewise doctor --ceilings` measures it."


def _sum(answer: Answer) -> str:
    found = answer.breakdown
    told = (
        f"A step takes {duration(found.step_s)}. Its primitives take {duration(found.in_model_s)} in the "
        f"model and {duration(found.alone_s)} alone, {share_words(found.sum_over_step)} of the step"
    )
    if found.between_s is not None:
        told += f"; {share_words(found.between_s / found.step_s)} lies between operators"
    if answer.is_within is False:
        low, high = (share_words(each) for each in WITHIN)
        told += f". That is not within {low} to {high}: {_why_not_within(answer)}"
    return told + "."


def _why_not_within(answer: Answer) -> str:
    found = answer.breakdown
    num_calls = sum(each.primitive.num_calls for each in answer.primitives)
    if found.is_disturbed:
        return "the machine was not quiet"
    if found.in_model_s < SHORT_CALL_S * num_calls or (found.between_s or 0.0) > 0.1 * found.step_s:
        return "operators are so short that calling them and the framework between them count"
    return "the model's surroundings matter"


def _losses(answer: Answer) -> Iterator[str]:
    """The largest loss to the model's surroundings, then the largest to the ceiling."""
    step_s = answer.breakdown.step_s
    taxed = [p for p in answer.primitives if p.primitive.alone_s is not None]
    worst = max(taxed, key=_tax_s, default=None)
    if worst is not None and _tax_s(worst) >= WORTH_TELLING * step_s:
        ratio = worst.primitive.model_over_alone or 1.0
        yield (
            f"The largest loss to the model's surroundings is {label(worst)}: {ratio:.3g} times as long in "
            f"the model as alone, {duration(_tax_s(worst))} a step, {_why_taxed(worst)}."
        )
    slow = max((p for p in answer.primitives if p.fraction is not None), key=_lost_s, default=None)
    if slow is not None and slow.ceiling_s is not None and _lost_s(slow) >= WORTH_TELLING * step_s:
        yield (
            f"The largest distance to the ceiling is {label(slow)}: {duration(slow.primitive.in_model_s)} "
            f"where {'memory' if slow.limit == 'memory' else 'arithmetic'} would allow "
            f"{duration(slow.ceiling_s)}."
        )


def _tax_s(judged: JudgedPrimitive) -> float:
    return judged.primitive.in_model_s - judged.primitive.counted_s


def _lost_s(judged: JudgedPrimitive) -> float:
    return judged.primitive.in_model_s - (judged.ceiling_s or 0.0)


def _why_taxed(worst: JudgedPrimitive) -> str:
    """The likeliest reason that the figures give."""
    own = worst.primitive
    if own.in_model_s / max(1.0, own.num_calls) < SHORT_CALL_S:
        return "because its calls are so short that calling counts"
    if own.cached_share < 0.5:
        return "likely because its neighbours leave it less of the caches and of the bandwidth"
    return "likely because its inputs lie in other cores' caches or have left them"


def next_commands(answer: Answer) -> list[tuple[str, str]]:
    """What to try, and why: command and reason."""
    params, found = answer.params, answer.breakdown
    commands: list[tuple[str, str]] = []
    if found.is_doubtful:
        rounds = str(2 * len(found.sums_over_steps))
        commands.append((_command("primitives", answer, ("--rounds", rounds)), "once the machine is quiet"))
    kinds = {each.share.category: each for each in answer.shares}
    images = sum(kinds[name].share.of_step for name in ("convolution", "pooling") if name in kinds)
    if images > 0.2 and params.get("memory_format") == "contiguous":
        command = _command("primitives", answer, ("--set", "memory_format=channels_last"))
        commands.append((command, "convolutions and pooling without reorders between layouts"))
    if not answer.ceilings_of:
        commands.append(
            ("corewise doctor --ceilings", "then this table shows the fraction of the attainable")
        )
    between = (found.between_s or 0.0) / found.step_s
    why = "searches threads, layout, allocator and compilation together"
    if between > MUCH_BETWEEN and not found.is_disturbed:
        why = f"{share_words(between)} lies between operators: compilation may join them"
    commands.append((_command("tune", answer), why))
    return commands


def _command(verb: str, answer: Answer, more: Sequence[str] = ()) -> str:
    words = ["corewise", verb, answer.subject, *_without_layout(answer.options if verb == "primitives" else
             _for_tune(answer.options), more), *more]  # fmt: skip
    return shlex.join(words)


def _for_tune(options: Sequence[str]) -> list[str]:
    """Mode, batch and arguments: the tuner finds the rest."""
    kept = []
    for name, value in zip(options[::2], options[1::2], strict=True):
        if name in ("--mode", "--batch", "--args", "--python") or value.startswith("device="):
            kept += [name, value]
    return kept


def _without_layout(options: Sequence[str], more: Sequence[str]) -> list[str]:
    if not any(word.startswith("memory_format=") for word in more):
        return list(options)
    pairs = zip(options[::2], options[1::2], strict=True)
    return [word for pair in pairs if not pair[1].startswith("memory_format=") for word in pair]


def method_words(answer: Answer) -> list[tuple[str, str]]:
    """How it was measured: name and value."""
    found = answer.breakdown
    not_alone = [p.primitive for p in answer.primitives if p.primitive.alone_s is None]
    told = [
        (
            "in the model",
            "every operator that torch calls in a step, timed from within; "
            f"{found.call_cost_s * 1e6:.1f} µs that the watching costs are taken off every call; "
            f"a watched step took {duration(found.watched_step_s)}, an unwatched one {duration(found.step_s)}"
            if found.device == "cpu"
            else "every operator that torch calls in a step, between two events on the GPU",
        ),
        (
            "alone",
            "the same shapes, strides and number formats, new random normal numbers with the mean and "
            "spread of the model's; inputs rotate over more than the last cache holds "
            f"({found.cache_bytes / 2**20:.0f} MiB), so that they come from memory, but for those that the "
            "model had used a moment before, which are read again just before the call; the cores' own "
            "caches are swept first",
        ),
        (
            "check",
            f"{counted(found.num_checked, 'primitive')} alone on the very input of the model's call; largest "
            f"error {found.check_error:.1e}",
        ),
        ("rounds", f"{len(found.sums_over_steps)}, each of steps, watched steps, primitives alone, steps; "
                   f"sums over steps {', '.join(f'{each:.2f}' for each in found.sums_over_steps)}; "
                   f"{found.num_repeated} more were disturbed and set aside"),
        ("times", "the median over rounds of the low quartile in each: disturbances only ever add time"),
        ("threads", f"{found.num_threads} on {answer.machine}"),
        ("ceilings", answer.ceilings_of or "none kept: `corewise doctor --ceilings` measures them"),
    ]  # fmt: skip
    if not_alone:
        names = sorted({f"{each.operator} ({each.why_not_alone})" for each in not_alone})
        told.append(("not run alone", f"{', '.join(names)}: counted as in the model"))
    not_judged = sorted({p.primitive.operator for p in answer.primitives if p.primitive.flops is None})
    if not_judged:
        told.append(("not judged", f"{', '.join(not_judged)}: its arithmetic is not counted"))
    return told
