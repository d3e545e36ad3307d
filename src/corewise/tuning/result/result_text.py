"""Render a result as text, for terminals, logs and `print`."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from corewise.analysis.tuning_results import (
    FASTER,
    NO_DIFFERENCE,
    NOT_MEASURED,
    UNCONFIRMED,
    RacedSetting,
    SettingResult,
)
from corewise.launch.ranks import OUTSIDE_DEFAULTS
from corewise.launch.worker_commands import build_launch_command
from corewise.study.durations import format_duration as format_elapsed
from corewise.study.environment_trust import select_untrusted
from corewise.text_format import clean_text, format_count, format_duration, format_figure, format_memory, format_ratio
from corewise.tuning.result.tuning_result import TuneResult
from corewise.tuning.search.coordinate_search import LATENCY_SLACK
from corewise.tuning.search.rejection_causes import strip_rank

LADDER_TITLE = "Gain of each knob"
JOINT_LADDER_TITLE = "Gain of all knobs together: the budget did not allow measuring them one at a time"
MAX_LATENCY_ROWS = 8
DISAGREEMENT_ADVICE = "Keep the default, or repeat with --again on a quieter machine or with a longer --budget."


def render_text(result: TuneResult) -> str:
    """Render the whole result, most important parts first."""
    parts = (
        _render_headline(result),
        _render_sides(result),
        _render_ladder(result),
        _render_reduced_precision(result),
        _render_latencies(result),
        _render_tied(result),
        _render_lines("Notes", [clean_text(note) for note in result.notes]),
        _render_rejected(result),
        _render_lines("Not tried", [clean_text(f"{each.description}: {each.reason}") for each in result.left_out]),
        _render_usage(result),
        _render_conclusion(result),
    )
    texts = ["\n".join(part).rstrip() for part in map(list, parts)]
    return "\n\n".join(text for text in texts if text)


def format_headline(result: TuneResult) -> str:
    """Summarize the result in one sentence."""
    if result.verdict == FASTER:
        gain = format_ratio(result.speedup, *(result.speedup_interval or (None, None)))
        again = f" in fresh runs, measured twice. The search disagrees: {result.disagreement}"
        return f"{result.best.label}: {gain} as fast as the default{again if result.disagreement else ''}."
    if result.verdict == NOT_MEASURED:
        failed = sum(each.outcome == "rejected" for each in result.tried)
        if failed < result.trials - 1:
            return "Nothing could be confirmed: every other setting failed in fresh runs. The reasons are below."
        which = f"all {failed} other settings" if failed > 1 else "the only other setting"
        return f"Nothing could be compared: {which} failed, only the default ran. The reasons are below."
    if result.disagreement:
        return f"No recommendation, because the figures disagree: {result.disagreement}. {DISAGREEMENT_ADVICE}"
    if result.verdict == NO_DIFFERENCE and result.trials <= 1 and not result.finished:
        return "Only the default was tried before the budget was used up: give a longer --budget."
    if result.verdict == NO_DIFFERENCE and result.is_undecided:
        return "No significant difference, but the runs are too noisy to decide: keep the default for now."
    faster = "faster than the default" + (" without a worse latency" if result.has_worse_latency else "")
    if result.verdict == NO_DIFFERENCE and not result.finished:
        num_others = sum(each.outcome not in ("default", "rejected") for each in result.tried)
        if num_others == 0:
            return "No difference so far: within the budget, only the default ran."
        others = format_count(num_others, "other setting")
        return f"No difference so far: the budget allowed {others}; none is {faster}."
    if result.verdict == NO_DIFFERENCE:
        return f"No difference: no setting that was tried is {faster} here. Keep the default."
    if result.is_cut:
        return _format_cut_headline(result)
    if result.best.label == result.default.label:
        return "Stopped before anything faster than the default was found."
    gain = f"about {format_ratio(result.speedup)} the default"
    return f"Stopped. Best so far: {result.best.label}, {gain}; not confirmed by fresh runs."


def _format_cut_headline(result: TuneResult) -> str:
    """Summarize a result that the budget ended before fresh runs could decide."""
    more = f"give --budget {result.least_budget_s:.0f}s or more"
    if result.best.label == result.default.label:
        num_others = sum(each.outcome not in ("default", "rejected") for each in result.tried)
        if num_others == 0:
            return f"The budget was too short to compare the default with another setting: {more}."
        others = format_count(num_others, "other setting")
        return f"No difference so far: {others} tried in the search, none faster than the default. For more, {more}."
    return (
        f"Not confirmed: {result.best.label} was about {format_ratio(result.speedup)} the default in the search, "
        f"but the budget left too little time for fresh runs; {more}."
    )


def _render_headline(result: TuneResult) -> Iterator[str]:
    yield f"{clean_text(result.title)}, on {result.machine}"
    yield format_headline(result)
    cut = not result.finished and (result.verdict != UNCONFIRMED or result.is_cut)
    search = "; the search ended early because the budget was used up" if cut else ""
    yield f"{format_count(result.trials, 'setting')} started, {format_elapsed(result.seconds)}{search}."


def _render_sides(result: TuneResult) -> Iterator[str]:
    rows = [
        [name if name == side.label else f"{name} ({side.label})", *format_figures(side, result.is_script)]
        for name, side in result.sides
    ]
    yield from format_table(["", *list_figure_names(result)], rows)


def list_figure_names(result: TuneResult) -> list[str]:
    """List the column names of the figures."""
    return [result.unit, "latency", "memory", "GPU memory", "compile", "error"]


def format_figures(side: SettingResult, is_script: bool) -> list[str]:
    """Format the figures of a setting, `-` if there is none (the steps of a script are unknown)."""
    low, high = side.interval or (None, None)
    return [
        format_figure(side.throughput, low, high),
        format_duration(side.latency_s) if side.latency_s and not is_script else "-",
        format_memory(side.memory_bytes) if side.memory_bytes else "-",
        format_memory(side.gpu_memory_bytes) if side.gpu_memory_bytes else "-",
        format_duration(side.compile_s) if side.compile_s else "-",
        ("-" if is_script else "not checked") if side.check_error is None else f"{side.check_error:.1e}",
    ]


def _render_ladder(result: TuneResult) -> Iterator[str]:
    if not result.ladder:
        return
    is_one = len(result.ladder) == 1 and "," in result.ladder[0].label
    yield JOINT_LADDER_TITLE if is_one else LADDER_TITLE
    rows = [["default", format_figure(result.default.throughput), "", ""]]
    for step in result.ladder:
        low, high = step.gain_interval or (None, None)
        gain = format_ratio(step.gain, low, high)
        rate, total = format_figure(step.side.throughput), format_ratio(step.total)
        rows.append([f"+ {step.label}", rate, gain, total])
    yield from format_table(["", result.unit, "over previous step", "over the default"], rows)


def _render_reduced_precision(result: TuneResult) -> Iterator[str]:
    """Render gain and error of the fastest setting of each reduced precision, even if it did not win."""
    fastest: dict[tuple[object, ...], RacedSetting] = {}
    for each in sorted(result.tried, key=lambda each: -each.ratio):
        precision = _extract_changed_precision(each.params, result.default.params)
        if each.throughput and precision:
            fastest.setdefault(precision, each)
    if not fastest:
        return
    yield "Reduced precision: gain and error"
    rows = []
    for each in fastest.values():
        error = "not checked" if each.check_error is None else f"{each.check_error:.1e}"
        rows.append([each.label, format_ratio(each.ratio), error])
    yield from format_table(["", "over the default, in the search", "error"], rows)


def _extract_changed_precision(params: Mapping[str, object], default: Mapping[str, object]) -> tuple[object, ...]:
    """Return the precision settings that differ from the default's; parameters that are not set do not differ."""
    names = ("dtype", "float32_precision", "denormals")
    return tuple((name, params[name]) for name in names if name in params and params[name] != default.get(name))


def _render_latencies(result: TuneResult) -> Iterator[str]:
    """Render the trade-off: settings that no other beats in both throughput and latency."""
    front = find_latency_front(collect_latency_points(result)) if result.mode == "infer" else []
    if len(front) < 2:
        return
    yield "Throughput against latency"
    rows = []
    for each in front[:MAX_LATENCY_ROWS]:
        notes = ["from short samples only"] if each.is_raced else []
        notes += ["its latency is worse than the default's"] if each.is_slower else []
        ratio, latency = format_ratio(each.ratio), format_duration(each.latency_s)
        rows.append([each.label, ratio, latency, "; ".join(notes)])
    yield from format_table(["", "over the default", "latency", ""], rows)


@dataclass(frozen=True)
class LatencyPoint:
    """The throughput of a setting, relative to the default, and its latency.

    Attributes:
        is_raced: It was measured in the search only, not in fresh runs.
        is_slower: Its latency is worse than the default's.
    """

    label: str
    ratio: float
    latency_s: float
    is_raced: bool
    is_slower: bool = False


def collect_latency_points(result: TuneResult) -> list[LatencyPoint]:
    """Collect all settings with figures: from fresh runs if there are any, else from the search."""
    default = result.default
    fresh = {side.label: side for side in result.measured}
    points = [
        LatencyPoint(side.label, ratio, side.latency_s, False, side.latency_s > (1 + LATENCY_SLACK) * default.latency_s)
        for side in fresh.values()
        if (ratio := 1.0 if side.label == default.label else side.over_default) is not None
    ]
    base_s = next((each.latency_s for each in result.tried if each.outcome == "default"), 0.0)
    scale = default.latency_s / base_s if base_s and default.latency_s else 1.0
    raced = [each for each in result.tried if each.throughput and each.label not in fresh]
    points += [
        LatencyPoint(each.label, each.ratio, scale * each.latency_s, True, each.outcome == "latency") for each in raced
    ]
    return points


def find_latency_front(points: Sequence[LatencyPoint]) -> list[LatencyPoint]:
    """Return the settings that no other beats in both throughput and latency, lowest latency first."""
    front: list[LatencyPoint] = []
    for each in sorted(points, key=lambda each: each.latency_s):
        if not front or each.ratio > front[-1].ratio:
            front.append(each)
    return front


def _render_tied(result: TuneResult) -> Iterator[str]:
    best = next((each.ratio for each in result.tried if each.label == result.best.label), 0.0)
    lines = [
        f"{clean_text(each.label)} ({format_ratio(each.ratio / best)} the best)" if best else clean_text(each.label)
        for each in result.tied
    ]
    return _render_lines("No significant difference from the best in the search", lines)


def _render_rejected(result: TuneResult) -> Iterator[str]:
    last_lines = {clean_text(strip_rank(reason)): lines for reason, lines in result.failure_lines.items()}
    lines = []
    for each in result.rejected:
        num, reason = each.num_avoided, clean_text(each.reason)
        others = f" ({format_count(num, 'other setting')} with it not started)" if num else ""
        lines.append(f"{clean_text(each.description)}: {reason}{others}")
        lines += [f"  | {clean_text(line)}" for line in last_lines.get(reason, ())]
    return _render_lines("Failed" if result.verdict == NOT_MEASURED else "Rejected", lines)


def _render_usage(result: TuneResult) -> Iterator[str]:
    if result.code and not result.found_nothing:
        yield "In your code"
        for line in result.code.values():
            yield f"  {line}"
        yield ""
    if result.best.command and not result.is_script:
        yield "To repeat the measurement from cold"
        yield f"  {result.best.command}"


def _render_conclusion(result: TuneResult) -> Iterator[str]:
    """Render the last lines of the text, five at most."""
    lines = build_conclusion(result)
    width = max(map(len, lines)) + 1
    yield from (f"{name + ':':<{width}} {clean_text(text)}" for name, text in lines.items())


def build_conclusion(result: TuneResult) -> dict[str, str]:
    """Build the conclusion by title: what to type, why, how sure we are, and which files were written."""
    lines = {
        "Type": _suggest_command(result),
        "In your code": _describe_code(result),
        "Why": format_headline(result),
        "How sure": _describe_confidence(result),
        "Files": _describe_files(result),
    }
    return {name: text for name, text in lines.items() if text}


def _describe_files(result: TuneResult) -> str:
    settings = "the default's settings" if result.verdict == NO_DIFFERENCE else "the settings"
    files = ((result.output, settings), (result.report, "the charts"))
    return ", ".join(f"{path} ({what})" for path, what in files if path)


def _suggest_command(result: TuneResult) -> str:
    if result.verdict in (NO_DIFFERENCE, NOT_MEASURED) or result.found_nothing:
        return f"no change: {_name_program(result)}"
    return build_launch_line(result)


def _describe_code(result: TuneResult) -> str:
    lines = [] if result.found_nothing else list(result.code.values())
    return f"the {len(lines)} lines above" if len(lines) > 1 else "".join(lines)


def _describe_confidence(result: TuneResult) -> str:
    """Describe in one sentence what the result rests on."""
    if result.is_cut:
        return "not yet: the budget ended before fresh runs could confirm it. Run the same command again to resume."
    if result.verdict == UNCONFIRMED:
        return "not yet: the search was stopped before fresh runs confirmed it. Run the same command to resume."
    if result.verdict == NOT_MEASURED:
        return "nothing was compared. Fix the cause of the failures, then run the same command again."
    best, default = (_format_rate(side, result.unit) for side in (result.best, result.default))
    if result.best.interval is None or result.default.interval is None:
        return "not yet: no setting was measured in fresh processes."
    load = " Other load disturbed them." if result.is_disturbed else ""
    if result.verdict == FASTER:
        return f"{best} against {default}, in fresh interleaved processes.{load}"
    tried = format_count(max(0, result.trials - 1), "other setting")
    return f"the default gives {default}; {tried} tried.{load}"


def _format_rate(side: SettingResult, unit: str) -> str:
    low, high = side.interval or (None, None)
    return format_figure(side.throughput, low, high, unit, confidence=0.95)


def _name_program(result: TuneResult) -> str:
    return result.command or f"python {'infer' if result.mode == 'infer' else 'train'}.py"


def build_launch_line(result: TuneResult) -> str:
    """Build the command that starts the program with the best setting, from the tuned file or by options."""
    program = _name_program(result)
    if result.output:
        consent = " --trust-environment" if select_untrusted(result.environment) else ""
        return f"corewise launch --config {shlex.quote(result.output)}{consent} -- {program}"
    params = result.best.params
    changed = {n: params[n] for n, usual in OUTSIDE_DEFAULTS.items() if params.get(n, usual) != usual}
    *command, end = build_launch_command(changed, (), result.environment)
    if result.mode == "infer" and params.get("processes", 1) > 1:
        command.append("--replicas")
    return f"{shlex.join([*command, end])} {program}"


def _render_lines(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield title
        yield from (f"  {line}" for line in lines)


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Format a plain text table: first column left-aligned, others right-aligned, no empty columns."""
    lines = drop_empty_columns(header, [[clean_text(row[0]), *row[1:]] for row in rows])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        yield "  " + "  ".join(cells).rstrip()


def drop_empty_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return header and rows without empty columns; the first column always stays."""
    columns = [i for i in range(len(header)) if i == 0 or any(row[i].strip("-") for row in rows)]
    return [[row[i] for i in columns] for row in (header, *rows)]
