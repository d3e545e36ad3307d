"""Builds the arguments with which a job runs the same study."""

from collections.abc import Sequence
from pathlib import Path


def build_run_arguments(
    study: str, overrides: Sequence[str] | None, trust_environment: bool, retry_failed: bool
) -> tuple[str, ...]:
    """Build the arguments of `corewise run` in a job; a study file is named by its absolute path."""
    path = Path(study)
    name = str(path.absolute()) if path.is_file() else study
    sets = (word for each in overrides or () for word in ("--set", each))
    flags = (("--trust-environment", trust_environment), ("--retry-failed", retry_failed))
    return (name, *sets, *(flag for flag, is_set in flags if is_set))
