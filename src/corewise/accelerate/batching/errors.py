"""The error of wrong arguments and of collections that cannot be batched."""

from __future__ import annotations


class BatchingError(ValueError):
    """A collection or an argument that cannot be used. The text says what, where, and what to do next."""
