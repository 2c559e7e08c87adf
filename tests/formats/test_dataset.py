"""Data set files."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.domain.request import Dataset
from planner.errors import InputFileError
from planner.formats.network import DATASET


def test_data_set_comes_back_as_it_was(tmp_path: Path) -> None:
    dataset = Dataset("imagined", 10**13, 0.1, "made up", "jpeg")
    (tmp_path / "d.toml").write_text(DATASET.dump(dataset))
    assert DATASET.read(tmp_path / "d.toml") == dataset


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ("samples = 0\nbytes_per_sample = 1", "samples: value must be a whole number from 1"),
        ("samples = 1\nbytes_per_sample = 0", "bytes_per_sample: value must be a number from 0.001"),
        ("samples = 1\nbytes_per_sample = 1e301", "bytes_per_sample: value must be a number from 0.001 to 1e.15"),
        ("samples = 1\nbyte_per_sample = 1", "byte_per_sample: key must .* did you mean 'bytes_per_sample'"),
        ("samples = 1", "bytes_per_sample: key must be given"),
        ('samples = 1\nbytes_per_sample = 1\nencoding = "png"', "encoding: value must be .*jpeg.*, got 'png'"),
    ],
)
def test_mistakes_name_the_key(keys: str, sentence: str) -> None:
    with pytest.raises(InputFileError, match=sentence):
        DATASET.parse(f'format = "planner/dataset"\nversion = 1\nname = "d"\n{keys}', "d.toml")
