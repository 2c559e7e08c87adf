"""suggest --search optuna and search-worker: a study goes on, workers rebuild its request, and what is refused."""

from __future__ import annotations

import json
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

RESNET = ("--network", "resnet50", "--cluster", "dgx1-v100", "--target-batch", "1024", "--nodes", "1:16")
OPTUNA = ("suggest", *RESNET, "--search", "optuna", "--trials", "8")


def method(out: str) -> str:
    return str(json.loads(out)["search"]["method"])


@pytest.mark.parametrize("name", ["s.db", "s.journal"])
def test_a_study_goes_on_and_a_worker_joins(run: Any, name: str) -> None:
    code, out, err = run(*OPTUNA, "--study", name, "--json")
    assert (code, method(out)) == (0, "optuna (TPE), 8 trials")
    first = json.loads(out)
    assert first["search"]["trials"] == 8
    assert "8 tried by Optuna" in first["plans"][0]["why"]
    assert "baseline" not in first  # the plans on the fewest GPUs need not be among those tried
    assert not any("efficiency" in plan for plan in first["plans"])
    assert f"study '{name}': 0 trials before, 8 more" in err
    code, out, err = run(*OPTUNA, "--study", name, "--json")
    assert (code, method(out)) == (0, "optuna (TPE), 16 trials")
    assert "8 trials before, 8 more" in err
    code, out, err = run("search-worker", "--storage", name, "--trials", "4", "--json")
    assert (code, method(out)) == (0, "optuna (TPE), 20 trials")
    assert "16 trials before, 4 more" in err
    found = json.loads(out)
    assert found["search"]["candidates"] == 20
    best = json.loads(run("suggest", *RESNET, "--json")[1])
    assert found["plans"][0]["configuration"] == best["plans"][0]["configuration"]


def test_the_answer_fits_a_screen(run: Any) -> None:
    code, out, err = run(*OPTUNA, "--study", "s.db")
    assert code == 0
    assert len((out + err).splitlines()) <= 25
    assert "best prediction of the whole space, 8 tried by Optuna" in " ".join(out.split())


def test_the_space_may_be_searched_to_its_end(run: Any) -> None:
    code, out, _ = run(*OPTUNA[:-2], "--trials", "5000", "--precision", "fp32", "--json")
    searched = json.loads(out)["search"]
    assert (code, searched["certified"]) == (0, True)
    assert (
        searched["evaluated"]
        == json.loads(run("suggest", *RESNET, "--precision", "fp32", "--json")[1])["search"]["evaluated"]
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("suggest", *RESNET, "--trials", "5"), "--trials must be given with --search optuna, got 5"),
        (("suggest", *RESNET, "--study", "s.db"), "--study must be given with --search optuna, got 's.db'"),
        ((*OPTUNA, "--network", "vgg16"), "one network, framework and scenario"),
        ((*OPTUNA, "--study", "nowhere/s.db"), "--study must be a storage that answers, got 'nowhere/s.db'"),
        ((*OPTUNA, "--study", "nowhere/s.log"), "--study must be a storage that answers, got 'nowhere/s.log'"),
        ((*OPTUNA, "--study", "no-such://me:secret@host/x"), "got 'no-such://me:***@host/x'"),
        (("search-worker",), "--storage must be given, got nothing"),
        (("search-worker", "--storage", "missing.db"), "--storage must be a storage with a study, got 'missing.db'"),
    ],
)
def test_bad_input_is_one_sentence(run: Any, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1
    assert not Path("missing.db").exists()


def test_a_file_that_is_no_study_is_refused(run: Any) -> None:
    Path("s.db").write_text("no database\n" * 100)
    assert run(*OPTUNA, "--study", "s.db")[0] == 2
    Path("s.log").write_text("{torn")
    code, _, err = run(*OPTUNA, "--study", "s.log")
    assert code == 2
    assert "--study must be a storage that answers" in err
    with sqlite3.connect("empty.db"):
        pass
    code, _, err = run("search-worker", "--storage", "sqlite:///empty.db")
    assert code == 2
    assert "--storage must be a storage with a study" in err


def test_a_locked_storage_is_told(run: Any) -> None:
    assert run(*OPTUNA, "--study", "s.db")[0] == 0
    holder = sqlite3.connect("s.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    code, _, err = run(*OPTUNA, "--study", "sqlite:///s.db?timeout=0.1")
    holder.close()
    assert code == 2
    assert "(database is locked)" in err


def test_a_study_of_other_inputs_is_refused_with_both_fingerprints(run: Any) -> None:
    assert run(*OPTUNA, "--study", "s.db")[0] == 0
    code, _, err = run(*OPTUNA, "--study", "s.db", "--tolerance", "10%")
    assert code == 2
    assert err.count("request ") == 2
    assert "must be a study of the same inputs" in err
    assert run(*OPTUNA, "--study", "s.db", "--top", "3", "--seed", "4", "--choose", "fastest")[0] == 0


def test_a_worker_of_another_version_or_other_files_is_refused(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = run("show", "clusters", "dgx1-v100", "--toml")[1].replace("dgx1-v100", "mine")
    Path("mine.toml").write_text(cluster)
    of_file = ("mine.toml" if one == "dgx1-v100" else one for one in OPTUNA)
    assert run(*of_file, "--study", "s.db")[0] == 0
    worker = ("search-worker", "--storage", "s.db", "--trials", "1")
    assert run(*worker)[0] == 0
    Path("mine.toml").write_text(cluster.replace("latency_us = 2.0", "latency_us = 3.0"))
    code, _, err = run(*worker)
    assert code == 2
    assert "same inputs" in err
    assert err.count("cluster ") == 2
    Path("mine.toml").write_text(cluster)
    monkeypatch.setattr("planner.cli.search_worker.__version__", "0.0.1")
    code, _, err = run(*worker)
    assert code == 2
    assert "planner 0.0.1" in err


def test_interrupted_it_answers_with_the_best_and_goes_on(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.search.optuna_trials import Pricer  # noqa: PLC0415 - the class to patch

    price, calls = Pricer.__call__, []

    def interrupted(self: Any, *of: Any) -> Any:
        calls.append(of)
        if len(calls) == 5:
            signal.raise_signal(signal.SIGINT)
        return price(self, *of)

    monkeypatch.setattr(Pricer, "__call__", interrupted)
    code, out, err = run(*OPTUNA, "--study", "s.db", "--json")
    assert (code, method(out)) == (130, "optuna (TPE), 5 trials")
    assert "the best of 5 trials; the same command goes on" in err
    code, out, _ = run(*OPTUNA, "--study", "s.db", "--json")
    assert (code, method(out)) == (0, "optuna (TPE), 13 trials")
