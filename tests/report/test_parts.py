from collections.abc import Callable, Iterable

from planner.domain.prediction import Term
from planner.report.blocks import Block
from planner.report.parts import sources_once, terms


def test_a_source_is_named_once() -> None:
    assert sources_once("one, 2019; two; one, 2019; two") == "one, 2019; two"
    assert sources_once("") == ""


def test_several_origins_break_between_words(printed: Callable[[Iterable[Block]], str]) -> None:
    shown = [
        Term(name, "step", 0.1234, 0.1234, 0.5, "published+specified", "v100-sxm2-16gb, any-steps", extrapolated=True)
        for name in ("host to device", "all reduce")
    ]
    words = set(printed([terms(shown, "all reduce")]).split())
    assert {"published", "+", "specified,", "extrapolated"} <= words
    assert {"v100-sxm2-16gb,", "any-steps"} <= words
