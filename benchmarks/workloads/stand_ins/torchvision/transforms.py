"""Transforms that the generated images do not need."""


class Compose:
    """Accepts any arguments and does nothing."""

    def __init__(self, *arguments: object) -> None: ...


ToTensor = Normalize = Compose
