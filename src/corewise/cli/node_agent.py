"""`corewise node-agent`: the process that `corewise run` starts on each node. Not meant to be started by people."""

from pathlib import Path
from typing import Annotated

import typer


def node_agent(
    run: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the run listens.")],
    secret: Annotated[Path, typer.Argument(metavar="FILE", help="The secret of the run, in its store.")],
) -> None:
    """Serve a run on several nodes; `corewise run --on` starts one of these on each node."""
    from corewise.cli.launching.node_group_start import find_node_rank
    from corewise.run.nodes.node_agent import serve_node

    address, _, port = run.rpartition(":")
    serve_node(find_node_rank(), address, int(port), secret)
