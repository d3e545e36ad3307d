"""The `corewise` command: prepares signals and standard streams before the imports that take time."""

import sys


def main() -> None:
    """Run the command line and exit."""
    # Until signals are prepared, Ctrl-C prints a traceback. So each import comes as late as possible.
    from corewise.cli.process import interrupts

    interrupts.end_silently()
    from corewise.cli.process.standard_streams import close_output, open_standard_streams

    stdout = open_standard_streams()
    from corewise.cli.app import run_command_line

    interrupts.raise_interrupts()
    code = close_output(stdout, run_command_line(sys.argv[1:]))
    interrupts.end_silently()
    sys.exit(code)
