"""``python -m benchmarks`` from its options to its table, on figures that take next to nothing."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import REFERENCE, document_of, main, table_of
from benchmarks.figures import FIGURES, Figure
from benchmarks.measure import ROOT, Measured, measure
from benchmarks.works import WORKS, timed

AXES = {"nodes": (1, 2), "gpus": (1, 8), "sub_batch": (1, 4), "accumulation": (1, 2)}
PLANS = {"network": "mlp", "cluster": "dgx1-v100", "axes": AXES, "precisions": ("fp32", "fp16")}
SMALL = (
    Figure("plans", "price few plans", work="plans", arguments=PLANS, has_memory=True),
    Figure("help", "planner --help", command=("--help",), most=0.5),
)
IS_CHECKOUT = (ROOT / ".git").exists()


def test_every_figure_is_of_a_work_or_a_command_and_has_a_reference() -> None:
    reference = json.loads(REFERENCE.read_text())
    assert reference["commit"].startswith("9eed9b3")
    assert reference["figures"].keys() == {one.name for one in FIGURES}
    for one in FIGURES:
        assert bool(one.command) != (one.work in WORKS)
        known = reference["figures"][one.name].keys() - {"commit"}
        assert known == ({"ratio", "peak_bytes"} if one.has_memory else {"ratio"})


@pytest.mark.parametrize(
    ("work", "arguments"),
    [
        ("plans", PLANS),
        ("split_plans", {"network": "gpt:layers=4", "cluster": "dgx-a100", "precision": "bf16", "mini_batch": 8}),
        ("shapes", {"network": "mlp", "times": 1}),
        ("lowering", {"network": "mlp", "sub_batches": 2, "times": 1}),
        ("convolutions", {"layers": 2, "sub_batches": 3, "times": 1}),
        ("scoring", {"rows": 8}),
        ("runs_file", {"rows": 8}),
    ],
)
def test_every_work_runs(work: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    assert work in WORKS
    given = arguments | ({"folder": str(tmp_path)} if work == "runs_file" else {})
    assert WORKS[work](**given)() is not None


def test_plans_are_the_product_of_the_axes() -> None:
    assert WORKS["plans"](**PLANS)().iteration_s.size == 2 * 8 * 4 * 2 * 2  # type: ignore[attr-defined]


def test_a_work_is_timed_by_the_clock_that_it_is_given() -> None:
    ticks = iter((3.0, 10.0))
    found = timed(lambda: None, lambda: next(ticks))
    assert found["cpu_s"] == 7.0
    assert found["fixed_s"] > 0


def test_a_command_is_measured_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--rounds", "1", "--json"], SMALL)
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [(one["name"], one["key"]) for one in document["figures"]] == [
        ("plans", "ratio"), ("plans", "peak_bytes"), ("help", "ratio"),
    ]  # fmt: skip
    assert all(one["value"] > 0 for one in document["figures"])
    assert document["figures"][1]["value"] > 1e7  # NumPy alone takes more


@pytest.mark.skipif(not IS_CHECKOUT, reason="the repository's history is not here")
def test_a_commit_takes_turns_with_this_tree(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rounds", "2", "--against", "HEAD", "--json"], SMALL[1:]) == 0
    said = capsys.readouterr()
    (figure,) = json.loads(said.out)["figures"]
    assert figure["error"] == ""
    assert 0.2 < figure["share"] < 5  # the same code
    rounds = [line for line in said.err.splitlines() if line.startswith("help: round")]
    assert [line.endswith(str(ROOT)) for line in rounds] == [True, False, False, True]


@pytest.mark.skipif(not IS_CHECKOUT, reason="the repository's history is not here")
def test_a_commit_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--against", "no-such-commit"], SMALL) == 2
    assert "--against must be a commit of this repository, got 'no-such-commit'\n" in capsys.readouterr().err


def test_a_tree_without_what_a_work_needs_says_so(tmp_path: Path) -> None:
    (tmp_path / "planner").mkdir()
    (tmp_path / "planner" / "__init__.py").touch()
    (found,) = measure(SMALL[0], [tmp_path], 2)
    assert (found.ratio, found.peak_bytes) == (None, None)
    assert "planner" in found.error


def test_shares_are_of_pairs_and_what_is_over_them_is_no_success(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, before = Measured([1.0, 30.0, 2.0]), Measured([4.0, 40.0, 5.0])
    (row,) = document_of(SMALL[1:], {"help": [here, before]}, {"commit": "abc", "figures": {}}, 3)["figures"]
    assert row["share"] == pytest.approx(0.4)
    assert row["reference"] == 5.0
    assert row["is_met"]
    known = {"commit": "0123456789", "figures": {"help": {"ratio": 3.0}}}
    document = document_of(SMALL[1:], {"help": [here]}, known, 3)
    assert document["figures"][0]["is_met"] is False
    assert table_of(document).splitlines()[1].split()[:5] == ["help", "2.000", "3.000", "0.667", "0.5"]
    monkeypatch.setattr("benchmarks.__main__.measure", lambda *_: [here])
    monkeypatch.setattr("benchmarks.__main__.document_of", lambda *_: document)
    assert main(["--check"], SMALL[1:]) == 1
    assert "more than allowed: help" in capsys.readouterr().err


def test_help_names_the_options() -> None:
    command = (sys.executable, "-m", "benchmarks", "--help")
    assert "--against COMMIT" in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
