from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from planner.domain.configuration import Configuration
from planner.domain.prediction import MiniBatch, Prediction, Quantity, Staleness
from planner.domain.request import Subject
from planner.report.blocks import Block
from planner.report.prediction import Entry, plan_table

Printed = Callable[[Iterable[Block]], str]
SUBJECT = Subject("sprint-15", "tsubame-kfc")


def rows_of(shown: list[Prediction], subject: Subject) -> list[Entry]:
    return [Entry(at, one, subject) for at, one in enumerate(shown, 1)]


def header(text: str) -> str:
    """Return the words of both lines of a header, column by column as far as hyphens tell."""
    return " ".join(" ".join(text.splitlines()[:2]).split())


def known(prediction: Prediction) -> Prediction:
    return replace(prediction, terms=tuple(replace(term, extrapolated=False) for term in prediction.terms))


def synchronous(prediction: Prediction, **configuration: object) -> Prediction:
    return replace(
        known(prediction),
        configuration=Configuration(1, 8, 8, **configuration),  # type: ignore[arg-type]  # of several types
        mini_batch=MiniBatch(64, 0, 64, 64),
        staleness=Staleness(0, 0, {0: 1.0}),
    )


def test_a_row_says_what_a_plan_is_and_how_good(prediction: Prediction, subject: Subject, printed: Printed) -> None:
    # 64 GPUs: 720.1 / 64 samples/s each, 1779.2 s x 64 / 3600 GPU-hours; 0.7934 / 0.7352 = 1.08
    row = Entry(3, prediction, subject, ("bf16", "fp16"), 0.666, 0.954)
    words = " ".join(printed(plan_table([row])).splitlines()[2].split())
    assert words == "3 8 x 8 8 bf16 / fp16 165 ± 12 1.3 29.7 min 11.3 31.6 1.12 *"
    words = " ".join(printed(plan_table([replace(row, precisions=())])).splitlines()[2].split())
    assert words == "3 8 x 8 8 fp32 165 ± 12 1.3 29.7 min 67% 11.3 31.6 1.12 *"


def test_columns_that_tell_nothing_are_left_out(prediction: Prediction, subject: Subject, printed: Printed) -> None:
    one, twice = synchronous(prediction), synchronous(prediction, accumulation_steps=2)
    alike = header(printed(plan_table(rows_of([one, one], subject))))
    for word in ("mulate", "mode", "mini-", "ness", "better", "ciency", "USD", "network", "scenario"):
        assert word not in alike
    assert "mulate" in header(printed(plan_table(rows_of([one, twice], subject))))
    both = header(printed(plan_table(rows_of([one, prediction], subject))))
    assert "mode" in both
    assert "ness" in both


def test_the_mini_batch_stands_where_it_differs(prediction: Prediction, subject: Subject, printed: Printed) -> None:
    one = synchronous(prediction)
    large = replace(one, mini_batch=MiniBatch(4096, 0, 4096, 4096))
    lines = printed(plan_table(rows_of([one, large], subject))).splitlines()
    assert "4096" in lines[3].split()


def test_networks_and_scenarios_have_columns_where_they_differ(
    prediction: Prediction, subject: Subject, printed: Printed
) -> None:
    rows = [Entry(1, prediction, subject), Entry(2, prediction, replace(subject, scenario="edr"))]
    lines = [line.split() for line in printed(plan_table(rows)).splitlines()]
    assert lines[1][:2] == ["#", "scenario"]
    assert [line[1] for line in lines[2:4]] == ["none", "edr"]
    rows[1] = Entry(2, prediction, replace(subject, network="vgg16"))
    lines = [line.split() for line in printed(plan_table(rows)).splitlines()]
    assert [line[1] for line in lines[1:4]] == ["network", "sprint-15", "vgg16"]


@pytest.mark.parametrize(
    ("reach", "epoch", "factor"), [(1.005, "29.65", "1.0"), (1.05, "29.7", "1.1"), (1.9, "30", "1.9")]
)
def test_digits_follow_the_interval(
    reach: float, epoch: str, factor: str, prediction: Prediction, printed: Printed
) -> None:
    seconds = Quantity(1779.2, 1779.2 / reach, 1779.2 * reach, "covariance")
    one = replace(prediction, epoch_s=seconds, iteration_s=replace(seconds, value=1779.2))
    cells = printed(plan_table(rows_of([synchronous(one)], SUBJECT))).splitlines()[2].split()
    assert (cells[6], cells[8]) == (epoch, factor)


def test_samples_per_second_stand_for_an_epoch_where_one_has_no_data_set(
    prediction: Prediction, without_dataset: Prediction, subject: Subject, printed: Printed
) -> None:
    text = printed(plan_table(rows_of([prediction, without_dataset], subject)))
    assert "samples/s" in header(text)
    assert "epoch" not in text
    assert "720" in text.splitlines()[2].split()


def test_rows_that_extrapolate_or_exceed_the_memory_are_marked(
    prediction: Prediction, subject: Subject, printed: Printed
) -> None:
    large = {"total": 13 * 2.0**30, "capacity": 12 * 2.0**30}
    inside = known(prediction)
    shown = [inside, prediction, replace(inside, memory_bytes=large), replace(prediction, memory_bytes=large)]
    lines = printed(plan_table(rows_of(shown, subject))).splitlines()
    marks = [line.split()[-1] for line in lines[2:6]]
    assert marks[1:] == ["*", "!", "*!"]
    assert "*" not in marks[0]
    assert lines[6:] == ["* outside what was measured; ! more memory than one GPU has"]
    assert len(printed(plan_table(rows_of([inside, inside], subject))).splitlines()) == 4


def test_a_price_adds_what_an_epoch_costs(prediction: Prediction, subject: Subject, printed: Printed) -> None:
    # 64 GPUs for 1779.2 s at 1.5 USD an hour
    priced = replace(subject, usd_per_gpu_hour=1.5)
    assert "47.4" in printed(plan_table(rows_of([prediction], priced))).splitlines()[2].split()
    assert "USD" not in printed(plan_table(rows_of([prediction], subject)))


def test_what_computes_is_named_by_its_kind(prediction: Prediction, subject: Subject, printed: Printed) -> None:
    on_cpu = replace(subject, device="CPU")
    large = replace(prediction, memory_bytes={"total": 13 * 2.0**30, "capacity": 12 * 2.0**30})
    text = printed(plan_table(rows_of([large], on_cpu)))
    assert "x CPUs" in text
    assert "/s/CPU" in text
    assert "more memory than one CPU has" in text
    assert "GPU" not in text


@pytest.mark.parametrize(("chance", "words"), [(0.9999, ">99%"), (0.004, "<1%"), (0.5, "50%")])
def test_no_probability_is_certain(
    chance: float, words: str, prediction: Prediction, subject: Subject, printed: Printed
) -> None:
    row = Entry(2, synchronous(prediction), subject, first_is_better=chance)
    assert words in printed(plan_table([row])).splitlines()[2].split()


@pytest.mark.parametrize(("columns", "gone"), [(80, ["(90"]), (65, ["(90", "GiB", "better"]), (56, ["(90", "ciency"])])
def test_what_a_line_does_not_hold_goes_the_least_important_first(
    columns: int, gone: list[str], prediction: Prediction, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    wide = synchronous(prediction, accumulation_steps=16)
    priced = replace(SUBJECT, usd_per_gpu_hour=2.5, network="a-network")
    rows = [Entry(1, wide, priced, first_is_better=0.5, efficiency=0.5), Entry(2, prediction, SUBJECT)]
    text = printed(plan_table(rows))
    assert max(map(len, text.splitlines())) <= columns
    assert not [name for name in gone if name in text]
    monkeypatch.setenv("COLUMNS", "200")
    everything = header(printed(plan_table(rows)))
    for word in ("(90", "GiB", "better", "ciency", "/s/GPU", "ness", "hours", "USD", "mulate", "mode"):
        assert word in everything
