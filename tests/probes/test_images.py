"""Images made and made ready: what comes out, and what is told of the time."""

import io
import sys
from itertools import count

import numpy as np
import pytest
from PIL import Image

from planner.probes import inputs as images
from planner.probes.inputs import IMAGE_CASES, ImageCase, measure_images


def test_images_are_stored_in_about_as_many_bytes_as_photographs() -> None:
    data = images._encoded(Image, ImageCase(500, 375, 224), np.random.default_rng(1))  # noqa: SLF001 - no result shows it
    assert 100e3 < len(data) < 120e3
    with Image.open(io.BytesIO(data)) as stored:
        assert (stored.size, stored.format) == ((500, 375), "JPEG")


def test_an_image_of_one_colour_stays_so_channel_by_channel() -> None:
    """Whatever is cropped and resized; JPEG moves a colour by a step or two."""
    file = io.BytesIO()
    Image.new("RGB", (100, 80), (200, 100, 50)).save(file, "JPEG", quality=95)
    made = images._made_ready(Image, file.getvalue(), 24, np.random.default_rng(2))  # noqa: SLF001
    assert (made.shape, made.dtype.name, made.flags["C_CONTIGUOUS"]) == ((3, 24, 24), "float32", True)
    for channel, value in zip(made, (200, 100, 50), strict=True):
        np.testing.assert_allclose(channel * images.IMAGE_DEVIATION + images.IMAGE_MEAN, value, atol=3)


def test_every_size_is_timed_alike_often() -> None:
    wall, own = count(0.0, 0.03), count(0.0, 0.01)
    found = measure_images(2.0, clock=lambda: next(wall), thread_clock=lambda: next(own))
    assert found.warning == ""
    assert [(row["in_w"], row["in_h"], row["elements"]) for row in found.rows] == [
        (case.width, case.height, 3 * case.side**2) for case in IMAGE_CASES
    ]
    repeats = [row["repeats"] for row in found.rows]
    assert max(repeats) - min(repeats) <= 1
    assert [row["time_s"] for row in found.rows] == pytest.approx([0.01] * len(IMAGE_CASES))  # one step of this clock


def test_too_little_time_gives_no_row_but_a_sentence() -> None:
    found = measure_images(0.0)
    assert (found.rows, found.warning) == ((), "decoding of images was not measured: too little time")


def test_without_pillow_there_is_no_row_but_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    found = measure_images(10.0)
    assert found.rows == ()
    assert "pip install 'epoch-planner[torch]'" in found.warning
