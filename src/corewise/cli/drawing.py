"""Whether a page can be drawn here, which is told before anything is measured."""

from importlib.util import find_spec

from corewise.spec.errors import UserError

_DRAWS_PAGES = ("altair", "jinja2", "vl_convert", "scipy")


def require_drawing(options: str) -> None:
    """Refuse a page where the install is worker-only or lacks what draws; the options are to be left out."""
    from corewise.bundle.contents import without, worker_only_install

    instead = f"run `corewise report` there; here, leave out {options}"
    if find_spec("corewise.report.page") is None:
        raise UserError(worker_only_install(instead))
    missing = next((name for name in _DRAWS_PAGES if find_spec(name) is None), None)
    if missing:
        raise UserError(without(missing, instead))
