"""Several --cluster: the plan to take of each, in one ranking."""

import json
from pathlib import Path

import pytest

import planner
from planner.cli.main import main

CLUSTERS = ("dgx1-v100", "dgx-a100", "dgx-h100")
NETWORK = ["--network", "resnet50", "--target-batch", "1024", "--precision", "fp16"]


def on(names: tuple[str, ...], *options: str) -> list[str]:
    return ["suggest", *NETWORK, *(part for name in names for part in ("--cluster", name)), *options]


def document(capsys: pytest.CaptureFixture[str], names: tuple[str, ...], *options: str) -> dict[str, object]:
    assert main(on(names, *options, "--json")) == 0
    keys: dict[str, object] = json.loads(capsys.readouterr().out)
    return keys


@pytest.mark.parametrize("options", [(), ("--objective", "gpu-hours"), ("--deadline", "10min")], ids=" ".join)
def test_each_answer_is_the_clusters_own_and_the_best_stands_first(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    alone = {name: document(capsys, (name,), *options) for name in CLUSTERS}
    answers = document(capsys, CLUSTERS, *options)["suggestions"]
    assert isinstance(answers, list)
    names, values = [], []
    for one in answers:
        own = {key: value for key, value in one.items() if key not in ("clusters", "first_cluster_is_better")}
        name = one["subject"]["cluster"]
        assert own == {key: value for key, value in alone[name].items() if key in own}
        taken = next(plan for plan in one["plans"] if plan["position"] == one["chosen"])
        epoch, shape = taken["prediction"]["epoch_s"]["value"], taken["configuration"]
        names.append(name)
        values.append(epoch * (shape["nodes"] * shape["gpus_per_node"] if options else 1))
    assert sorted(names) == sorted(CLUSTERS)
    assert values == sorted(values)
    assert [answers[0]["clusters"][name] for name in names] == pytest.approx([one / values[0] for one in values])
    chances = [one.get("first_cluster_is_better") for one in answers]
    assert chances[0] is None
    assert chances[1:] == sorted(chances[1:])
    assert min(chances[1:]) >= 0.5


def test_first_screen_says_where_to_train(capsys: pytest.CaptureFixture[str]) -> None:
    answers = document(capsys, CLUSTERS)["suggestions"]
    assert isinstance(answers, list)
    best, other = (answers[at]["subject"]["cluster"] for at in (0, 1))
    assert main(on(CLUSTERS)) == 0
    text = capsys.readouterr().out
    assert f"resnet50 on 3 clusters, target mini-batch 1024: take {best}, " in text
    assert f"{other}: " in text
    assert len(text.splitlines()) <= 25
    assert max(map(len, text.splitlines())) <= 80


def test_cluster_that_cannot_hold_the_request_is_left_out_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    answers = document(capsys, ("dgx1-v100", "dgx-a100"), "--nodes", "60")["suggestions"]
    assert isinstance(answers, list)
    (one,) = answers
    assert one["subject"]["cluster"] == "dgx1-v100"
    (warning,) = (each for each in one["warnings"] if each["code"] == "cluster_refused")
    assert warning["subject"] == "dgx-a100"
    assert "--nodes must be at most" in warning["message"]


def test_no_cluster_that_can_is_an_error_of_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(on(CLUSTERS, "--nodes", "2000")) == 2
    assert "on cluster 'dgx1-v100', got 2000" in capsys.readouterr().err


def test_one_cluster_twice_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, ("dgx-a100", "dgx-a100")) == document(capsys, ("dgx-a100",))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--why-not", "nodes=2"), "--why-not"),
        (("--sensitivity",), "--sensitivity"),
        (("--search", "optuna"), "--search optuna"),
        (("--task", "inference"), "--task inference"),
        (("--objective", "epoch-time:1+gpu-hours:1"), "--objective epoch-time:1+gpu-hours:1"),
    ],
)
def test_what_is_of_one_cluster_says_so(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], named: str
) -> None:
    assert main(on(CLUSTERS, *options)) == 2
    assert f"--cluster must be a single one with {named}, got" in capsys.readouterr().err


def test_other_commands_take_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["predict", "--network", "resnet50", "--cluster", "dgx-a100", "--cluster", "dgx-h100"]) == 2
    assert "--cluster must be given once" in capsys.readouterr().err
    (tmp_path / "planner.toml").write_text(
        'format = "planner/settings"\nversion = 1\ncluster = ["dgx-a100", "dgx-h100"]\nnetwork = "resnet50"\n'
    )
    monkeypatch.chdir(tmp_path)
    assert main(["predict", "--sub-batch", "32"]) == 3
    said = "cluster must be one with predict, got 'dgx-a100,dgx-h100'; name one on the command line"
    assert said in capsys.readouterr().err
    assert main(["suggest", "--target-batch", "1024", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["suggestions"]) == 2


def test_python_has_the_best_cluster_first() -> None:
    answer = planner.suggest(network="resnet50", cluster=list(CLUSTERS), target_batch=1024)
    assert (
        answer.plans[0].cluster == answer.chosen.cluster == min(answer.clusters, key=lambda one: answer.clusters[one])
    )
    assert {*answer.clusters} == {*CLUSTERS} == {*answer.to_frame()["cluster"]}


@pytest.mark.parametrize("brief", [(), ("--brief",)], ids=["full", "brief"])
def test_a_job_is_that_of_the_best_cluster(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, brief: tuple[str, ...]
) -> None:
    kept = tmp_path / "plan.json"
    kept.write_text(json.dumps(document(capsys, CLUSTERS[:2], *brief)))
    for command in ("render", "--to", "slurm"), *([] if brief else [("explain", "--part", "runs")]):
        assert main([command[0], str(kept), *command[1:]]) == 0
        text = capsys.readouterr().out
        assert "dgx-a100" in text
        assert "dgx1-v100" not in text


def test_clusters_of_one_name_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["show", "clusters", "dgx-a100", "--toml"]) == 0
    text = capsys.readouterr().out
    files = tuple(str(tmp_path / f"{at}.toml") for at in (1, 2))
    for file in files:
        Path(file).write_text(text)
    assert main(on(files)) == 2
    assert "--cluster must be of different names" in capsys.readouterr().err


def test_the_first_screen_warns_of_the_plans_that_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """And says what the plan to take takes, how it starts, and what would help a cluster without a plan."""
    assert main(on(CLUSTERS[1:], "--limit", "epoch=40s")) == 0
    out, err = capsys.readouterr()
    assert ": an epoch in " in out
    assert "resnet50 on dgx-a100: no plan fits; the smallest change that helps: --limit" in " ".join(out.split())
    assert "Start: torchrun" in out
    assert len((out + err).splitlines()) <= 25
