"""`corewise shapes DIR`: what padding costs for a folder of images, and which batches avoid it."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from corewise.cli.common_options import JsonOption, QuietOption
from corewise.cli.render.chart_packages import require_chart_packages
from corewise.errors import UserError
from corewise.shapes.shapes_answer import RESNET18_GB_PER_MEGAPIXEL, ShapesAnswer, ShapesQuestion

# Shorter work needs no bar.
_MIN_FILES_FOR_BAR = 2000


def shapes(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of images, at any depth.")],
    batch: Annotated[int | None, typer.Option("--batch", metavar="N", help="Images per batch.")] = None,
    max_pixels: Annotated[
        str | None, typer.Option("--max-pixels", metavar="N", help="Pixels per batch with padding, such as 20M.")
    ] = None,
    ranks: Annotated[int, typer.Option("--ranks", metavar="N", help="Processes of data-parallel training.")] = 1,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Decides what is random.")] = 0,
    short_side: Annotated[
        int | None, typer.Option("--short-side", metavar="N", help="Plan as if scaled to this short side.")
    ] = None,
    gb_per_megapixel: Annotated[
        float, typer.Option("--gb-per-megapixel", metavar="X", help="Memory of your training step.")
    ] = RESNET18_GB_PER_MEGAPIXEL,
    seconds_per_megapixel: Annotated[
        float | None, typer.Option("--seconds-per-megapixel", metavar="X", help="Time of your training step.")
    ] = None,
    max_image_pixels: Annotated[
        str | None, typer.Option("--max-image-pixels", metavar="N", help="Leave out larger images, such as 500M.")
    ] = None,
    generate: Annotated[
        int | None, typer.Option("--generate", metavar="N", help="First write N generated images to the new DIR.")
    ] = None,
    mean_megapixels: Annotated[
        float | None, typer.Option("--mean-megapixels", metavar="X", help="Mean area of generated images.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Also write a page with charts.")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show what padding costs when images of many sizes share batches, and recommend how to batch them.

    The sizes are read from the headers of the files; nothing is decoded or trained. An epoch is planned with every
    policy, none of which takes more memory than random batches of --batch images, or than --max-pixels. Without
    either, a batch may take half of the memory. Exit codes: 0 done, 2 an error in the command or the folder.

    Examples:

      corewise shapes photos --batch 32

      corewise shapes photos --max-pixels 20M --ranks 4 --report shapes.html

      corewise shapes photos --short-side 500 --batch 32 --json

      corewise shapes new-folder --generate 500 --seed 1 --mean-megapixels 0.5
    """
    from corewise.accelerate.batching.errors import BatchingError

    question = _make_question(batch, max_pixels, ranks, seed, short_side, gb_per_megapixel, seconds_per_megapixel)
    if report is not None:
        from corewise.report.comparison.files import check_place

        require_chart_packages("--report")
        check_place(report, "--report")
    if mean_megapixels is not None and generate is None:
        raise UserError("--mean-megapixels only applies to --generate N")
    try:
        with _show_progress(quiet or as_json) as (show, count):
            if generate is not None:
                _generate(folder, generate, seed, mean_megapixels, show, count)
            answer = _answer(folder, question, max_image_pixels, show, count)
    except BatchingError as problem:
        raise UserError(str(problem)) from problem
    if as_json:
        print(json.dumps(answer.to_json()))
    else:
        from corewise.cli.render.console import make_console
        from corewise.cli.render.shapes_view import draw_shapes

        draw_shapes(make_console(), answer)
    if report is not None:
        _write_report(answer, report)
        if not as_json:
            print(f"written: {report}")


def _answer(
    folder: Path,
    question: ShapesQuestion,
    max_image_pixels: str | None,
    show: Callable[[str], None],
    count: Callable[[int, int], None],
) -> ShapesAnswer:
    from corewise.accelerate.batching.image_scan import MAX_IMAGE_PIXELS, read_image_sizes
    from corewise.machine.allocation import read_allocation
    from corewise.machine.topology import read_topology
    from corewise.shapes.shapes_answer import answer_shapes, require_images

    show("reading the headers of the images")
    limit = MAX_IMAGE_PIXELS if max_image_pixels is None else _parse_pixels(max_image_pixels, "--max-image-pixels")
    found = read_image_sizes(folder, max_image_pixels=limit, report=count)
    require_images(found, question.ranks)
    return answer_shapes(found, question, read_allocation(read_topology()).memory_bytes, show)


def _generate(
    folder: Path,
    num_images: int,
    seed: int,
    mean_megapixels: float | None,
    show: Callable[[str], None],
    count: Callable[[int, int], None],
) -> None:
    from corewise.accelerate.batching.collection_sizes import MEAN_MEGAPIXELS
    from corewise.accelerate.batching.image_generator import generate_collection

    show(f"writing {num_images:,} images")
    generate_collection(folder, num_images, seed=seed, mean_megapixels=mean_megapixels or MEAN_MEGAPIXELS, report=count)


def _make_question(
    batch: int | None,
    max_pixels: str | None,
    ranks: int,
    seed: int,
    short_side: int | None,
    gb_per_megapixel: float,
    seconds_per_megapixel: float | None,
) -> ShapesQuestion:
    """Check the options and return the question."""
    if batch is not None and max_pixels is not None:
        raise UserError("--batch and --max-pixels exclude each other: pass the images or the pixels of a batch")
    for name, value in (("--batch", batch), ("--ranks", ranks), ("--short-side", short_side)):
        if value is not None and value < 1:
            raise UserError(f"{name} {value}: at least 1 is needed")
    for name, number in (("--gb-per-megapixel", gb_per_megapixel), ("--seconds-per-megapixel", seconds_per_megapixel)):
        if number is not None and not 0 < number < float("inf"):
            raise UserError(f"{name} {number:g}: a positive number is needed")
    if seed < 0:
        raise UserError(f"--seed {seed}: at least 0 is needed")
    pixels = None if max_pixels is None else _parse_pixels(max_pixels, "--max-pixels")
    return ShapesQuestion(batch, pixels, seed, ranks, short_side, gb_per_megapixel, seconds_per_megapixel)


def _parse_pixels(text: str, option: str) -> int:
    """Parse a number of pixels such as 20M or 20000000."""
    factors = {"k": 10**3, "m": 10**6, "g": 10**9}
    number, factor = (text[:-1], factors[text[-1:].lower()]) if text[-1:].lower() in factors else (text, 1)
    try:
        pixels = int(float(number.replace("_", "").replace(",", "")) * factor)
    except (ValueError, OverflowError):
        pixels = 0
    if pixels < 1:
        raise UserError(f"{option} {text}: pixels are needed, such as 20M or 20000000")
    return pixels


@contextmanager
def _show_progress(quiet: bool) -> Iterator[tuple[Callable[[str], None], Callable[[int, int], None]]]:
    """Show on a terminal what is being done; yields a function for the text and one for counts."""
    if quiet or not sys.stderr.isatty():
        yield lambda text: None, lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)

        def count(done: int, total: int) -> None:
            if total >= _MIN_FILES_FOR_BAR or done == total:
                progress.update(task, completed=done, total=total)

        yield lambda text: progress.update(task, description=text, completed=0, total=None), count


def _write_report(answer: ShapesAnswer, path: Path) -> None:
    from corewise.report.page import render_page
    from corewise.shapes.shapes_page import build_shapes_report
    from corewise.store.atomic_files import write_atomically

    data = render_page(build_shapes_report(answer)).encode()
    with write_atomically(path, "choose another file with --report") as aside:
        aside.write_bytes(data)
