"""suggest --search optuna and search-worker: a study goes on, workers rebuild its request, and what is refused."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import optuna
import pytest

from planner.cli.main import main
from planner.search.optuna_study import SharedStudy

RESNET = ("--network", "resnet50", "--cluster", "dgx1-v100", "--target-batch", "1024", "--nodes", "1:8")
OPTUNA = ("suggest", *RESNET, "--search", "optuna", "--trials", "8")


@cache
def study() -> str:
    """Return the file of a study that OPTUNA made."""
    with TemporaryDirectory() as folder, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        place = Path(folder, "s.db")
        assert main([*OPTUNA, "--study", str(place), "--brief"]) == 0
        return place.read_text()


def method(out: str) -> str:
    return str(json.loads(out)["search"]["method"])


def records(name: str, operation: int) -> list[dict[str, Any]]:
    """Return the records of a journal with an operation: 4 makes a trial, 6 ends it."""
    every = [json.loads(line) for line in Path(name).read_text().splitlines()]
    return [one for one in every if one["op_code"] == operation]


def test_a_study_goes_on_and_a_worker_joins(run: Any) -> None:
    name = "s.db"
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


def test_a_worker_has_the_values_of_the_settings_file_and_the_default_request(run: Any) -> None:
    Path("planner.toml").write_text('format = "planner/settings"\nversion = 1\ntolerance = 0.3\n')
    assert run("suggest", "--target-batch", "138", "--search", "optuna", "--trials", "3", "--study", "s.db")[0] == 0
    Path("planner.toml").unlink()
    code, out, err = run("search-worker", "--storage", "s.db", "--trials", "2", "--json")
    assert code == 0, err
    assert "planner.toml" in json.loads(out)["request"]["tolerance"]["source"]


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
        ((*OPTUNA, "--network", "vgg16"), "one network, framework, scenario"),
        (
            (*OPTUNA, "--study", "nowhere/s.db"),
            "--study must be a file that can be read and written, got 'nowhere/s.db'",
        ),
        ((*OPTUNA, "--study", "/dev/full"), "got '/dev/full' (it is no regular file)"),
        (
            (*OPTUNA, "--study", "sqlite:///s.db"),
            "--study must be a file, or the URL of a database server, got 'sqlite",
        ),
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


def test_a_study_is_not_made_where_a_link_leads(run: Any) -> None:
    Path("link.db").symlink_to("elsewhere.db")
    code, _, err = run(*OPTUNA, "--study", "link.db")
    assert (code, Path("elsewhere.db").exists()) == (2, False)
    assert "got 'link.db' (No such file or directory)" in err


def test_two_workers_at_the_same_time_try_no_plan_twice(tmp_path: Path) -> None:
    """Two starts on a new file, with one seed: processes of their own; tests/live has workers too."""
    suggest = [*OPTUNA, "--study", "s.db", "--json"]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "planner", *suggest],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in started:
        out, err = process.communicate()
        assert process.returncode == 0, err
        assert len(err.splitlines()) == 1
        assert json.loads(out)["search"]["trials"] >= 8
    name = str(tmp_path / "s.db")
    claimed = {at: str(one["params"]) for at, one in enumerate(records(name, 4))}
    tried = [claimed[one["trial_id"]] for one in records(name, 6) if one["state"] != optuna.trial.TrialState.FAIL]
    assert len(tried) == len(set(tried)) == 8 + 8
    assert len(records(name, 4)) == len(records(name, 6))


def test_a_full_disk_names_the_file_and_leaves_whole_records(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("s.db").write_text(study())

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("planner.search.optuna_study.os.fsync", full)
    code, out, err = run(*OPTUNA, "--study", "s.db")
    assert (code, out) == (2, "")
    assert "--study must be a file that can be read and written, got 's.db' (No space left on device)" in err
    assert Path("s.db").read_text() == study()


def test_a_server_that_stops_is_one_sentence(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise optuna.exceptions.StorageInternalError from OSError("server closed the connection unexpectedly\nat")

    monkeypatch.setattr(optuna.Study, "tell", stopped)
    code, out, err = run(*OPTUNA, "--study", "s.db")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "got 's.db' (server closed the connection unexpectedly); name another place" in err


@pytest.mark.parametrize(
    "options",
    [
        {"option": {"no_such": "1"}},
        {"option": {"json": "1"}},
        {"somewhere": {"target_batch": "1024"}},
        {"option": ["target_batch"]},
        {"option": {"target_batch": "0"}},
        {"option": {"target_batch": {"a": 1}}},
        {"option": {"target_batch": "1024", "network": 7, "cluster": "dgx1-v100"}},
    ],
)
def test_options_of_a_study_are_checked_as_a_file_is(run: Any, options: dict[str, Any]) -> None:
    lines = study().splitlines(keepends=True)
    (at,) = (at for at, line in enumerate(lines) if "planner:request" in line)
    record = json.loads(lines[at])
    record["user_attr"]["planner:request"]["options"] = options
    lines[at] = json.dumps(record) + "\n"
    Path("s.db").write_text("".join(lines))
    code, out, err = run("search-worker", "--storage", "s.db")
    assert (out, len(err.splitlines())) == ("", 1)
    assert code == 2 if "network" in str(options) else 3


def test_a_study_of_other_inputs_is_refused_with_both_fingerprints(run: Any) -> None:
    Path("s.db").write_text(study())
    code, _, err = run(*OPTUNA, "--study", "s.db", "--tolerance", "10%")
    assert code == 3
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
    assert code == 3
    assert "same inputs" in err
    assert err.count("cluster ") == 2
    Path("mine.toml").write_text(cluster)
    monkeypatch.setattr("planner.cli.suggest.__version__", "0.0.1")
    code, _, err = run(*worker)
    assert code == 3
    assert "planner 0.0.1" in err


def test_interrupted_it_answers_with_the_best_and_goes_on(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, calls = SharedStudy.claim, []

    def interrupted(self: Any, *of: Any) -> Any:
        calls.append(of)
        if len(calls) == 5:
            signal.raise_signal(signal.SIGINT)
        return claim(self, *of)

    monkeypatch.setattr(SharedStudy, "claim", interrupted)
    code, out, err = run(*OPTUNA, "--study", "s.db", "--json")
    assert (code, method(out)) == (130, "optuna (TPE), 5 trials")
    assert "the best of 5 trials; the same command goes on" in err
    code, out, _ = run(*OPTUNA, "--study", "s.db", "--json")
    assert (code, method(out)) == (0, "optuna (TPE), 13 trials")
