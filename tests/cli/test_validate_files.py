"""Files that ``planner validate`` may meet: rows are answered or refused by line, and only no row at all is exit 3."""

from __future__ import annotations

import gzip
import io
import json
import os
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
        (HEAD.replace(",", ";"), "separate columns by commas, not by semicolons"),
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


def test_what_is_no_file_is_exit_3(run: Run, tmp_path: Path) -> None:
    for name, words in ((str(tmp_path), "got a directory"), ("missing.csv", "No such file")):
        code, out, err = run("validate", "--runs", name, "--json")
        assert (code, json.loads(out)["format"]) == (3, "planner/error")
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
