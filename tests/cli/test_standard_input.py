"""Documents from standard input, and files that must not be waited for, through the command line."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
PREDICT = ("predict", "--sub-batch", "8", "--dataset", "imagenet-1k")


def pipe(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


@pytest.mark.parametrize(
    ("option", "shown", "rest"),
    [
        ("--network", ("networks", "resnet18"), ("--cluster", "dgx1-v100")),
        ("--cluster", ("clusters", "dgx1-v100"), ("--network", "resnet18")),
    ],
)
def test_a_piped_document_is_as_good_as_its_name(
    option: str, shown: tuple[str, str], rest: tuple[str, str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, text, _ = run("show", *shown, "--toml")
    pipe(text, monkeypatch)
    assert run(*PREDICT, option, "-", *rest) == run(*PREDICT, option, shown[1], *rest)


def test_standard_input_has_one_document(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(run("show", "networks", "resnet18", "--toml")[1], monkeypatch)
    code, _, err = run(*PREDICT, "--network", "-", "--cluster", "-")
    problem = "format: value must be 'planner/cluster', got 'planner/network'"
    assert (code, err) == (3, f"planner: standard input: {problem}\n")


def test_settings_and_rows_of_runs_do_not_ask_for_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe("", monkeypatch)
    settings = 'format = "planner/settings"\nversion = 1\nnetwork = "-"\ncluster = "dgx1-v100"\n'
    Path("planner.toml").write_text(settings, encoding="utf-8")
    code, _, err = run("predict", "--sub-batch", "8")
    assert (code, "/-: file must be readable, got No such file" in err) == (3, True)
    rows = "id,network,cluster,metric,value,sub_batch\na,-,dgx1-v100,iteration_s,1,8\n"
    Path("runs.csv").write_text(rows, encoding="utf-8")
    _, out, _ = run("validate", "--runs", "runs.csv", "--json")
    assert "network must be a name or a file, got '-'" in out


@pytest.mark.parametrize(
    "arguments",
    [
        (*PREDICT, "--cluster", "dgx1-v100", "--network", "pipe.toml"),
        (*PREDICT, "--network", "resnet18", "--cluster", "pipe.toml"),
        (*PREDICT, "--network", "resnet18", "--calibration", "./pipe.toml"),
        ("predict", "--sub-batch", "8", "--network", "resnet18", "--cluster", "dgx1-v100", "--dataset", "pipe.toml"),
        ("suggest", "--target-batch", "64", "--network", "pipe.toml", "--cluster", "dgx1-v100"),
        ("calibrate", "--plan", "pipe.toml"),
        ("validate", "--runs", "pipe.toml"),
        ("show", "networks", "pipe.toml"),
    ],
)
def test_a_named_pipe_is_exit_3_whatever_asks_for_it(arguments: tuple[str, ...], run: Run) -> None:
    os.mkfifo("pipe.toml")
    code, out, err = run(*arguments)
    assert (code, out) == (3, "")
    assert (
        "pipe.toml: file must be a regular one, got a pipe; copy it into a file, or pipe it in and name it -\n" in err
    )
