"""Exit codes of the command line."""

SOME_FAILED = 1
USER_MISTAKE = 2
# Shells use 128 + the number of the signal; Ctrl-C sends signal 2.
INTERRUPTED = 130
