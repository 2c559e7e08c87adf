from collections.abc import Callable, Iterable

from planner.domain.calibration import Gap
from planner.report.blocks import Block
from planner.report.show import MOST_GAPS, gaps_view

GAPS = (
    Gap("resnet50", "convolution", "backward_weight", "fp16", "outside", 0.25, 0.5, "flop up to 2e9, seen to 1e9"),
    Gap("gpt", "gemm", "", "bf16", "missing", 0.2, 0.4),
    Gap("gpt", "softmax", "forward", "fp32", "worst known", 0.1, 0.04),
)


def test_gaps_are_a_ranked_table_with_the_command(printed: Callable[[Iterable[Block]], str]) -> None:
    text = printed(gaps_view(GAPS, "planner calibrate --network gpt"))
    words = " ".join(text.split())
    assert "What to measure next" in words
    assert "convolution fp16 resnet50 25% 50% outside the fit, flop" in words
    assert "gemm bf16 gpt 20% 40% not measured" in words
    assert "softmax forward fp32 gpt 10% 4%" in words
    assert text.splitlines()[-1] == "  planner calibrate --network gpt"
    assert max(map(len, text.splitlines())) <= 80
    assert "not listed" not in text
    command = "planner calibrate" + " --network gpt" * 9
    assert printed(gaps_view(GAPS, command)).splitlines()[-1] == f"  {command}"


def test_a_long_list_is_cut_and_counted(printed: Callable[[Iterable[Block]], str]) -> None:
    text = printed(gaps_view(GAPS[2:] * (MOST_GAPS + 3), "command"))
    assert text.count("softmax") == MOST_GAPS
    assert "(3 more are not listed)" in " ".join(text.split())


def test_a_column_of_reasons_is_there_for_what_has_a_reason_alone(printed: Callable[[Iterable[Block]], str]) -> None:
    """Kernels of networks that were measured as they are: each is known, and one of them least."""
    assert "because" not in printed(gaps_view(GAPS[2:], "command"))
    assert "because" in printed(gaps_view(GAPS[1:], "command"))


def test_no_gaps_say_nothing() -> None:
    assert list(gaps_view((), "command")) == []
