"""suggest --strategy bucketed:...: the size that trials choose, in the text, in JSON, and as an option of its own."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

RESNET = ("--network", "resnet50", "--cluster", "dgx1-v100")
ASKED = ("suggest", *RESNET, "--target-batch", "2048", "--nodes", "8:16")


def in_words(text: str) -> str:
    return " ".join(text.split())


def test_the_answer_says_the_size_how_it_was_found_and_what_it_saves(run: Any) -> None:
    code, out, err = run(*ASKED, "--strategy", "bucketed:best", "--trials", "25")
    own = json.loads(run(*ASKED, "--json")[1])
    found = json.loads(run(*ASKED, "--strategy", "bucketed:best", "--trials", "25", "--json")[1])
    (tuned,) = found["search"]["tuned"]
    size, gain = tuned["value"], tuned["gain"]
    assert code == 0
    assert len((out + err).splitlines()) <= 25
    words = f"Buckets of {size / 2**20:.6g} MiB save {100 * gain:.2g}% over those of the framework"
    assert f"{words} (optuna (TPE), 25 trials)." in in_words(out)
    assert (tuned["trials"], tuned["method"], tuned["what"]) == (25, "optuna (TPE)", "bucket_bytes")
    assert found["search"]["method"].endswith("; optuna (TPE) for the size of buckets, 25 trials")
    assert (found["subject"]["strategy"], found["subject"]["bucket_bytes"]) == ("bucketed", size)
    assert 0 <= found["search"]["gap"] < 0.01
    rates = [one["plans"][0]["prediction"]["samples_per_s"]["value"] for one in (own, found)]
    assert rates[0] / rates[1] == pytest.approx(1 - gain)
    assert gain > 0
    assert "bucket_bytes" not in own["subject"]
    assert "tuned" not in own["search"]


def test_the_size_found_can_be_predicted_with_and_explained(run: Any) -> None:
    out = run(*ASKED, "--strategy", "bucketed:0.1MiB:10MiB", "--trials", "15", "--json")[1]
    Path("plan.json").write_text(out)
    found = json.loads(out)
    plan, size = found["plans"][0], found["subject"]["bucket_bytes"]
    one = plan["configuration"]
    options = ("--nodes", one["nodes"], "--sub-batch", one["sub_batch"], "--precision", one["precision"])
    strategy = ("--strategy", f"bucketed:{size / 2**20:.6g}MiB")
    predicted = json.loads(run("predict", *RESNET, *map(str, options), *strategy, "--json")[1])
    assert predicted["iteration_s"]["value"] == plan["prediction"]["iteration_s"]["value"]
    assert predicted["subject"]["bucket_bytes"] == size
    assert run("explain", "plan.json", "--position", "1")[0] == 0
    words = f"Buckets of {size / 2**20:.6g} MiB save"
    assert words in in_words(run("explain", "plan.json")[1])


def test_where_no_size_is_better_that_is_said(run: Any) -> None:
    alone = ("suggest", *RESNET, "--target-batch", "64", "--nodes", "1", "--gpus-per-node", "1")
    code, out, _ = run(*alone, "--strategy", "bucketed:best")
    assert code == 0
    assert "No size of buckets was better than that of the framework (optuna (TPE), 1 trial)." in in_words(out)


def test_the_time_may_be_limited(run: Any) -> None:
    code, out, _ = run(*ASKED, "--strategy", "bucketed:best", "--time-limit", "1us", "--json")
    assert code == 0
    assert json.loads(out)["search"]["tuned"][0]["trials"] == 1


def test_interrupted_it_answers_with_the_best_so_far(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.search.optuna_sizes import SizeTrials  # noqa: PLC0415 - the class to patch

    run_trials = SizeTrials.run

    def interrupted(self: Any, *of: Any) -> None:
        price = self.price

        def until_interrupted(size: float) -> Any:
            if len(self.tried) == 5:
                signal.raise_signal(signal.SIGINT)
            return price(size)

        self.price = until_interrupted
        run_trials(self, *of)

    monkeypatch.setattr(SizeTrials, "run", interrupted)
    code, out, _ = run(*ASKED, "--strategy", "bucketed:best", "--json")
    found = json.loads(out)
    assert code == 130
    assert found["search"]["tuned"][0]["trials"] == 6
    own = json.loads(run(*ASKED, "--json")[1])
    first, best = (one["plans"][0]["prediction"]["samples_per_s"]["value"] for one in (own, found))
    assert best >= first


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*ASKED, "--strategy", "bucketed:x"), "--strategy must be a positive bytes with a unit"),
        ((*ASKED, "--strategy", "bucketed:4MiB:1MiB"), "a range whose second size is above its first"),
        ((*ASKED, "--strategy", "wait-free:3MiB"), "of the form bucketed:25MiB, bucketed:1MiB:100MiB or bucketed:best"),
        ((*ASKED, "--strategy", "buckets"), "did you mean 'bucketed'?"),
        ((*ASKED, "--strategy", "bucketed:best", "--search", "optuna"), "where plans are not searched exactly"),
        ((*ASKED, "--strategy", "bucketed:best", "--framework", "pytorch,mxnet"), "with several frameworks"),
        ((*ASKED, "--strategy", "bucketed:best", "--mode", "async"), "where all plans are asynchronous"),
        ((*ASKED, "--strategy", "bucketed:best", "--sensitivity"), "with --sensitivity"),
        ((*ASKED, "--strategy", "bucketed:best", "--why-not", "nodes=9"), "with --why-not"),
        (("sweep", *ASKED[1:], "--strategy", "bucketed:best"), "with sweep"),
        (("predict", *RESNET, "--sub-batch", "8", "--strategy", "bucketed:best"), "suggest alone finds the best size"),
        ((*ASKED, "--trials", "5", "--strategy", "bucketed"), "--trials must be given with --search optuna, got 5"),
    ],
)
def test_bad_input_is_one_sentence(run: Any, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1
