"""What docs/inference.md says of errors is what its commands print."""

from pathlib import Path

import numpy as np
import pytest

from validation import inference_rows, int8_shapes

PAGE = (Path(__file__).parents[2] / "docs" / "inference.md").read_text()


def test_the_page_has_the_table_of_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert int8_shapes.main([]) == 0
    assert capsys.readouterr().out in PAGE


def test_engines_on_a_v100_are_missed_by_a_fifth_and_8_in_10_rows_lie_inside() -> None:
    found = inference_rows.errors()
    of_engine = {key[3]: [abs(error) for error, _ in each] for key, each in found.items() if key[1] == "tensorrt"}
    assert set(of_engine) == {"fp32", "fp16", "int8"}
    for each in of_engine.values():
        assert np.mean(each) < 0.21
    assert np.mean([inside for each in found.values() for _, inside in each]) > 0.75
