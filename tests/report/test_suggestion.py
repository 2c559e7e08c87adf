from collections.abc import Callable, Iterable
from dataclasses import replace

from planner.domain.prediction import Citation
from planner.domain.request import Subject
from planner.domain.suggestion import Suggestion
from planner.report.answer import part_of_suggestion, suggestion_rest, suggestions_views
from planner.report.blocks import Block, Line

Printed = Callable[[Iterable[Block]], str]


def test_one_answer_is_short_and_several_are_a_table(
    suggestion: Suggestion, subject: Subject, printed: Printed
) -> None:
    (one,) = suggestions_views([(subject, suggestion)])
    assert "take plan 2" in printed(one)
    (several,) = suggestions_views([(subject, suggestion), (replace(subject, scenario="edr"), suggestion)])
    assert "the plans to take" in printed(several)


def test_in_full_the_rest_follows_the_short_answer_without_its_notices(
    suggestion: Suggestion, subject: Subject, printed: Printed
) -> None:
    views = list(suggestions_views([(subject, suggestion), (subject, suggestion)], in_full=True))
    assert len(views) == 2
    text = printed(views[0])
    assert "warning: " not in text
    assert text.count("in_sample (tsubame-kfc): made from the figures that it is compared with") == 1
    assert text.index("Warnings") < text.index("take plan 2") < text.index("Plan 2: ") < text.index("Request")


def test_the_chosen_plan_stands_in_full_with_the_request_and_the_search(
    suggestion: Suggestion, subject: Subject, printed: Printed
) -> None:
    cited = replace(suggestion, citations=(Citation("tsubame-kfc", "reconstructed", "Oyama et al. 2016", ""),))
    text = printed(suggestion_rest(cited, subject))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[1:3] == ["Plan 2: 8 nodes x 8 GPUs, sub-batch 8, fp32, asynchronous", "3 % slower"]
    assert "Terms" in lines
    assert "tsubame-kfc reconstructed, Oyama et al. 2016" in lines
    assert "target-batch 138 option" in lines
    at = lines.index("Search")
    assert lines[at + 1 :] == [
        "method exhaustive: no plan of the space has a better prediction",
        "plans 462 candidates: 440 ranked, 22 refused",
        "refused because",
        "22 out of memory",
    ]
    assert max(map(len, text.splitlines())) <= 80


def test_a_warning_of_some_plans_names_them(suggestion: Suggestion) -> None:
    first, second = suggestion.plans
    silent = replace(first, prediction=replace(first.prediction, warnings=()))
    heading, one = part_of_suggestion(replace(suggestion, plans=(silent, second)), "warnings")
    assert isinstance(heading, Line)
    assert isinstance(one, Line)
    assert heading.text.strip() == "Warnings"
    assert one.label == "in_sample (tsubame-kfc), #2: "


def test_where_nothing_fits_the_rest_is_request_and_search(
    nothing_fits: Suggestion, subject: Subject, printed: Printed
) -> None:
    text = printed(suggestion_rest(nothing_fits, subject))
    assert "Terms" not in text
    assert "Request" in text
    assert "22 refused" in text
