"""The names of the sources of instruction counts, which are the first words of their metrics.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

PERF, CACHEGRIND = "perf", "cachegrind"
# What a protocol may ask for. Auto takes hardware counters where the kernel provides them, and never the slow source.
COUNTER_CHOICES = ("auto", PERF, CACHEGRIND, "none")
# The beginning of a note that says why a trial lacks the counts that the study asks for.
NO_COUNTS = "no counts by "
