"""Durations as people say them."""


def spoken(seconds: float) -> str:
    """A duration in its two largest units: 45 s, 3 min 20 s, 2 h 5 min."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
