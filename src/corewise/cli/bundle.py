"""`corewise bundle`: make a folder that installs Corewise on a cluster without internet."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from corewise.cli.common_options import JsonOption
from corewise.cli.process.interrupts import compute_exit_code
from corewise.cli.render.console import show_status
from corewise.errors import UserError

if TYPE_CHECKING:
    from corewise.bundle.bundle_maker import BundleResult

MEGABYTE = 1e6


def bundle(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to write.")],
    python: Annotated[
        str | None, typer.Option("--python", metavar="3.12", help="Python version of the cluster; default: this one.")
    ] = None,
    platform: Annotated[
        str | None,
        typer.Option("--platform", metavar="x86_64|aarch64", help="Processor of the cluster; default: this one."),
    ] = None,
    glibc: Annotated[
        str | None, typer.Option("--glibc", metavar="2.28", help="glibc of the cluster (ldd --version); default: 2.28.")
    ] = None,
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="torch", help="Include a framework; default: use the cluster's."),
    ] = None,
    worker_only: Annotated[
        bool, typer.Option("--worker-only", help="Include only what runs studies and stores records: under 10 MB.")
    ] = False,
    constraints: Annotated[
        Path | None, typer.Option("--constraints", metavar="FILE", help="A pip constraints file.")
    ] = None,
    index_url: Annotated[
        str | None, typer.Option("--index-url", metavar="URL", help="Passed to pip; pip's own settings also apply.")
    ] = None,
    extra_index_url: Annotated[
        list[str] | None, typer.Option("--extra-index-url", metavar="URL", help="Passed to pip.")
    ] = None,
    find_links: Annotated[list[str] | None, typer.Option("--find-links", metavar="DIR", help="Passed to pip.")] = None,
    base_image: Annotated[
        str | None,
        typer.Option("--base-image", metavar="IMAGE", help="Base image of corewise.def: docker://NAME or FILE.sif."),
    ] = None,
    archive: Annotated[bool, typer.Option("--archive", help="Also write DIR.tar.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a bundle even if its files were changed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a folder that installs Corewise on a cluster without internet.

    The folder contains wheels for the cluster's Python and processor, the studies, an install script,
    checksums, a self-test and an Apptainer definition file. Copy it to the cluster and run
    `sh DIR/install.sh PREFIX` there.

    Examples:

      corewise bundle --python 3.12 -o bundle

      corewise bundle --python 3.11 --platform aarch64 --glibc 2.34 --archive -o grace

      corewise bundle --python 3.12 --worker-only -o worker

      corewise bundle --with torch --extra-index-url https://download.pytorch.org/whl/cpu -o with-torch
    """
    from corewise.bundle.bundle_maker import BundleOrder, make_bundle
    from corewise.bundle.pip_download import PackageSource
    from corewise.bundle.target import parse_target

    _require_file(constraints)
    order = BundleOrder(
        folder=output,
        target=parse_target(python, platform, glibc),
        frameworks=tuple(word.strip() for names in with_ or [] for word in names.split(",") if word.strip()),
        worker_only=worker_only,
        source=PackageSource(index_url, tuple(extra_index_url or ()), tuple(find_links or ()), constraints),
        base_image=base_image,
        archive=archive,
        force=force,
    )
    try:
        with show_status("querying the package index") as report:
            made = make_bundle(order, report)
    except KeyboardInterrupt:
        print("corewise: stopped. The incomplete bundle was removed.", file=sys.stderr)
        raise typer.Exit(compute_exit_code()) from None
    if as_json:
        print(json.dumps(made.to_json(), indent=2))
    else:
        _print_summary(made)


def _print_summary(made: "BundleResult") -> None:
    bundle = made.bundle
    scope = "worker-only, " if bundle.worker_only else ""
    size = f"{made.size_bytes / MEGABYTE:.1f} MB"
    print(
        f"{made.folder}: corewise {bundle.corewise} for Python {bundle.python} on {bundle.machine}, "
        f"glibc {bundle.glibc} or newer; {scope}{len(bundle.packages)} wheels, {size}."
    )
    if made.archive:
        print(f"{made.archive}: the same files as one archive.")
    print(f"Copy it to the cluster, then run: sh {made.folder.name}/install.sh PREFIX")


def _require_file(path: Path | None) -> None:
    if path is not None and not path.is_file():
        raise UserError(f"--constraints {path}: no such file")
