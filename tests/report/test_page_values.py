"""The page as text: escaping, packing, room, contrast, and how it gets onto the disk."""

import base64
import gzip
import hashlib
import html
import json
import random
import re
import resource
import subprocess
import sys
import threading
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.sample_report import HOSTILE, build_sample_report, hostile_report, scaling_study, trial_table

from corewise.analysis.phrases import replace_backticks
from corewise.errors import UserError
from corewise.report.packed_columns import DataBlock, add_cut_note, pack_tables, pack_value
from corewise.report.page import render_page, write_page
from corewise.report.report_model import Column, Table
from corewise.report.text_blocks import IdRegistry, clean, clean_values, render_prose
from corewise.store.atomic_files import NAME_ANOTHER_FILE


def unpacked(block: DataBlock) -> Any:
    raw = gzip.decompress(base64.b64decode(block.text)) if block.encoding == "gzip" else block.text
    return json.loads(raw)


def column_values(values: Any) -> list[Any]:
    return [values["distinct"][i] for i in values["places"]] if isinstance(values, dict) else list(values)


def one_column(values: list[Any], format: Any = "number") -> Table:
    return Table(key="t", title="T", columns=(Column(key="a", title="A", kind=format),), rows=[(v,) for v in values])


@pytest.mark.parametrize("name", HOSTILE)
def test_prose_escapes_every_name(name: str) -> None:
    made = str(render_prose(f"before {name} after"))
    assert "<" not in made
    assert html.unescape(made) == f"before {clean(name)} after"


def test_a_backtick_of_a_value_is_shown_and_is_no_markup() -> None:
    assert render_prose(f"At size {replace_backticks('a`b`c')}: see `corewise show`.") == (
        "At size a`b`c: see <code>corewise show</code>."
    )
    assert clean_values([replace_backticks("a`b")]) == ["a`b"]


def test_prose_sets_what_stands_between_backticks_as_code() -> None:
    assert str(render_prose("run `a < b` now")) == "run <code>a &lt; b</code> now"
    assert str(render_prose("an odd ` one")) == "an odd ` one"


@given(st.text(st.characters(codec=None), max_size=40))
def test_clean_text_can_always_be_written_and_has_no_control_characters(text: str) -> None:
    made = clean(text)
    made.encode()
    assert not re.search(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", made)


TEXTS = st.text().map(clean)


@given(st.recursive(TEXTS | st.integers(-(2**53), 2**53) | st.none(), lambda inner: st.lists(inner), max_leaves=9))
def test_a_block_never_holds_markup_and_round_trips(value: Any) -> None:
    block = pack_value({"value": value})
    assert not re.search("[<>&\u2028\u2029]", block.text)
    assert unpacked(block) == {"value": value}


def test_numbers_keep_six_digits_and_whole_ones_all() -> None:
    [made] = pack_tables([one_column([1 / 3, 123456789, None, float("nan"), float("inf"), True])], 10**6)
    [values] = unpacked(made.block)["values"]
    assert column_values(values) == [0.333333, 123456789, None, None, "∞", True]


def test_numbers_of_numpy_are_numbers() -> None:
    [made] = pack_tables([one_column([np.int64(3), np.float64(0.5), np.bool_(True)])], 10**6)
    assert column_values(unpacked(made.block)["values"][0]) == [3, 0.5, True]


def test_a_short_row_leaves_its_last_cells_empty() -> None:
    table = Table(key="t", title="T", columns=(Column(key="a", title="A"), Column(key="b", title="B")), rows=[("x",)])
    [made] = pack_tables([table], 10**6)
    assert [column_values(values) for values in unpacked(made.block)["values"]] == [["x"], [None]]


def test_tables_lose_digits_then_rows_to_fit_and_say_so() -> None:
    table = trial_table(3000)
    [whole] = pack_tables([table], 10**7)
    [fewer_digits] = pack_tables([table], len(whole.block.text) - 1)
    assert (fewer_digits.num_rows, len(fewer_digits.block.text) < len(whole.block.text)) == (3000, True)
    [cut] = pack_tables([table], 20_000)
    assert len(cut.block.text) <= 20_000
    assert 100 < cut.num_rows < 3000
    assert f"the first {cut.num_rows:,} of 3,000 rows" in add_cut_note(table, cut).caption
    assert add_cut_note(table, whole) is table


def test_ids_are_unlike_each_other_and_safe_in_a_link() -> None:
    ids = IdRegistry()
    names = [ids.create("table", key) for key in ("All trials", "all-trials", "<b>", "", "é", "x" * 500)]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9-]{1,100}", name) for name in names)


def test_only_the_scripts_of_the_page_may_run_and_nothing_may_be_loaded() -> None:
    page = render_page(hostile_report())
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    allowed = html.unescape(policy[1])
    assert allowed.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in allowed
    scripts = re.findall(r"<script(?: type=\"module\")?>(.*?)</script>", page, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert len(hashes) == 3
    assert re.findall(r"'sha256-([^']+)'", allowed) == hashes


def test_the_page_names_no_address_to_load_from() -> None:
    page = render_page(build_sample_report())
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert re.findall(r"(?:src|href)=\"([^#\"][^\"]*)\"", markup) == ["data:,"]
    assert "url(" not in markup
    assert "@import" not in markup


def test_one_study_has_its_answer_and_several_have_a_list() -> None:
    one = render_page(build_sample_report())
    assert one.index("How many threads should") < one.index("Use 8 threads") < one.index("<figure")
    several = render_page(build_sample_report(studies=(scaling_study(), scaling_study()), summary=("All is well.",)))
    assert several.index("All is well.") < several.index('<p class="asked"') < several.index("<figure")
    assert len(re.findall(r'id="([^"]*)"', several)) == len(set(re.findall(r'id="([^"]*)"', several)))


def test_a_notebook_shows_the_answers_of_a_report_and_runs_nothing() -> None:
    html = build_sample_report(title="<script>x</script>", summary=("Use `8` threads <b>.",))._repr_html_()
    assert "Use <code>8</code> threads &lt;b&gt;." in html
    assert "<script" not in html
    assert "Nothing has been measured yet." in build_sample_report(summary=())._repr_html_()


def test_an_empty_report_says_so() -> None:
    page = render_page(build_sample_report(studies=(), findings=(), machines=(), versions=(), notices=(), sources=()))
    assert "Nothing has been measured yet." in page
    assert '<section class="study"' not in page
    assert 'id="findings"' not in page


def test_findings_are_sorted_by_severity() -> None:
    page = render_page(build_sample_report())
    assert page.index("OMP_NUM_THREADS is set") < page.index("Other work ran") < page.index("Transparent huge")


@pytest.mark.slow
def test_a_hundred_thousand_rows_stay_below_five_megabytes() -> None:
    page = render_page(build_sample_report(studies=[scaling_study(100_000)]))
    assert len(page.encode()) < 5_000_000
    assert "The page holds" not in page


def test_a_page_too_large_is_cut_and_says_so() -> None:
    rng = random.Random(1)
    page = render_page(build_sample_report(machines=[one_column([rng.randbytes(300).hex() for _ in range(15_000)])]))
    assert len(page.encode()) < 5_000_000
    assert "The page holds the first" in page


def test_a_reader_sees_the_old_page_or_the_new_one_and_never_half(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_page(build_sample_report(), path)
    seen: list[bytes] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            seen.append(path.read_bytes()[-7:])

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(5):
        write_page(build_sample_report(), path)
    over.set()
    reader.join()
    assert set(seen) == {b"</html>"}
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]


def test_a_full_disk_leaves_the_old_page_alone(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Writing stops midway, as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(UserError, match=rf"report\.html cannot be written: .*; {re.escape(NAME_ANOTHER_FILE)}"):
            write_page(build_sample_report(), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize("place", ["missing/report.html", "."])
def test_a_place_that_cannot_be_written_is_named(place: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        write_page(build_sample_report(), tmp_path / place)


def test_a_link_is_followed_and_kept(tmp_path: Path) -> None:
    (tmp_path / "real.html").write_text("old")
    (tmp_path / "link.html").symlink_to("real.html")
    write_page(build_sample_report(), tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").stat().st_size > 100_000


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_marks_stand_out_from_their_ground(theme: str) -> None:
    style = (resources.files("corewise.report") / "assets" / "page.css").read_text()
    light, dark = (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", part)) for part in style.split("@media screen", 1))
    colours = light if theme == "light" else dark
    for name in ("ink", "ink-soft", "link", "problem", "warning", "info", "best-ink"):
        grounds = ("paper", "best") if name == "best-ink" else ("paper", "wash")
        assert all(contrast(colours[name], colours[ground]) >= 4.5 for ground in grounds), name
    assert contrast(colours["ink"], colours["best"]) >= 7
    for name in ("blue", "vermillion", "green", "purple", "orange", "sky", "yellow", "grey", "focus"):
        assert contrast(colours[name], colours["paper"]) >= 3, name


def test_the_page_is_made_without_loading_a_framework_or_its_parts_early() -> None:
    late = "{'jinja2', 'vl_convert', 'altair', 'torch'}"
    code = f"import sys, corewise.report.page; print(sorted({late} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
