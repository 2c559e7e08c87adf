"""``planner calibrate --plan --runs``: measured steps of split plans decide between degrees."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.formats.calibration import CALIBRATION

Run = Callable[..., tuple[int, str, str]]
NETWORK = "gpt:layers=4,hidden=1024,heads=8,sequence=256,vocabulary=8192"
ASKED = (
    "suggest", "--network", NETWORK, "--cluster", "dgx-a100", "--target-batch", "64", "--framework", "megatron-lm",
    "--precision", "bf16", "--nodes", "1,2", "--sub-batch", "2,4,8", "--tensor", "1,2", "--pipeline", "1,2",
    "--virtual-stages", "1", "--sharding", "0", "--recompute", "none",
    "--strategy", "wait-free",
)  # fmt: skip
COLUMNS = (
    "nodes", "gpus_per_node", "sub_batch", "accumulation_steps", "precision", "tensor_parallel", "pipeline_parallel",
    "sequence_parallel",
)  # fmt: skip
DEFAULTS = {"tensor_parallel": 1, "pipeline_parallel": 1, "sequence_parallel": "off"}
CALIBRATE = ("calibrate", "--plan", "plan.json", "--runs", "runs.csv", "--out", "refined.json")
SUGGESTION: list[str] = []


@pytest.fixture
def plans(run: Run) -> list[Any]:
    """Return the plans of a suggestion, which stands in plan.json; it is asked once."""
    if not SUGGESTION:
        code, out, _ = run(*ASKED, "--json")
        assert code == 0
        SUGGESTION.append(out)
    Path("plan.json").write_text(SUGGESTION[0])
    found: list[Any] = json.loads(SUGGESTION[0])["plans"]
    return found


def write_runs(rows: list[tuple[Any, float]], **changes: str) -> None:
    """Write a runs file of plans and the time of a step [s] of each; ``changes``: of every row."""
    about = {"network": f'"{NETWORK}"', "cluster": "dgx-a100", "framework": "megatron-lm", "metric": "iteration_s"}
    about |= {"strategy": "wait-free"} | changes
    lines = [",".join(("id", *about, "value", *COLUMNS))]
    for number, (plan, seconds) in enumerate(rows):
        axes = DEFAULTS | plan["configuration"]
        lines.append(",".join(map(str, (number, *about.values(), seconds, *(axes[name] for name in COLUMNS)))))
    Path("runs.csv").write_text("\n".join(lines) + "\n")


def period(plan: Any) -> dict[str, float]:
    found: dict[str, float] = plan["prediction"]["iteration_s"]
    return found


def test_measured_steps_decide_between_degrees_that_were_tied(run: Run, plans: list[Any]) -> None:
    document = json.loads(Path("plan.json").read_text())
    first, *others = (plan for plan in plans if plan["position"] in document["tied"])
    degree = first["configuration"].get("tensor_parallel", 1)
    second = next(plan for plan in others if plan["configuration"].get("tensor_parallel", 1) != degree)
    degrees = {degree, second["configuration"].get("tensor_parallel", 1)}
    slow, fast = 1.1 * period(first)["value"], 0.9 * period(first)["value"]
    write_runs([(first, slow), (second, fast), (second, 1.01 * fast), (first, 1.01 * slow)])
    code, _, err = run(*CALIBRATE)
    assert (code, err) == (0, "planner: 4 measured steps of 2 plans, of which the suggestion has 2\n")
    refined = CALIBRATION.read("refined.json")
    assert [one.runs for one in refined.measured_steps] == [2, 2]
    assert {one.configuration.tensor_parallel for one in refined.measured_steps} == degrees

    code, out, _ = run(*ASKED, "--calibration", "refined.json", "--json")
    answer = json.loads(out)
    best = answer["plans"][0]
    assert best["configuration"] == second["configuration"]
    (loser,) = (plan for plan in answer["plans"] if plan["configuration"] == first["configuration"])
    assert loser["position"] not in [*answer["tied"], answer["chosen"]]
    assert fast < period(best)["value"] < period(second)["value"]
    width, before = (period(one)["high"] / period(one)["low"] for one in (best, second))
    assert 1 < width < before
    exposed_s = sum(term.get("exposed_seconds", term["seconds"]) for term in best["prediction"]["terms"])
    assert exposed_s == pytest.approx(period(best)["value"])
    messages = [one["message"] for one in answer["warnings"] if one["code"] == "measured_steps"]
    assert any(
        "4 measured steps were used, 2 of them of this very plan, of calibration refined" in one for one in messages
    )
    text = " ".join(run(*ASKED, "--calibration", "refined.json")[1].split())
    assert f"corrected by measured steps of {answer['subject']['network']}. To narrow it: `planner calibrate" in text

    line = "iteration {at}/ 9 | elapsed time per iteration (ms): {ms} | global batch size: 64 |\n"
    Path("runs.csv").write_text("".join(line.format(at=at, ms=ms) for at, ms in enumerate((900.0, 7.0, 7.25, 7.5), 1)))
    code, _, err = run(*CALIBRATE, "--force", "--position", str(second["position"]))
    (step,) = CALIBRATION.read("refined.json").measured_steps
    assert (code, "7.25 ms, median of 3 steady times of 4 logged" in err) == (0, True)
    assert step.configuration.tensor_parallel == second["configuration"].get("tensor_parallel", 1)
    write_runs([(second, 7.25e-3)])
    assert run(*CALIBRATE, "--force")[0] == 0
    assert CALIBRATION.read("refined.json").measured_steps == (step,)


def test_what_is_predicted_one_by_one_is_what_is_ranked(run: Run, plans: list[Any]) -> None:
    write_runs([(plan, 1.2 * period(plan)["value"]) for plan in plans[:2]])
    assert run(*CALIBRATE)[0] == 0
    answer = json.loads(run(*ASKED, "--calibration", "refined.json", "--json")[1])
    for plan in answer["plans"]:
        axes = DEFAULTS | plan["configuration"]
        code, out, _ = run(
            "predict", "--network", NETWORK, "--cluster", "dgx-a100", "--framework", "megatron-lm", "--calibration",
            "refined.json", "--optimizer", "adam", "--precision", "bf16", "--nodes", str(axes["nodes"]),
            "--sub-batch", str(axes["sub_batch"]), "--accumulation", str(axes["accumulation_steps"]),
            "--tensor", str(axes["tensor_parallel"]), "--pipeline", str(axes["pipeline_parallel"]),
            "--sequence-parallel", axes["sequence_parallel"], "--strategy", "wait-free", "--json",
        )  # fmt: skip
        assert code == 0
        assert json.loads(out)["iteration_s"]["value"] == pytest.approx(period(plan)["value"], rel=1e-9)


def test_a_refined_calibration_takes_more_runs_and_stands_beside_them_in_sample(run: Run, plans: list[Any]) -> None:
    write_runs([(plans[0], 0.01)])
    assert run(*CALIBRATE)[0] == 0
    old = CALIBRATION.read("refined.json").measured_steps
    code, out, _ = run(*ASKED, "--calibration", "refined.json", "--json")
    assert code == 0
    Path("plan.json").write_text(out)
    write_runs([(plans[1], 0.02)])
    assert run(*CALIBRATE[:-1], "more.json")[0] == 0
    more = CALIBRATION.read("more.json").measured_steps
    assert more[:1] == old
    assert len(more) == 2
    validation = json.loads(run("validate", "--runs", "runs.csv", "--calibration", "more.json", "--json")[1])
    assert [row["in_sample"] for row in validation["rows"]] == [True]
    shown = run("show", "calibrations", "more.json")[1]
    assert "Measured steps" in shown


OTHERS = [
    ({"network": "resnet18"}, "its network is resnet18"),
    ({"cluster": "selene"}, "its cluster is selene"),
    ({"framework": "fsdp"}, "its framework is fsdp"),
    ({"network": "gpt-none"}, "network must be"),
    ({"metric": "mini_batch_mean"}, "it has no time of a step"),
]


def test_runs_of_something_else_are_refused_and_say_why(run: Run, plans: list[Any]) -> None:
    for changes, why in OTHERS:
        write_runs([(plans[0], 0.01)], **changes)
        code, out, err = run(*CALIBRATE)
        assert (code, out) == (3, "")
        assert "runs.csv: file must hold a measured step of gpt:" in err
        assert "as plan.json is of, got none (runs.csv line 2: " in err
        assert why in err
    assert not Path("refined.json").exists()


def test_rows_that_are_no_runs_of_a_plan_are_said_and_others_taken(run: Run, plans: list[Any]) -> None:
    write_runs([(plans[0], 0.01), (plans[0] | {"configuration": plans[0]["configuration"] | {"nodes": 64}}, 0.01)])
    code, _, err = run(*CALIBRATE)
    assert code == 0
    assert "planner: rows left out: 1 (runs.csv line 3: " in err
    code, _, err = run("calibrate", "--runs", "runs.csv", "--out", "other.json")
    assert (code, err) == (2, "planner: --runs must be given with --plan alone, got 'runs.csv'\n")
    code, _, err = run(*CALIBRATE, "--force", "--budget", "60s")
    assert code == 2
    assert "--budget must be left out with --runs, which were measured elsewhere" in err
    code, _, err = run("calibrate", "--plan", "plan.json", "--out", "other.json")
    assert code == 5
    assert err.endswith("time their steps where they run and give them as a runs file by --runs FILE.csv\n")


def test_the_table_of_runs_is_filled_in_and_decides(run: Run, plans: list[Any]) -> None:
    """The commands that a tied answer names, as they are printed, with other answers of a machine between them."""
    document = json.loads(Path("plan.json").read_text())
    runs = document["deciding_runs"]
    assert runs[:2] == document["tied"][:2]
    assert document["chosen"] in runs
    listing = " and ".join((", ".join(map(str, runs[:-1])), str(runs[-1])))
    text = run(*ASKED)[1]
    assert f"To decide between plans {listing}: `planner explain plan.json --part runs`" in text
    in_full = run(*ASKED, "-v")[1]
    code, out, err = run("explain", "plan.json", "--part", "runs")
    assert code == 0
    assert "planner calibrate --plan plan.json --runs FILE.csv --out refined.json" in err
    header, *rows = csv.DictReader(out.splitlines()[1:]).fieldnames or (), *csv.DictReader(out.splitlines()[1:])
    assert all(f"plan {one}: {row['notes']}" in in_full for one, row in zip(runs, rows, strict=True))
    assert all("torchrun --" in row["notes"] and "pretrain_gpt.py" in row["notes"] for row in rows)
    Path("runs.csv").write_text(out)
    assert run(*CALIBRATE)[0] == 3  # nothing is filled in yet
    times = {row["id"]: 0.8 if row["id"] == f"plan-{runs[-1]}" else 1.2 for row in rows}
    first = period(plans[0])["value"]
    with Path("runs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, header)
        writer.writeheader()
        writer.writerows(row | {"value": times[row["id"]] * first} for row in rows)
    code, _, err = run(*CALIBRATE)
    assert (code, err) == (
        0,
        f"planner: {len(rows)} measured steps of {len(rows)} plans, of which the suggestion has {len(rows)}\n",
    )
    answer = json.loads(run(*ASKED, "--calibration", "refined.json", "--json")[1])
    (fast,) = (plan for plan in plans if plan["position"] == runs[-1])
    assert answer["plans"][0]["configuration"] == fast["configuration"]
    assert len(answer["tied"]) < len(document["tied"])
