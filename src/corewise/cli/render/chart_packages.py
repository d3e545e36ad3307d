"""Check before measuring that this install can draw report pages."""

from corewise.errors import UserError


def require_chart_packages(options: str) -> None:
    """Raise a UserError if a package for report pages is missing; the user can leave out the options."""
    from corewise.bundle.contents import describe_worker_only, find_missing_chart_package

    missing = find_missing_chart_package()
    if missing:
        step = f"run `corewise report` there; here, leave out {options}"
        raise UserError(describe_worker_only(missing, step))
