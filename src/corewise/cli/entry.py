"""Where the command begins: a launch is on its way before the other verbs' libraries are loaded."""

import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["launch"]:
        from corewise.cli.launch import main as launch

        sys.exit(launch(sys.argv[2:]))
    from corewise.cli.main import main as any_verb

    any_verb()
