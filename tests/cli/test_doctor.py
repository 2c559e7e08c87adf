"""``planner doctor``: parts that are there, missing or broken, on one screen and as a document."""

import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from planner.cli import doctor
from planner.formats.summaries import DOCTOR

Run = Callable[..., tuple[int, str, str]]


def states(run: Run, code: int = 0) -> dict[str, tuple[str, str, str]]:
    """Return state, finding and remedy of each part, as its document says them."""
    ended, out, _ = run("doctor", "--json")
    assert ended == code
    return {one["part"]: (one["state"], one["found"], one["remedy"]) for one in DOCTOR.parse(out, "stdout")["checks"]}


def test_all_parts_stand_on_one_screen_with_state_and_use(run: Run) -> None:
    code, out, err = run("doctor")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) <= 25
    assert max(map(len, out.splitlines())) <= 80
    found = states(run)
    assert found["packages"][0] == found["bundled data"][0] == "ready"
    for part, (state, _, _) in found.items():
        assert any(line.startswith(f"{part} ") and f" {state}: " in line for line in out.splitlines()), part


@pytest.mark.parametrize(
    ("version", "state", "remedy"),
    [(None, "missing", "pip install 'epoch-planner[plot]'"), ("3.8.9", "broken", "pip install 'epoch-planner[plot]'"),
     ("3.9", "ready", ""), ("13.0rc1", "ready", "")],
)  # fmt: skip
def test_an_optional_package_is_missing_or_too_old_with_its_remedy(
    version: str | None, state: str, remedy: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"matplotlib": version or ""}
    monkeypatch.setattr(doctor, "_version", lambda name: told[name] if name in told else metadata.version(name))
    assert states(run)["matplotlib"] == (state, version or "not installed", remedy)


def test_a_required_package_that_is_too_old_is_exit_2_with_the_remedy(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "1.26.4" if name == "numpy" else metadata.version(name))
    sentence = "packages must be installed for planner to work, got numpy 1.26.4; pip install --upgrade epoch-planner"
    assert run("doctor") == (2, "", f"planner: {sentence}\n")
    assert json.loads(run("doctor", "--json")[1])["message"] == sentence


def test_settings_and_own_calibrations_that_cannot_be_read_are_broken(run: Run) -> None:
    Path("planner.toml").write_text("network = 3\n")
    folder = Path("data/planner/calibrations")
    folder.mkdir(parents=True)
    (folder / "20260101T000000-mine.json").write_text("{")
    found = states(run)
    assert found["planner.toml"][0] == found["own calibrations"][0] == "broken"
    assert "text must be JSON" in found["own calibrations"][1]
