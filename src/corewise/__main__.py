"""`python -m corewise` is the command line."""

from corewise.cli.entry import main

main()
