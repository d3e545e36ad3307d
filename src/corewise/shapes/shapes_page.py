"""The report page of `corewise shapes`: answer, charts, a row per policy, the code, files that were left out."""

from typing import Any

from corewise import __version__
from corewise.report.report_model import Column, Report, StudyPart, Table
from corewise.shapes.answer_text import describe_images, summarize_shapes, write_code
from corewise.shapes.shapes_answer import ShapesAnswer
from corewise.shapes.shapes_charts import build_policies_chart, build_sizes_chart
from corewise.study.record import format_utc_now

_MAX_PROBLEMS = 200


def build_shapes_report(answer: ShapesAnswer) -> Report:
    """Build the report."""
    sentences = summarize_shapes(answer)
    tables = [_build_policies_table(answer)]
    if answer.found.problems:
        tables.append(_build_problems_table(answer))
    part = StudyPart(
        key="shapes",
        title=f"Images of {answer.found.folder}",
        question="How much of each batch is padding, and how can it be avoided?",
        answers=[" ".join(sentences[:1]), *sentences[1:]],
        charts=[build_sizes_chart(answer), build_policies_chart(answer)],
        tables=tables,
        code=write_code(answer),
        method=[
            ("collection", " ".join(describe_images(answer))),
            ("sizes", "read from the headers of the files; nothing was decoded or trained"),
            ("padding", "zeros up to the largest height and width of the batch; of packed batches, the free canvas"),
            ("memory", f"{answer.question.gb_per_megapixel:g} GB per computed megapixel, plus nothing else"),
            (
                "companions",
                "effective number of images that an image shares batches with over many epochs; its logarithm is "
                "the collision entropy of the batch composition",
            ),
            ("seed", str(answer.question.seed)),
        ],
    )
    return Report(
        title=f"Shapes of {len(answer.sizes):,} images",
        made_at=format_utc_now(),
        corewise_version=__version__,
        summary=sentences[:1],
        studies=[part],
    )


def _build_policies_table(answer: ShapesAnswer) -> Table:
    columns = [
        Column(key="policy", title="policy"),
        Column(key="batch", title="images per batch", kind="number", hint="mean"),
        Column(key="padding", title="padding", kind="percent"),
        Column(key="batches", title="batches", kind="number"),
        Column(key="mean", title="mean batch", kind="number", unit="megapixels"),
        Column(key="peak", title="largest batch", kind="number", unit="megapixels"),
        Column(key="memory", title="peak memory", kind="bytes"),
        Column(key="time", title="time against random", kind="number", hint="computed pixels over those of random"),
        Column(key="seconds", title="epoch", kind="seconds", hint="with --seconds-per-megapixel"),
        Column(key="companions", title="companions", kind="number", hint="effective number; see the method"),
        Column(key="step", title="step imbalance", kind="percent", hint="slowest rank over the mean, worst step"),
        Column(key="epoch", title="epoch imbalance", kind="percent"),
    ]
    rows: list[list[Any]] = [
        [
            name,
            each.figures.num_images / each.figures.num_batches,
            each.figures.padding_share,
            each.figures.num_batches,
            each.figures.mean_pixels / 1e6,
            each.figures.peak_pixels / 1e6,
            each.peak_gb * 1e9,
            each.time_over_random,
            each.seconds,
            each.companions,
            each.figures.step_imbalance,
            each.figures.epoch_imbalance,
        ]
        for name, each in answer.policies.items()
    ]
    best = list(answer.policies).index(answer.recommended)
    return Table(key="policies", title="Policies", columns=columns, rows=rows, best_rows=[best])


def _build_problems_table(answer: ShapesAnswer) -> Table:
    problems = answer.found.problems
    rows = [[each.path, each.reason] for each in problems[:_MAX_PROBLEMS]]
    caption = f"{len(rows):,} of {len(problems):,} files." if len(rows) < len(problems) else ""
    columns = [Column(key="path", title="file"), Column(key="reason", title="reason")]
    return Table(key="left-out", title="Files left out", columns=columns, rows=rows, caption=caption)
