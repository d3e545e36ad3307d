"""`python -m corewise` is the command line."""

from corewise.cli.main import main

main()
