"""The accuracy page: what counts as worse, the page of a few made-up answers, and files beside it that stay in step."""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from planner.domain.runs import ScoredRow
from planner.errors import ParameterError
from planner.formats.documents import dump_json
from planner.formats.runs import read_runs
from planner.scoring.evaluate import Answer
from planner.sessions.runs import locked_sources, unfitted_sources
from validation import __main__ as command
from validation.accuracy_answers import (
    APART,
    AXES,
    BUNDLED,
    LOCKED,
    NEW,
    UNCOUNTED,
    UNEVEN,
    Facts,
    Views,
    files_of_runs,
)  # fmt: skip
from validation.accuracy_check import compared
from validation.accuracy_effects import effects_of
from validation.accuracy_figures import document_of, mean_of_sources, rounded
from validation.accuracy_page import NOT_EXPLAINED, NOT_PREDICTED, page_of, reason_of, table_named
from validation.accuracy_ranking import rankings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "validation"
DOCS = ROOT / "docs"


def row(name: str, predicted: float | None, measured: float, **changed: Any) -> ScoredRow:
    rule = "1, the only value supported yet"
    reason = None if predicted is not None else ParameterError("tensor_parallel", rule, 2, "wait").refusal
    fields: dict[str, Any] = {
        "id": name, "line": 2, "metric": "iteration_s", "predicted": predicted, "measured": measured,
        "low": predicted and 0.8 * predicted, "high": predicted and 1.2 * predicted, "status_measured": "ok",
        "status_predicted": "ok" if predicted else None, "in_sample": False, "refused": reason,
        "network": "resnet50", "cluster": "c", "gpu": "t4", "source": "pollux-t4", "group": "g",
        "bottleneck": "forward",
    }  # fmt: skip
    return ScoredRow(**fields | changed)


def views() -> Views:
    """Return answers with held-out errors 10 % and 20 % (T4, one group), 50 % (K80), one row seen and one refused."""
    held_out = [
        row("pollux-resnet-50-1-b8", 1.1, 1.0),
        row("pollux-resnet-50-2-b8", 2.4, 2.0),
        row("other-1", 3.0, 2.0, source="other", gpu="k80", group="", network="vgg16"),
        row("seen-1", 1.0, 1.0, in_sample=True, source="other", group=""),
        row("vtrain-multi-1", None, 5.0, source="vtrain-multi", group=""),
    ]
    answers = [Answer(one, {"forward": 0.7, "all_reduce": 0.3} if one.predicted else {}) for one in held_out]
    kernels = ("measured", "measured", "specified", "measured", "")
    facts = [Facts(one, nodes=nodes) for one, nodes in zip(kernels, (1, 2, 1, 1, 1), strict=True)]
    return Views(dict.fromkeys((BUNDLED, *AXES), answers), facts, 7)


def with_one(one: ScoredRow, facts: Facts) -> Mapping[str, Any]:
    """Return the document of the same answers and one more."""
    some = views()
    answers = {view: [*found, Answer(one)] for view, found in some.answers.items()}
    return document_of(Views(answers, [*some.facts, facts], some.free_numbers))


DOCUMENT: Mapping[str, Any] = document_of(views())


def changed(factor: float, *place: str) -> dict[str, Any]:
    """Return the document with one figure multiplied."""
    found = copy.deepcopy(dict(DOCUMENT))
    inner: Any = found
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] *= factor
    return found


def test_figures_are_counted_by_hand() -> None:
    assert DOCUMENT["all"]["network"]["mape"] == pytest.approx((0.1 + 0.2 + 0.5) / 3, abs=1e-4)
    assert DOCUMENT["all"]["network"]["coverage_90"] == pytest.approx(2 / 3, abs=1e-4)
    assert DOCUMENT["gpus"]["t4, measured kernels"]["cluster"]["mape"] == pytest.approx(0.15)
    assert DOCUMENT["kernels"]["specified"]["gpu"]["n"] == 1
    other = DOCUMENT["sources"]["other"]
    assert (other["rows"], other["predicted"], other["in_sample"], other["network"]["n"]) == (2, 2, 1, 1)
    assert DOCUMENT["sources"]["vtrain-multi"]["refused"] == 1
    target = DOCUMENT["targets"]["Pollux ResNet-50, as many GPUs on every node"]
    assert (target["n"], target["target"]) == (2, 0.15)
    assert target["mape"] == pytest.approx(0.15)
    assert DOCUMENT["ranking"]["pollux-t4"]["spearman"] == pytest.approx(1)
    assert [one["id"] for one in DOCUMENT["worst"]] == ["other-1", "pollux-resnet-50-2-b8"]
    assert [one["of_ten"] for one in DOCUMENT["worst"]] == [1, 2]
    (refused,) = DOCUMENT["refused"]
    assert (refused["rows"], refused["got"]) == (1, {"2": 1})


def test_intervals_are_told_apart_by_kind() -> None:
    """Of others: made-up rows of no kind, two of three inside 0.8 to 1.2 times."""
    others = DOCUMENT["intervals"]["others"]["network"]
    assert (others["n"], others["coverage_90"]) == (3, pytest.approx(2 / 3, abs=1e-4))
    assert others["times"] == pytest.approx((1.2 / 0.8) ** 0.5, abs=1e-3)
    one = with_one(row("s-1", 1.0, 1.5, low=0.5, high=2.0, kind="one_node_scaled_outside"), Facts("specified"))
    assert one["intervals"]["one_node, scaled"]["gpu"] == {"coverage_90": 1.0, "n": 1, "times": 2.0}
    assert "| one node, scaled | 1 | 100 % | 2.00 |" in page_of(one)


def test_rows_that_are_shown_alone_are_in_no_sum() -> None:
    apart = row("torchtitan-8b", 9.0, 1.0, source="torchtitan-fp8", gpu="h100", group="")
    document = with_one(apart, Facts("specified", APART))
    assert document["sources"]["torchtitan-fp8"]["network"]["mape"] == pytest.approx(8)
    for part in ("all", "parts", "gpus", "kernels", "memory", "targets", "worst"):
        assert document[part] == DOCUMENT[part]
    page = page_of(document)
    assert "Shown apart, in no sum" in page
    assert page.index("| torchtitan-fp8 |") > page.index("Shown apart, in no sum")


def test_rows_that_no_fit_learned_from_have_sums_of_their_own() -> None:
    document = with_one(row("lambda-1", 3.0, 2.0, source="lambda-v1", group=""), Facts("measured", NEW))
    for part in ("all", "gpus", "kernels", "memory", "targets", "worst"):
        assert document[part] == DOCUMENT[part]
    assert document["parts"]["new"]["gpu"]["mape"] == pytest.approx(0.5)
    assert document["parts"]["new"]["gpu"]["of_sources"] == {"sources": 0, "mape": None}


def test_locked_rows_are_sums_as_bundled_and_nowhere_else() -> None:
    locked = row("lambda-2", 3.0, 2.0, source="lambda-v2", gpu="b200", group="")
    document = with_one(locked, Facts("measured", LOCKED))
    assert document["parts"]["locked"].keys() == {BUNDLED}
    assert document["parts"]["locked"][BUNDLED]["mape"] == pytest.approx(0.5)
    assert [document["sources"]["lambda-v2"][view]["n"] for view in (BUNDLED, *AXES)] == [1] + [0] * len(AXES)
    assert "lambda-2" not in dump_json(document)
    assert not any(name.startswith("b200") for name in document["gpus"])


def test_headlines_are_means_over_sources_of_enough_rows() -> None:
    errors = {"a": (10, 0.1), "b": (500, 0.3), "few": (9, 0.9), "none": (20, None)}
    assert mean_of_sources(errors) == {"sources": 2, "mape": pytest.approx(0.2)}
    assert mean_of_sources({"few": (1, 0.1)}) == {"sources": 0, "mape": None}


def test_rules_of_one_line_stand_beside_the_ranking() -> None:
    """Two plans of one group, of 1 s on one node and 2 s on two: fewest nodes first is right."""
    found = DOCUMENT["ranking"]["pollux-t4"]
    by_rule = {name: (one["spearman"], one["regret_mean"]) for name, one in found["rules"].items()}
    assert by_rule == {"fewest nodes": (1.0, 0.0), "most nodes": (-1.0, 1.0), "random order": (0.0, 0.5)}
    assert "of_five" not in found


def test_larger_groups_hold_runs_on_unequal_nodes() -> None:
    plans = [(name, time, nodes) for name, time, nodes in (("a", 1.0, 1), ("b", 2.0, 2), ("c", 3.0, 3), ("d", 4.0, 4))]
    even = [(row(name, time, time), Facts("measured", nodes=nodes)) for name, time, nodes in plans]
    uneven = [(row("e", 2.5, 2.5), Facts("measured", NEW, UNEVEN, 2))]
    found = rankings(*zip(*[(Answer(one), fact) for one, fact in (*even, *uneven)], strict=True))["pollux-t4"]
    assert (found["groups"], found["of_five"]["this program"]["groups"]) == (1, 1)
    assert found["of_five"]["this program"]["spearman"] == pytest.approx(1)
    assert 0.8 < found["of_five"]["fewest nodes"]["spearman"] < 1


def test_every_file_is_read_and_sources_that_stand_alone_are_there() -> None:
    names = {path.stem for path in FOLDER.glob("*.csv")}
    assert {path.stem for path in files_of_runs()} == names
    assert locked_sources(FOLDER) == {"lambda-v2"}
    assert {*UNCOUNTED, *locked_sources(FOLDER)} <= unfitted_sources(FOLDER) <= names


def test_worse_by_six_percent_is_named_and_by_four_is_not() -> None:
    place = ("sources", "pollux-t4", "network", "mape")
    (sentence,) = compared(DOCUMENT, changed(1.06, *place)).worse
    assert sentence == "sources / pollux-t4 / network / mape: 15.0 % before, 15.9 % now"
    found = compared(DOCUMENT, changed(1.04, *place))
    assert (found.worse, found.better) == ((), ())


def test_better_is_said() -> None:
    found = compared(DOCUMENT, changed(0.9, "gpus", "k80, specified kernels", "gpu", "mape"))
    assert found.worse == ()
    assert found.better == ("gpus / k80, specified kernels / gpu / mape: 50.0 % before, 45.0 % now",)


def test_small_figures_do_not_flap() -> None:
    place = ("all", "network", "mape")
    small = changed(0.01 / DOCUMENT["all"]["network"]["mape"], *place)
    for error, is_worse in ((0.0119, False), (0.0121, True)):
        now = copy.deepcopy(small)
        now["all"]["network"]["mape"] = error
        assert bool(compared(small, now).worse) == is_worse


@pytest.mark.parametrize(
    ("place", "factor"),
    [
        (("all", "network", "coverage_90"), 0.9),
        (("ranking", "pollux-t4", "spearman"), 0.5),
        (("ranking", "pollux-t4", "top1"), 0.5),
        (("sources", "vtrain-multi", "refused"), 2),
    ],
)
def test_less_of_what_should_be_more_is_worse_and_the_other_way_round(place: tuple[str, ...], factor: float) -> None:
    now = changed(factor, *place)
    assert [sentence.partition(":")[0] for sentence in compared(DOCUMENT, now).worse] == [" / ".join(place)]
    found = compared(now, DOCUMENT)
    assert (found.worse, len(found.better)) == ((), 1)


def test_more_coverage_than_stated_is_not_better() -> None:
    low, high = copy.deepcopy(dict(DOCUMENT)), copy.deepcopy(dict(DOCUMENT))
    low["all"]["network"]["coverage_90"], high["all"]["network"]["coverage_90"] = 0.91, 0.99
    for found in (compared(low, high), compared(high, low)):
        assert (found.worse, found.better) == ((), ())


def test_a_figure_that_is_gone_is_worse_and_one_that_is_new_is_said() -> None:
    now = copy.deepcopy(dict(DOCUMENT))
    del now["sources"]["other"]
    now["sources"]["pollux-t4"]["network"]["p90_ape"] = None
    worse = compared(DOCUMENT, now).worse
    assert "sources / pollux-t4 / network / p90_ape: 19.0 % before, gone now" in worse
    assert "sources / other / network / mape: 50.0 % before, gone now" in worse
    found = compared(now, DOCUMENT)
    assert found.worse == ()
    assert "sources / other / network / mape: new, 50.0 %" in found.better


def test_page_shows_figures_reasons_and_what_is_not_predicted() -> None:
    page = page_of(DOCUMENT)
    assert "| TensorFlow 2017 on P100 | 0 | - | at most 15 % | no |" in page
    assert "| Pollux ResNet-50, as many GPUs on every node | 2 | 15.0 % | at most 15 % | yes |" in page
    assert "| k80 | specified | 1 | 50.0 % |" in page
    assert f"| vtrain-multi | this program | {NOT_PREDICTED} |" in page
    assert "| vtrain-multi | vTrain | 14.73 % | claimed by its authors |" in page
    (worst,) = [line for line in page.splitlines() if line.startswith("| `other-1`")]
    assert worst.endswith(f"| forward 70 %, all reduce 30 % | 1: 50.0 % | {NOT_EXPLAINED} |")
    assert "| 1 | tensor_parallel must be 1, the only value supported yet | 2 (1) | vtrain-multi (1) |" in page


def test_the_first_reason_that_fits_counts() -> None:
    reasons = [{"rows": "a-[12]-*", "because": "x", "evidence": "y"}, {"rows": "a-*", "because": "z", "evidence": "w"}]
    assert [reason_of(name, reasons) for name in ("a-1-b", "a-3", "b")] == ["x (y)", "z (w)", NOT_EXPLAINED]


def test_four_digits_are_kept() -> None:
    assert rounded({"a": [0.123456, 123456.0], "b": {"c": 7}, "d": None}) == {
        "a": [0.1235, 123500.0],
        "b": {"c": 7},
        "d": None,
    }


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(command, "answer_all", lambda say, **_: (say("working"), views())[1])
    return tmp_path


def test_the_command_writes_both_files_and_checks_them(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--docs", str(docs)]) == 0
    assert sorted(path.name for path in docs.iterdir()) == ["accuracy.json", "accuracy.md"]
    written = {path.name: path.read_text() for path in docs.iterdir()}
    assert json.loads(written["accuracy.json"]) == DOCUMENT
    assert command.main(["--docs", str(docs), "--check"]) == 0
    assert command.main(["--docs", str(docs), "--page"]) == 0
    assert {path.name: path.read_text() for path in docs.iterdir()} == written
    out, err = capsys.readouterr()
    assert (out, "working" in err) == ("", True)
    assert "no figure of accuracy.json worsened" in err


def test_the_check_fails_where_a_figure_worsened(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (docs / "accuracy.json").write_text(dump_json(changed(1 / 1.06, "all", "gpu", "mape")))
    assert command.main(["--docs", str(docs), "--check"]) == 1
    assert "worse: all / gpu / mape: 25.2 % before, 26.7 % now" in capsys.readouterr().err
    (docs / "accuracy.json").write_text(dump_json(changed(1.2, "all", "gpu", "mape")))
    assert command.main(["--docs", str(docs), "--check"]) == 0
    assert "`python -m validation` writes the new figures" in capsys.readouterr().err


def test_without_figures_nothing_is_checked(docs: Path) -> None:
    assert command.main(["--docs", str(docs), "--check"]) == 3


def test_an_interrupt_leaves_the_files_as_they_were(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(**_say: object) -> Views:
        raise KeyboardInterrupt

    (docs / "accuracy.md").write_text("before")
    monkeypatch.setattr(command, "answer_all", stop)
    assert command.main(["--docs", str(docs)]) == 130
    assert {path.name: path.read_text() for path in docs.iterdir()} == {"accuracy.md": "before"}


def ids() -> set[str]:
    return {run.id for path in FOLDER.glob("*.csv") for run in read_runs(path).rows}


def test_no_reason_is_dead_and_each_has_evidence() -> None:
    known = sorted(ids())
    first = {
        name: next((at for at, one in enumerate(table_named("reasons")) if fnmatchcase(name, one["rows"])), -1)
        for name in known
    }
    assert set(first.values()) >= set(range(len(table_named("reasons"))))
    assert all(set(one) == {"kind", "rows", "because", "evidence"} for one in table_named("reasons"))


def test_the_committed_page_is_that_of_the_committed_figures() -> None:
    """After a change of words: ``python -m validation --page``."""
    document = json.loads((DOCS / "accuracy.json").read_text())
    assert (DOCS / "accuracy.md").read_text() == page_of(document)
    assert set(document["sources"]) - {UNEVEN} <= set(tomllib.loads((FOLDER / "SOURCES.toml").read_text()))
    assert {one["id"] for one in document["worst"]} <= ids()


def test_what_is_left_of_a_name_is_counted_by_hand() -> None:
    """Each network once; rates are turned into times; fewer than three networks, or one's noise, are no effect."""
    times = [("a", 1.3), ("a", 1.3), ("b", 1.2), ("c", 1.25)]
    rows = [row(f"{at}", value, 1.0, network=network, gpu="slow") for at, (network, value) in enumerate(times)]
    rows += [row(f"r{name}", 1 / 1.3, 1.0, network=name, gpu="rates", metric="samples_per_s") for name in "abc"]
    noise = {"a": 0.8, "b": 1.2, "c": 2.0}
    rows += [row(f"n{name}", value, 1.0, network=name, gpu="noise") for name, value in noise.items()]
    rows += [row("one", 2.0, 1.0, network="a", gpu="alone"), row("seen", 2.0, 1.0, gpu="slow", in_sample=True)]
    of_gpu = {one["name"]: one for one in effects_of(rows, [Facts()] * len(rows)) if one["of"] == "gpu"}
    assert {name: one["is_missing"] for name, one in of_gpu.items()} == {"slow": True, "rates": True, "noise": False}
    assert of_gpu["slow"]["ratio"] == pytest.approx((1.3 * 1.2 * 1.25) ** (1 / 3))
    assert (of_gpu["slow"]["networks"], of_gpu["slow"]["rows"]) == (3, 4)
    assert of_gpu["rates"]["ratio"] == pytest.approx(1.3)


def test_an_effect_of_a_name_beyond_15_percent_is_a_missing_term_with_a_cause() -> None:
    effects = json.loads((DOCS / "accuracy.json").read_text())["effects"]
    missing = {(one["of"], one["name"]) for one in effects if one["is_missing"]}
    causes = {(one["of"], one["name"]): one["because"] for one in table_named("effects")}
    assert missing == set(causes)
    assert all(len(because) > 20 for because in causes.values())


def test_rivals_name_rows_of_a_source() -> None:
    sources = {run.source for path in FOLDER.glob("*.csv") for run in read_runs(path).rows}
    assert {one["rows"] for one in table_named("rivals") if "rows" in one} <= sources


def test_the_noise_of_node_orders_is_that_of_the_rows() -> None:
    times: dict[tuple[object, ...], list[float]] = {}
    for run in read_runs(FOLDER / "pollux-t4.csv").rows:
        if run.is_uneven and run.value is not None:
            key = (run.network, run.precision, run.sub_batch, run.accumulation_steps, tuple(sorted(run.placement)))
            times.setdefault(key, []).append(run.value)
    pairs = sorted(abs(a / b - 1) for some in times.values() for a, b in combinations(some, 2))
    (stated,) = [one["differs"] for one in table_named("noise") if one["what"].endswith("nodes in another order")]
    mean, ninth = sum(pairs) / len(pairs), pairs[int(0.9 * len(pairs))]
    assert stated.startswith(f"{100 * median(pairs):.1f} % in the median of {len(pairs):,} pairs, {100 * mean:.1f} %")
    assert f"{100 * ninth:.0f} % in one of ten" in stated
