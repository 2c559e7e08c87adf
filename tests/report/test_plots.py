"""Pictures of validations: real files, their points, axes and words."""

from __future__ import annotations

import html
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from planner.domain.runs import ScoredRow
from planner.errors import MissingPackageError
from planner.report.plots import COLOURS, OTHERS_LOOK, TIME_OF_METRIC, Points, validation_plot
from planner.scoring.errors import RATE_METRICS, TIME_METRICS

ROW = ScoredRow(
    id="a", line=2, metric="iteration_s", predicted=1.1, low=None, high=None, measured=1.0, status_predicted="ok",
    status_measured="ok", in_sample=False, refused=None, network="resnet50", cluster="c", gpu="g", source="s",
)  # fmt: skip
SVG = "{http://www.w3.org/2000/svg}"


def points(*rows: ScoredRow, omitted: int = 0) -> Points:
    times = np.array([(row.predicted, row.measured) for row in rows], dtype=np.float64)
    return Points(rows, times[:, 0], times[:, 1], omitted)


def series(picture: bytes) -> dict[str, list[tuple[float, float]]]:
    """Return the places of the points of every series of an SVG picture, upwards, by its name."""
    groups = ET.fromstring(picture).iter(f"{SVG}g")
    named = {group.get("id", ""): group for group in groups}
    return {
        name: [(float(use.get("x", "nan")), -float(use.get("y", "nan"))) for use in group.iter(f"{SVG}use")]
        for name, group in named.items()
        if name.startswith(("held-out", "in-sample"))
    }


def words(picture: bytes) -> str:
    """Return all texts of an SVG picture: letters are shapes, with the text in a comment before them."""
    return "\n".join(html.unescape(text) for text in re.findall("<!-- (.*?) -->", picture.decode(), flags=re.DOTALL))


def test_each_form_is_what_its_name_says() -> None:
    some = points(ROW, replace(ROW, predicted=3.0))
    assert validation_plot(some, "png").startswith(b"\x89PNG\r\n\x1a\n")
    assert validation_plot(some, "pdf").startswith(b"%PDF-")
    assert ET.fromstring(validation_plot(some, "svg")).tag == f"{SVG}svg"


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_same_rows_same_bytes(form: str) -> None:
    some = points(ROW, replace(ROW, in_sample=True, source="t"))
    assert validation_plot(some, form) == validation_plot(some, form)


def test_axes_are_logarithmic_and_of_one_scale() -> None:
    """Equal factors are equal lengths, on both axes, and equal times lie on one line."""
    times = ((0.01, 0.01), (0.1, 0.01), (0.01, 0.1), (1.0, 1.0), (10.0, 10.0))
    rows = [replace(ROW, predicted=predicted, measured=measured) for predicted, measured in times]
    (at,) = (np.array(one) for one in series(validation_plot(points(*rows), "svg")).values())
    decade = at[1] - at[0]
    assert decade == pytest.approx((0, decade[1]), abs=1e-3)
    assert at[2] - at[0] == pytest.approx((decade[1], 0), rel=1e-4, abs=1e-3)
    assert at[3] - at[0] == pytest.approx((2 * decade[1],) * 2, rel=1e-4)
    assert at[4] - at[0] == pytest.approx((3 * decade[1],) * 2, rel=1e-4)


def test_every_row_is_drawn_once_and_in_sample_rows_apart() -> None:
    rows = [replace(ROW, source=f"s{at % 3}", in_sample=at % 4 == 0, predicted=1.0 + at) for at in range(24)]
    found = series(validation_plot(points(*rows), "svg"))
    assert sum(len(at) for name, at in found.items() if name.startswith("in-sample")) == 6
    assert sum(len(at) for name, at in found.items() if name.startswith("held-out")) == 18
    assert len(found) == 6


def test_held_out_markers_are_filled_and_in_sample_ones_hollow() -> None:
    picture = ET.fromstring(validation_plot(points(ROW, replace(ROW, in_sample=True)), "svg"))
    groups = {group.get("id", "")[:9]: group for group in picture.iter(f"{SVG}g")}
    style = {name: next(groups[name].iter(f"{SVG}use")).get("style", "") for name in ("held-out-", "in-sample")}
    assert f"fill: {COLOURS[0]}" in style["held-out-"]
    assert f"stroke: {COLOURS[0]}" in style["in-sample"]
    assert "fill-opacity: 0" in style["in-sample"]


def test_title_gives_rows_and_mean_errors_and_legend_the_names() -> None:
    rows = [ROW, replace(ROW, predicted=1.3, network="vgg16"), replace(ROW, predicted=2.0, in_sample=True)]
    text = words(validation_plot(points(*rows, omitted=2), "svg"))
    assert "s: 2 rows held out, mean error 20.0%; 1 row in-sample, mean error 100.0%" in text
    assert "2 rows left out: neither times nor rates" in text
    for one in ("network", "resnet50 (2)", "vgg16 (1)", "held out", "in-sample", "\u00b120%", "seconds per step"):
        assert one in text
    text = words(validation_plot(points(ROW, replace(ROW, source="t", metric="samples_per_s")), "svg"))
    assert "source" in text
    assert "t (1)" in text
    assert "predicted seconds per step or sample" in text
    assert "in-sample" not in text


def test_more_names_than_colours_are_grey_others() -> None:
    rows = [replace(ROW, source=f"source-{at:02}") for at in range(12)] + [replace(ROW, source="source-11")] * 3
    picture = validation_plot(points(*rows), "svg")
    assert "2 others (2)" in words(picture)
    assert "source-11 (4)" in words(picture)
    assert len(series(picture)) == len(COLOURS) + 1
    assert OTHERS_LOOK["color"].encode() in picture
    assert OTHERS_LOOK["color"] not in COLOURS


@pytest.mark.parametrize("name", ["_hidden", "a$b^{$", "two\nlines", "\u8a66\u9a13", "", "x" * 300, "<&>"])
def test_any_name_can_be_drawn(name: str) -> None:
    rows = [replace(ROW, source=name), replace(ROW, source="other")]
    picture = validation_plot(points(*rows), "svg")
    assert sum(map(len, series(picture).values())) == 2
    assert words(picture).count("(1)") == 2


@pytest.mark.parametrize("value", [1e-150, 1e-9, 1.0, 1e15, 1e150])
def test_one_row_has_room_around_it(value: float) -> None:
    picture = validation_plot(points(replace(ROW, predicted=value, measured=value)), "svg")
    assert sum(map(len, series(picture).values())) == 1


def test_absurd_values_do_not_hide_the_others() -> None:
    rows = [replace(ROW, measured=5e-324), replace(ROW, predicted=1.7e308), ROW]
    assert sum(map(len, series(validation_plot(points(*rows), "svg")).values())) >= 1


def test_pictures_do_not_depend_on_settings_of_matplotlib_nor_change_them() -> None:
    import matplotlib as mpl  # noqa: PLC0415 - heavy

    plain = validation_plot(points(ROW), "svg")
    with mpl.rc_context({"lines.marker": "x", "axes.facecolor": "black", "svg.hashsalt": "other"}):
        assert validation_plot(points(ROW), "svg") == plain
        assert mpl.rcParams["svg.hashsalt"] == "other"
    assert "matplotlib.pyplot" not in sys.modules


def test_metrics_are_those_that_are_times_or_rates() -> None:
    assert set(TIME_OF_METRIC) == {*TIME_METRICS, *RATE_METRICS}


def test_without_matplotlib_the_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingPackageError, match=r"must be .+, got no package .+ pip install 'epoch-planner\[plot\]'"):
        validation_plot(points(ROW), "png")
