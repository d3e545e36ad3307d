"""Parse the arguments of `corewise launch` without starting anything."""

from collections.abc import Sequence
from unittest.mock import patch

from corewise.cli.app import build_app
from corewise.cli.launching import nodes, start
from corewise.cli.launching.settings import LaunchRequest

APP = build_app()


def parse_launch(args: Sequence[str]) -> LaunchRequest:
    """Return the request that these arguments make; the errors of typer and of Corewise are raised."""
    requests: list[LaunchRequest] = []

    def take(request: LaunchRequest) -> int:
        requests.append(request)
        return 0

    with patch.object(start, "start_launch", take), patch.object(nodes, "start_on_nodes", take):
        APP(["launch", *args], standalone_mode=False)
    [request] = requests
    return request
