"""``python -m benchmarks.stream``: requests that differ, the same every time, and how long they take."""

import json

import pytest

from benchmarks.stream import answered, lines_of, main, requests


def test_no_two_requests_are_alike_and_a_seed_repeats_them() -> None:
    made = list(requests(300, seed=1))
    assert len({json.dumps(one) for one in made}) == 300
    assert made == list(requests(300, seed=1)) != list(requests(300, seed=2))


def test_requests_are_lines_for_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["5"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == list(requests(5))


def test_times_are_told_by_kind() -> None:
    made = [{"network": "mlp", "cluster": "dgx-a100", "target_batch": batch} for batch in (64, 128)]
    seconds, answers = answered(made)
    assert [json.loads(one)["status"] for one in answers] == ["found", "found"]
    total, *kinds = lines_of(made, seconds)
    assert total.startswith("2 requests in ")
    assert {one.split(":")[0] for one in kinds} == {"mlp on dgx-a100", "--framework left out"}
