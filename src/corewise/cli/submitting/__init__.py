"""The part of the command line that submits jobs and follows them."""
