"""Ctrl-C during searches beside the one for the plans: the best so far, or the part that is done, and exit code 130."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., tuple[int, str, str]]
ASKED = ("--network", "resnet50", "--target-batch", "1024", "--nodes", "1:64", "--gpus-per-node", "1:8")


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, int], None]:
    """Return what lets Ctrl-C come when a function of a module is called for the n-th time."""

    def prepare(module: str, name: str, at: int) -> None:
        called = __import__(module, fromlist=[name]).__dict__[name]
        calls: list[int] = []

        def interrupted(*arguments: Any, **named: Any) -> Any:
            calls.append(at)
            if len(calls) == at:
                signal.raise_signal(signal.SIGINT)
            return called(*arguments, **named)

        monkeypatch.setattr(f"{module}.{name}", interrupted)

    return prepare


@pytest.fixture
def priced(run: Run, tmp_path: Path) -> str:
    """Return a cluster's file with a price."""
    path = tmp_path / "priced.toml"
    text = run("show", "clusters", "dgx1-v100", "--toml")[1]
    text = text.replace('name = "dgx1-v100"', 'name = "priced"')
    path.write_text(text + "\n[price]\nusd_per_gpu_hour = 2.0\n")
    return str(path)


@pytest.mark.parametrize("at", [1, 2])
def test_of_the_least_of_a_term_is_the_best_so_far(run: Run, interrupt: Any, priced: str, at: int) -> None:
    interrupt("planner.search.searchable", "search", at)
    asked = ("suggest", *ASKED, "--cluster", priced, "--objective", "epoch-time:1+cost:1", "--json")
    code, out, err = run(*asked)
    assert (code, err) == (130, "planner: interrupted\n")
    answer = json.loads(out)
    assert answer["plans"]
    assert answer["search"]["certified"] is False
    assert set(answer["leasts"]) == {"epoch-time", "cost"}


def test_of_changed_inputs_those_that_are_done_are_told(run: Run, interrupt: Any) -> None:
    asked = ("suggest", *ASKED[:6], "--cluster", "dgx1-v100", "--sensitivity", "--json")
    whole = json.loads(run(*asked)[1])
    interrupt("planner.search.studies", "search", 6)
    code, out, err = run(*asked)
    assert (code, err) == (130, "planner: interrupted\n")
    answer = json.loads(out)
    assert answer["plans"] == whole["plans"]
    told = len(answer["sensitivity"])
    assert 0 < told < len(whole["sensitivity"])
    assert answer["sensitivity"] == whole["sensitivity"][:told]


def test_of_a_sweep_what_is_priced_is_shown(run: Run, interrupt: Any) -> None:
    interrupt("planner.search.studies", "_firsts", 1)
    asked = ("sweep", "--network", "gpt2", "--cluster", "dgx-a100", "--target-batch", "512", "--precision", "bf16")
    code, out, err = run(*asked, "--json")
    assert (code, err) == (130, "planner: interrupted\n")
    answer = json.loads(out)
    assert answer["plans"]
    assert answer["complete"] is False
    interrupt("planner.search.studies", "_firsts", 1)
    assert "; it was interrupted, and others may be better" in " ".join(run(*asked)[1].split())
