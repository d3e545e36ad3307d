"""What the command line's exit codes mean."""

SOME_FAILED = 1
USER_MISTAKE = 2
INTERRUPTED = 130  # as shells say it of Ctrl-C
