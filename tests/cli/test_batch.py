"""Requests as JSON lines: order, one bad line among others, the words of errors, and warm tables."""

import io
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # its stubs are a separate package
import pytest

from planner.formats.schemas import schema

Run = Callable[..., tuple[int, str, str]]
SMALL = {"network": "resnet18", "cluster": "dgx1-v100", "precision": "fp32", "brief": True}


def answers(run: Run, *lines: str | dict[str, Any]) -> tuple[int, list[dict[str, Any]], str]:
    texts = [one if isinstance(one, str) else json.dumps(one) for one in lines]
    Path("requests.jsonl").write_text("\n".join(texts))
    code, out, err = run("batch", "requests.jsonl")
    return code, [json.loads(line) for line in out.splitlines()], err


def test_a_bad_line_stops_no_other_and_says_its_line_and_exit_code(run: Run) -> None:
    bad: dict[str, tuple[str | dict[str, Any], int, str]] = {
        "oops": ("oops", 3, "text must be JSON"),
        "twice": ('{"nodes": 1, "nodes": 2}', 3, "'nodes' twice"),
        "list": ("[1]", 3, "document must be an object"),
        "long": ("x" * 70_000, 3, "at most 65,536 characters"),
        "key": ({"target_batc": 64}, 2, "did you mean 'target_batch'?"),
        "value": (SMALL | {"target_batch": True}, 2, "target_batch must be text, a number or a list of them, got true"),
        "values": (SMALL | {"target_batch": [1, True]}, 2, "a number or a list of them, got [1, true]"),
        "infinite": (SMALL | {"target_batch": math.inf}, 2, "a number or a list of them, got inf"),
        "nested": (SMALL | {"target_batch": {}}, 2, "target_batch must be"),
        "command": (SMALL | {"command": "calibrate"}, 2, "command must be one of suggest, predict"),
        "stdin": ({"network": "-", "target_batch": 64}, 2, "network must be a name or a file, got '-'"),
        "none": (SMALL, 2, "target_batch must be given, got nothing"),
        "nothing": (
            SMALL | {"target_batch": 1009, "tolerance": 0, "nodes": 8},
            4,
            "no plan meets target_batch 1009",
        ),
    }
    good: list[str | dict[str, Any]] = [SMALL | {"target_batch": 64}, "", SMALL | {"target_batch": 128}]
    code, documents, err = answers(run, *good, *(line for line, _, _ in bad.values()), good[0])
    assert [one["format"] for one in documents] == ["planner/brief"] * 2 + ["planner/error"] * 13 + ["planner/brief"]
    assert [documents[at]["mini_batch"] for at in (0, 1, -1)] == [64, 128, 64]
    for at, (name, (_, exit_code, words)) in enumerate(bad.items(), 4):
        document = documents[at - 2]
        assert [one.message for one in jsonschema.Draft202012Validator(schema("error")).iter_errors(document)] == []
        assert (name, document["exit_code"], document["line"]) == (name, exit_code, at)
        assert words in document["message"]
    assert documents[-2]["answer"]["loosen"]
    assert code == 3
    assert err.startswith("planner: 13 of 16 requests failed, the first on line 4:\n")


def test_an_answer_is_that_of_the_command_whatever_came_before(run: Run) -> None:
    request = {"network": "resnet18", "cluster": "dgx1-v100", "precision": ["fp32", "fp16"], "gpus_per_node": 8}
    asked = [request | {"target_batch": batch} for batch in (256, 512, 256)]
    predicted = SMALL | {"command": "predict", "sub_batch": 32}
    del predicted["brief"]
    code, documents, err = answers(run, *asked, predicted)
    assert (code, err) == (0, "")
    assert documents[0] == documents[2]
    words = ["--network", "resnet18", "--cluster", "dgx1-v100", "--json", "--precision"]
    of_suggest = run("suggest", "--target-batch", "512", "--gpus-per-node", "8", *words, "fp32,fp16")[1]
    assert documents[1] == json.loads(of_suggest)
    assert documents[3] == json.loads(run("predict", "--sub-batch", "32", *words, "fp32")[1])


def test_lines_are_answered_as_they_come(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a request that never ends no more is read than is answered."""
    requests = "".join(json.dumps(SMALL | {"target_batch": batch}) + "\n" for batch in (32, 64))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(requests.encode()))))
    code, out, _ = run("batch")
    assert code == 0
    assert [json.loads(line)["mini_batch"] for line in out.splitlines()] == [32, 64]
