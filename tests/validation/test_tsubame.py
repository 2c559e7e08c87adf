"""The committed calibrations of the two TSUBAME machines are what their scripts make."""

import json
from pathlib import Path

import pytest

from planner.catalog import find_network
from planner.domain.calibration import Calibration
from planner.formats.calibration import CALIBRATION
from validation import reconstruct_tsubame_kfc, specify_tsubame_2_5

ROOT = Path(__file__).parent.parent.parent


def reconstructed() -> Calibration:
    published = json.loads((ROOT / "tests" / "data" / "published" / "sprint.json").read_text())
    coefficients = reconstruct_tsubame_kfc.solved(published)
    return reconstruct_tsubame_kfc.calibration(find_network("sprint-15"), coefficients)


@pytest.mark.parametrize(
    ("name", "made"), [("tsubame-kfc", reconstructed()), ("tsubame-2.5", specify_tsubame_2_5.calibration())]
)
def test_committed_file_is_what_its_script_makes(name: str, made: Calibration) -> None:
    committed = CALIBRATION.read(ROOT / "calibrations" / f"{name}.json")
    assert [entry.key for entry in committed.entries] == [entry.key for entry in made.entries]
    for ours, theirs in zip(made.entries, committed.entries, strict=True):
        assert ours.term == theirs.term
        assert ours.settings == theirs.settings
        assert dict(ours.coefficients) == pytest.approx(dict(theirs.coefficients), rel=1e-6)
