"""Charts of `corewise shapes`: the sizes as points, and the pixels that each policy computes."""

from typing import Any

import numpy as np

from corewise.report.charts.chart_theme import (
    COLOURS,
    GREY,
    build_key,
    build_layered_spec,
    build_legend,
    build_tooltips,
    compute_log_ticks,
    create_chart,
)
from corewise.report.report_model import Chart
from corewise.shapes.shapes_answer import ShapesAnswer
from corewise.text_format import format_count, round_significant

MAX_POINTS = 4000
_HEIGHT = 380
_BAR_HEIGHT = 34
_INFORMATIVE, _PADDING = "images", "padding"


def build_sizes_chart(answer: ShapesAnswer) -> Chart:
    """Build the scatter plot of heights and widths."""
    import altair as alt

    sizes = answer.sizes
    drawn = sizes
    if len(sizes) > MAX_POINTS:
        chosen = np.random.default_rng(answer.question.seed).choice(len(sizes), MAX_POINTS, replace=False)
        drawn = sizes[np.sort(chosen)]
    rows = [
        {"x": width, "y": height, "mp": round_significant(height * width / 1e6)} for height, width in drawn.tolist()
    ]
    low, high = int(sizes.min()), int(sizes.max())
    domain = [low / 1.15, high * 1.15]
    scale = alt.Scale(type="log", domain=domain, nice=False)
    axis = alt.Axis(values=compute_log_ticks(domain), format=",~r")
    points = (
        create_chart()
        .mark_point(filled=True, size=18, color=COLOURS[0])
        .encode(
            x=alt.X("x:Q", title="width, pixels", scale=scale, axis=axis),
            y=alt.Y("y:Q", title="height, pixels", scale=scale, axis=axis),
            opacity=alt.value(0.35),
            tooltip=build_tooltips({"x:Q": "width", "y:Q": "height", "mp:Q": "megapixels"}),
        )
    )
    square = (
        create_chart("square").mark_line(color=GREY, strokeDash=[4, 4], strokeWidth=1).encode(x="side:Q", y="side:Q")
    )
    pixels = sizes[:, 0] * sizes[:, 1] / 1e6
    num_portraits = int(np.count_nonzero(sizes[:, 0] > sizes[:, 1]))
    shown = f" {len(drawn):,} of {len(sizes):,} are shown." if len(drawn) < len(sizes) else ""
    return Chart(
        key=build_key("shapes", "sizes"),
        title="Sizes of the images",
        spec=build_layered_spec(
            [square, points], {"rows": rows, "square": [{"side": side} for side in domain]}, _HEIGHT
        ),
        caption=(
            f"Each point is an image, upright, as the loader sees it; the dashed line is square. {num_portraits:,} of "
            f"{format_count(len(sizes), 'image')} are higher than wide.{shown} A batch must be as high as its highest "
            "and as wide as its widest image."
        ),
        alt=f"Scatter plot of {len(drawn):,} sizes from {pixels.min():.3g} to {pixels.max():.3g} megapixels.",
    )


def build_policies_chart(answer: ShapesAnswer) -> Chart:
    """Build bars of the pixels of an epoch: those of images and those of padding."""
    import altair as alt

    rows: list[dict[str, Any]] = []
    for name, each in answer.policies.items():
        own, padded = each.figures.informative_pixels / 1e6, each.figures.padded_pixels / 1e6
        for part, value, order in ((_INFORMATIVE, own, 0), (_PADDING, padded - own, 1)):
            rows.append({"policy": name, "series": part, "mp": round_significant(value), "order": order})
    series = [_INFORMATIVE, _PADDING]
    scale = alt.Scale(domain=series, range=[COLOURS[0], COLOURS[4]])
    bars = (
        create_chart()
        .mark_bar()
        .encode(
            y=alt.Y("policy:N", title="", sort=list(answer.policies)),
            x=alt.X("mp:Q", title="megapixels computed in an epoch", stack="zero"),
            color=alt.Color("series:N", title="", scale=scale, legend=build_legend(series)),
            order=alt.Order("order:Q"),
            tooltip=build_tooltips({"policy:N": "policy", "series:N": "pixels of", "mp:Q": "megapixels"}),
        )
    )
    shares = ", ".join(f"{name} {100 * each.figures.padding_share:.0f} %" for name, each in answer.policies.items())
    return Chart(
        key=build_key("shapes", "padding"),
        title="What each policy computes",
        spec=build_layered_spec([bars], {"rows": rows}, _BAR_HEIGHT * len(answer.policies)),
        caption=f"Padding is computed like any pixel. Its share: {shares}.",
        alt=f"Bars of computed pixels by policy; shares of padding: {shares}.",
    )
