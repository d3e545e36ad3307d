"""Run the command line with `python -m corewise`."""

from corewise.cli.main import main

main()
