"""What docs/inference.md says of errors is what its commands print."""

from pathlib import Path

import numpy as np
import pytest

from validation import inference_rows, int8_shapes

PAGE = (Path(__file__).parents[2] / "docs" / "inference.md").read_text()


def test_the_page_has_the_table_of_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert int8_shapes.main([]) == 0
    assert capsys.readouterr().out in PAGE


def test_an_engine_on_a_v100_is_missed_by_a_fifth_on_average() -> None:
    of_engine = {key[3]: np.abs(each) for key, each in inference_rows.errors().items() if key[1] == "tensorrt"}
    assert set(of_engine) == {"fp32", "fp16", "int8"}
    for each in of_engine.values():
        assert each.mean() < 0.21
