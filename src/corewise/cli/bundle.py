"""`corewise bundle`: a folder that installs Corewise on a cluster without internet."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from corewise.cli.exit_codes import INTERRUPTED

if TYPE_CHECKING:
    from corewise.bundle.make import Made
    from corewise.bundle.pip_download import Report

MEGABYTE = 1e6


def bundle(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to make.")],
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="3.12", help="The cluster's Python; by default this one."),
    ] = None,
    platform: Annotated[
        str | None,
        typer.Option(
            "--platform", metavar="x86_64|aarch64", help="The cluster's processor; by default this one."
        ),
    ] = None,
    glibc: Annotated[
        str | None,
        typer.Option("--glibc", metavar="2.28", help="The cluster's glibc (ldd --version); by default 2.28."),
    ] = None,
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="torch", help="Put a framework in; by default the cluster's is used."),
    ] = None,
    worker_only: Annotated[
        bool, typer.Option("--worker-only", help="Only what runs studies and keeps records: 5 MB.")
    ] = False,
    constraints: Annotated[
        Path | None,
        typer.Option("--constraints", metavar="FILE", help="Versions to keep to, as pip reads them."),
    ] = None,
    index_url: Annotated[
        str | None,
        typer.Option("--index-url", metavar="URL", help="As pip takes it; its own settings hold too."),
    ] = None,
    extra_index_url: Annotated[
        list[str] | None, typer.Option("--extra-index-url", metavar="URL", help="As pip takes it.")
    ] = None,
    find_links: Annotated[
        list[str] | None, typer.Option("--find-links", metavar="DIR", help="As pip takes it.")
    ] = None,
    base_image: Annotated[
        str | None,
        typer.Option("--base-image", metavar="IMAGE", help="For corewise.def: docker://NAME or a file.sif."),
    ] = None,
    archive: Annotated[bool, typer.Option("--archive", help="Write DIR.tar too.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a bundle even if it was changed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for scripts.")] = False,
) -> None:
    """Make a folder that installs Corewise on a cluster without internet.

    It holds wheels for that cluster's Python and processor, the studies, an install script, checksums, a
    self-test and an Apptainer definition file. Carry it over and run `sh DIR/install.sh PREFIX` there.

    Examples:

      corewise bundle --python 3.12 -o bundle

      corewise bundle --python 3.11 --platform aarch64 --glibc 2.34 --archive -o grace

      corewise bundle --python 3.12 --worker-only -o worker

      corewise bundle --with torch --extra-index-url https://download.pytorch.org/whl/cpu -o with-torch
    """
    from corewise.bundle.make import Order, make_bundle
    from corewise.bundle.pip_download import Source
    from corewise.bundle.target import make_target

    _require_file(constraints)
    order = Order(
        folder=output,
        target=make_target(python, platform, glibc),
        frameworks=tuple(word.strip() for words in with_ or [] for word in words.split(",") if word.strip()),
        worker_only=worker_only,
        source=Source(index_url, tuple(extra_index_url or ()), tuple(find_links or ()), constraints),
        base_image=base_image,
        archive=archive,
        force=force,
    )
    signal.signal(signal.SIGTERM, _interrupt)  # so that what is half made goes away
    try:
        with _progress() as report:
            made = make_bundle(order, report)
    except KeyboardInterrupt:
        print("corewise: stopped; nothing was left behind.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print(json.dumps(made.to_json(), indent=2))
    else:
        _tell(made)


def _tell(made: "Made") -> None:
    told = made.bundle
    kind = "worker-only, " if told.worker_only else ""
    size = f"{made.size_bytes / MEGABYTE:.1f} MB"
    print(
        f"{made.folder}: corewise {told.corewise} for Python {told.python} on {told.machine}, "
        f"glibc {told.glibc} or newer; {kind}{len(told.packages)} wheels, {size}."
    )
    if made.archive:
        print(f"{made.archive}: the same as one file.")
    print(f"Carry it over, then: sh {made.folder.name}/install.sh PREFIX")


@contextmanager
def _progress() -> "Iterator[Report]":
    """What is being done, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status("asking the package index") as status:
        yield status.update


def _require_file(path: Path | None) -> None:
    from corewise.spec.errors import UserError

    if path is not None and not path.is_file():
        raise UserError(f"--constraints {path}: no such file")


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
