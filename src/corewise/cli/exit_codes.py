"""Exit codes of the command line."""

SOME_FAILED = 1
USER_MISTAKE = 2
# Shells use 128 + the number of the signal; Ctrl-C sends signal 2. SIGTERM gives the same code.
INTERRUPTED = 130
# The terminal was closed: signal 1.
HUNG_UP = 129
