"""Files that ``planner validate`` may meet: rows are answered or refused by line, and only no row at all is exit 3."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from planner.formats import runs as runs_format

Run = Callable[..., tuple[int, str, str]]
HEAD = "id,network,cluster,nodes,gpus_per_node,sub_batch,metric,value,group"
GOOD = "good,resnet50,dgx1-v100,1,8,64,samples_per_s,1734,"
PIPE_IN = "copy it into a file, or pipe it in and name it -"
LAST = GOOD.replace("good", "last")
WRONG = GOOD.replace("good", "wrong")


def validated(run: Run, tmp_path: Path, content: str | bytes) -> tuple[int, str, str]:
    path = tmp_path / "runs.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return run("validate", "--runs", str(path), "--json")


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (f"\ufeff{HEAD}\n{GOOD}\n{LAST}\n", [2, 3]),
        (f"{HEAD}\r\n{GOOD}\r\n\r\n{LAST}", [2, 4]),
        (f'{HEAD},notes\n{GOOD},"two\nlines, and a comma"\n{LAST}\n', [2, 4]),
        (f"# planner/runs 1\n{HEAD},,\n{GOOD}\n{LAST}\n", [3, 4]),
    ],
    ids=["byte order mark", "windows", "line break in a cell", "opening line"],
)  # fmt: skip
def test_text_of_other_programs_is_read(run: Run, tmp_path: Path, content: str, lines: list[int]) -> None:
    code, out, err = validated(run, tmp_path, content)
    rows = json.loads(out)["rows"]
    assert (code, err) == (0, "")
    assert [(row["line"], row["refused_reason"]) for row in rows] == [(line, None) for line in lines]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (b'bad"open,resnet50,"never closed', "quotes must"),
        (b"bad,resnet50", "cluster must be given, got nothing"),
        (LAST.encode() + b",one,more", "row must be of at most 9 cells, as the header, got 11"),
        (b"caf\xe9" + LAST.encode(), "got byte 0xe9 as character 4; save the file as UTF-8"),
        (b"a\0" + LAST.encode(), "null characters"),
        (WRONG.replace("1734", "1e400").encode(), "value must be a number from 1e-09 to 1e+15, got '1e400'"),
        (WRONG.replace("64", "0").encode(), "sub_batch must be a whole number from 1"),
        (WRONG.replace("dgx1-v100,1,8", "dgx1-v100,1,9").encode(), "gpus_per_node must be at most the 8"),
        (WRONG.replace("resnet50", "resnet51").encode(), "network must be a known name, got 'resnet51'"),
        (WRONG.replace("dgx1-v100", "nowhere").encode(), "cluster must be a known name, got 'nowhere'"),
        (GOOD.encode(), "id must be given once, got 'good'; it stands on line 2 too"),
    ],
)
def test_a_wrong_row_is_refused_by_line_between_those_answered(
    run: Run, tmp_path: Path, row: bytes, words: str
) -> None:
    code, out, err = validated(run, tmp_path, f"{HEAD}\n{GOOD}\n".encode() + row + f"\n{LAST}\n".encode())
    rows = json.loads(out)["rows"]
    assert (code, err) == (0, "")
    assert [(one["line"], one["refused_reason"] is None) for one in rows] == [(2, True), (3, False), (4, True)]
    assert words in rows[1]["refused_reason"]


def test_well_formed_rows_that_are_all_refused_are_a_result(run: Run, tmp_path: Path) -> None:
    rows = "\n".join([LAST.replace("resnet50", "nothing"), GOOD.replace("dgx1-v100", "nowhere")])
    code, out, err = validated(run, tmp_path, f"{HEAD}\n{rows}\n")
    assert (code, err) == (0, "")
    assert all(" must be " in row["refused_reason"] for row in json.loads(out)["rows"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "line 1: header must name the columns, got an empty file"),
        (f"{HEAD.replace('sub_batch', 'subbatch')}\n{GOOD}\n", "got 'subbatch'; did you mean 'sub_batch'?"),
        (HEAD.replace(",", ";"), "save the file with commas, not semicolons"),
        (gzip.compress(f"{HEAD}\n{GOOD}\n".encode()), "decompress it first"),
        (f"{HEAD}\n{GOOD}\n".encode("utf-16"), "save the file as UTF-8"),
        (b"\0" * 100_000, "line 1: line must be of at most 65,536 characters"),
    ],
)
def test_a_file_without_a_readable_header_is_exit_3(run: Run, tmp_path: Path, content: str | bytes, words: str) -> None:
    code, out, err = validated(run, tmp_path, content)
    assert (code, json.loads(out)["format"]) == (3, "planner/error")
    assert words in err
    assert err.count("\n") == 1


def test_a_header_alone_is_exit_3_with_a_document(run: Run, tmp_path: Path) -> None:
    code, out, err = validated(run, tmp_path, f"{HEAD}\n")
    assert (code, json.loads(out)["rows"]) == (3, [])
    assert "got a header alone; add a row a run" in err


def test_what_is_no_file_is_refused(run: Run, tmp_path: Path) -> None:
    for name, exit_code, words in ((str(tmp_path), 2, "it is empty"), ("missing.csv", 3, "No such file")):
        code, out, err = run("validate", "--runs", name, "--json")
        assert (code, json.loads(out)["format"]) == (exit_code, "planner/error")
        assert words in err


def test_standard_input_is_read_like_a_file(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{HEAD}\n{GOOD}\n".encode())))
    code, out, _ = run("validate", "--runs", "-", "--json")
    assert (code, len(json.loads(out)["rows"])) == (0, 1)


def test_a_named_pipe_is_refused_not_waited_for(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    code, _, err = run("validate", "--runs", str(path), "--json")
    assert (code, err) == (3, f"planner: {path}: file must be a regular one, got a pipe; {PIPE_IN}\n")


def test_more_than_the_limit_of_standard_input_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_format, "LARGEST_FILE", 1000)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{HEAD}\n".encode() + b"x\n" * 10_000)))
    code, _, err = run("validate", "--runs", "-", "--json")
    assert (code, err) == (3, "planner: standard input: file must be of at most 1,000 bytes, got more\n")


def test_rows_beyond_the_most_are_counted_and_the_answer_says_so(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_format, "MOST_RUNS", 2)
    rows = "\n".join(f"{at}{GOOD}" for at in range(7))
    code, out, err = validated(run, tmp_path, f"{HEAD}\n{rows}\n")
    found = json.loads(out)
    assert (code, err, found["omitted"]) == (0, "", 4)
    assert [row["refused_reason"] is None for row in found["rows"]] == [True, True, False]
    assert "file must be of at most 2 runs, got this row and 4 rows after it" in found["rows"][2]["refused_reason"]
    _, view, _ = run("validate", "--runs", str(tmp_path / "runs.csv"))
    assert "7: 2 predicted, 5 refused" in view
    assert "file must be of at most 2 runs" in " ".join(view.split())


MEGATRON = (
    " [2026-03-02 10:00:00] iteration {at:8d}/      60 | consumed samples: {seen:12d} | elapsed time per iteration "
    "(ms): {ms:.1f} | global batch size: {batch:5d} | lm loss: 9.1E+00 | grad norm: 1.1 |\n"
)
TITAN = (
    "[rank0]:[titan] 2026-03-02 10:00:00,338 - root - INFO - \x1b[31mstep: {at:2d}  \x1b[32mloss:  7.2  "
    "\x1b[36mmemory:  9.50GiB(64.99%)  \x1b[34mtps: {rate:,}  \x1b[36mtflops: 0.52  \x1b[35mmfu: 0.17%\x1b[39m\n"
)
TRAINER = (
    "{{'loss': 3.2, 'learning_rate': 5e-05, 'epoch': 0.5}}\n{{'eval_loss': 3.1, 'eval_runtime': 2.0, 'epoch': 1.0}}\n"
    "{{'train_runtime': 12.0, 'train_samples_per_second': {samples}, 'train_steps_per_second': 20.0, 'epoch': 1.0}}\n"
)


def megatron(*times_ms: float, batch: int = 16) -> str:
    rows = (MEGATRON.format(at=10 * at, seen=160 * at, ms=ms, batch=batch) for at, ms in enumerate(times_ms, 1))
    return "".join(rows)


@pytest.fixture
def plan(run: Run) -> str:
    """Keep the plan of 8 GPUs with 2 samples of 1024 tokens each; return its file."""
    words = ("--network", "gpt2", "--cluster", "dgx-a100", "--sub-batch", "2", "--framework", "megatron", "--json")
    Path("plan.json").write_text(run("predict", *words, "--precision", "bf16")[1])
    return "plan.json"


def test_logs_of_training_programs_are_rows_given_the_plan(run: Run, plan: str) -> None:
    Path("logs").mkdir()
    whole = megatron(900, 500, 30, 400, 31, 29)
    memory = "[Rank 0] (after 10 iterations) memory (MB) | allocated: 300.0 | max reserved: 512.0\n"
    titan = [TITAN.format(at=at, rate=512 if at == 1 else 65536) for at in (1, 10, 20, 30)]
    state = '{\n  "global_step": 240,\n  "log_history": [\n   {\n    "eval_runtime": 2.0\n   },\n   {\n'
    state += '    "train_runtime": 14.0,\n    "train_samples_per_second": 274.3\n   }\n  ]\n}\n'
    contents = {
        "a.log": whole[: whole.rindex("29.0") + 2],
        "b.txt": f"  seq_length .......... 1024\n{memory}{whole}",
        "c.out": "".join(titan), "d": TRAINER.format(samples=320.0), "e.json": state,
        "plan.json": Path(plan).read_text(), "none.log": "no\n",
    }  # fmt: skip
    for name, text in contents.items():
        Path("logs", name).write_text(text)
    code, out, err = run("validate", "--runs", "logs", "--plan", plan, "--json")
    rows = {row["id"]: row["measured"] for row in json.loads(out)["rows"]}
    assert code == 0
    assert rows == pytest.approx(
        {
            "a": 0.0305, "b": 0.030, "b memory": 512 * 2**20, "c": 1024 * 2 / 65536, "c memory": 9.5 * 2**30,
            "d": 10 / 240, "e": 12 / 240,
        }
    )  # fmt: skip
    assert (
        "logs/b.txt: 30 ms, median of 3 steady times of 6 logged, spread 4.9%; left out: warm-up 2, outliers 1\n" in err
    )
    assert "logs/d: 41.67 ms, mean of all 240 iterations, warm-up included\n" in err
    assert re.findall(r"logs/(\S+): log of (.*), but plan 1 of plan.json is of megatron-lm: what", err) == [
        ("c.out", "torchtitan"), ("d", "Hugging Face's Trainer"), ("e.json", "Hugging Face's Trainer")
    ]  # fmt: skip
    code, out, err = run("validate", "--runs", "logs/c.out", "--plan", plan)
    assert len(f"{out}{err}".splitlines()) <= 25


def test_a_file_that_is_neither_table_nor_log_names_the_programs_of_logs(run: Run, plan: str) -> None:
    Path("hello.txt").write_text("hello\n")
    code, _, err = run("validate", "--runs", "hello.txt", "--plan", plan)
    assert (code, "Megatron, torchtitan or Hugging Face's Trainer" in err) == (3, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (megatron(30, 31, batch=32), "line 2: global batch size must be 16, as in plan 1 of plan.json, got 32; give"),
        ("seq_length: 2048\n" + megatron(30), "sequence length must be 1,024, as in plan 1 of plan.json, got 2,048"),
        ("  world_size ...... 4\n" + megatron(30), "number of GPUs must be 8, as in plan 1 of plan.json, got 4; give"),
        (TRAINER.format(samples=640.0), "global batch size must be 16, as in plan 1 of plan.json, got about 32; give"),
        (TITAN.format(at=1, rate=512), "log must have an iteration after the first, which is warm-up, got none"),
    ],
)
def test_a_log_that_contradicts_its_plan_is_refused_with_both(run: Run, plan: str, text: str, words: str) -> None:
    Path("train.log").write_text(text)
    code, _, err = run("validate", "--runs", "train.log", "--plan", plan)
    assert (code, err.count("\n")) == (3, 1)
    assert words in err


def test_a_log_without_its_plan_says_how_to_make_a_row(run: Run, plan: str) -> None:
    Path("train.log").write_text(megatron(900, 30))
    code, _, err = run("validate", "--runs", "train.log")
    assert (code, err.count("\n")) == (3, 1)
    assert "log of Megatron must be given with the plan that ran, got none; name the document of planner suggest" in err
    header = "id,network,cluster,nodes,sub_batch,precision,framework,metric,value"
    assert err.endswith(f"write a row under the header {header} that ends in iteration_s,0.03\n")
    assert run("validate", "--runs", "train.log", "--plan", plan, "--position", "2")[0] == 2
    Path("runs.csv").write_text(f"{HEAD}\n{GOOD}\n")
    assert "--plan must be given for logs alone" in run("validate", "--runs", "runs.csv", "--plan", plan)[2]
