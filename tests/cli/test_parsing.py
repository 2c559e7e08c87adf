import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cli import parsing
from planner.cli.parsing import Parser
from planner.errors import ParameterError


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("8", (8,)),
        ("1,2,4", (1, 2, 4)),
        ("4,2,4", (4, 2)),
        ("1:4", (1, 2, 3, 4)),
        ("8:64:8", (8, 16, 24, 32, 40, 48, 56, 64)),
        ("1:8:3", (1, 4, 7)),
        ("3:3", (3,)),
        ("1,4:6", (1, 4, 5, 6)),
        (" 1, 2 ", (1, 2)),
    ],
)
def test_counts_are_lists_and_inclusive_ranges(text: str, values: tuple[int, ...]) -> None:
    assert parsing.counts("--nodes", text) == values


@given(st.integers(1, 1000), st.integers(0, 1000), st.integers(1, 50))
def test_a_range_holds_every_step_up_to_its_end(low: int, length: int, step: int) -> None:
    high = low + length
    assert parsing.counts("--nodes", f"{low}:{high}:{step}") == tuple(
        n for n in range(low, high + 1) if (n - low) % step == 0
    )


@pytest.mark.parametrize(
    "text",
    ["", ",", "1,", ":", "1:", ":4", "8:1", "0", "0:4", "1:4:0", "-1", "-1:4", "1.5", "1e3", "nan", "inf", "x",
     "1:2:3:4", "1_000", "٣", "99999999999", "1:1000000000", "1:1000000000:1", "9" * 400],
)  # fmt: skip
def test_counts_refuse_what_is_empty_reversed_negative_zero_or_absurd(text: str) -> None:
    with pytest.raises(ParameterError, match=r"^--nodes must be .*, got "):
        parsing.counts("--nodes", text)


def test_a_reversed_range_is_answered_with_the_right_one() -> None:
    with pytest.raises(ParameterError, match=r"write 1:8$"):
        parsing.counts("--nodes", "8:1")


@pytest.mark.parametrize(
    ("text", "value"), [("25%", 0.25), ("0.25", 0.25), ("0", 0.0), ("0%", 0.0), ("1", 1.0), ("300%", 3.0)]
)
def test_fraction(text: str, value: float) -> None:
    assert parsing.fraction("--tolerance", text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["25", "-5%", "nan", "inf", "", "%", "a", "1.01"])
def test_fraction_refuses_a_forgotten_per_cent_sign_and_what_is_no_fraction(text: str) -> None:
    with pytest.raises(ParameterError, match=r"^--tolerance must be a fraction such as 25% or 0.25"):
        parsing.fraction("--tolerance", text)


@pytest.mark.parametrize("text", ["60", "60 m", "60GB", "-1s", "0s", "nan s", "s", ""])
def test_a_budget_needs_a_unit_of_time(text: str) -> None:
    with pytest.raises(
        ParameterError, match=r"^--budget must be a positive time with a unit \(.*\), got .*; write it like 60s$"
    ):
        parsing.budget("--budget", text)


@pytest.mark.parametrize(("text", "seconds"), [("30d", 30 * 86_400), ("500h", 500 * 3600), ("90min", 5400)])
def test_a_time_limit_is_read_in_the_units_that_answers_print(text: str, seconds: float) -> None:
    assert parsing.time_limit("--deadline", text) == seconds


def test_a_choice_offers_the_nearest() -> None:
    with pytest.raises(
        ParameterError, match=r"^--mode must be one of sync, async, got 'asnc'; did you mean 'async'\?$"
    ):
        parsing.choice("sync", "async")("--mode", "asnc")


def test_choices_keep_order_and_drop_repeats() -> None:
    assert parsing.choices("fp32", "fp16")("--precision", "fp16,fp32,fp16") == ("fp16", "fp32")


@pytest.mark.parametrize("parse", [parsing.count, parsing.whole(0, 3), parsing.only(parsing.count, 1)])
def test_whole_numbers_refuse_everything_else(parse: Parser) -> None:
    for text in ("-1", "1.0", "one", "", "9" * 30):
        with pytest.raises(ParameterError, match=r"^--sharding must be a whole number from"):
            parse("--sharding", text)


def test_only_refuses_lawful_values_that_do_nothing_yet() -> None:
    assert parsing.only(parsing.count, 1)("--tensor", "1") == 1
    with pytest.raises(ParameterError, match=r"^--tensor must be 1, the only value supported yet, got '2'$"):
        parsing.only(parsing.count, 1)("--tensor", "2")


@pytest.mark.parametrize("text", ["", "@1", "pytorch@", "py torch", "a@b@c"])
def test_framework_is_a_name_with_a_version_at_most(text: str) -> None:
    with pytest.raises(ParameterError, match=r"^--framework must be NAME, NAME@version, NAME:switch\+switch or"):
        parsing.framework("--framework", text)


def test_a_budget_is_believable() -> None:
    assert parsing.budget("--budget", "2min") == 120
    for text, remedy in (("10ms", "60s"), ("25h", "24h")):
        said = f"^--budget must be a time from 1s to 24h, got '{text}'; write {remedy}$"
        with pytest.raises(ParameterError, match=said):
            parsing.budget("--budget", text)


def test_devices() -> None:
    assert [parsing.device("--device", text) for text in ("cpu", "cuda", "cuda:7")] == ["cpu", "cuda", "cuda:7"]
    for text in ("", "gpu", "cuda:", "cuda:-1", "cpu:0"):
        with pytest.raises(ParameterError, match=r"^--device must be cpu, cuda or cuda:INDEX, got "):
            parsing.device("--device", text)
