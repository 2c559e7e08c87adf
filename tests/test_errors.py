from __future__ import annotations

import inspect

import pytest

from planner import errors
from planner.errors import InputFileError, ParameterError, PlannerError, UnknownNameError, nearest_name, nearest_names


def test_every_error_is_drawn_in_the_docstring_with_its_exit_code() -> None:
    documentation = errors.__doc__ or ""
    own = {name: thing for name, thing in vars(errors).items() if getattr(thing, "__module__", "") == errors.__name__}
    for name, thing in own.items():
        if inspect.isclass(thing) and not name.startswith("_") and thing is not errors.Refusal:
            assert issubclass(thing, PlannerError)
            assert name in documentation
            assert thing.exit_code in {1, 2, 3, 4, 5}


def test_parameter_error_says_what_rule_value_and_remedy() -> None:
    error = ParameterError("sub-batch", "at least 1", 0, "leave it out to search over it")
    assert str(error) == "sub-batch must be at least 1, got 0; leave it out to search over it"


@pytest.mark.parametrize(
    ("typed", "meant"), [("resnet5", "resnet50"), ("RESNET50", "resnet50"), ("vgg", "vgg16"), ("zzz", None)]
)
def test_nearest_name(typed: str, meant: str | None) -> None:
    assert nearest_name(typed, ["resnet50", "vgg16"]) == meant


def test_names_that_begin_with_what_was_typed_come_before_one_that_merely_looks_like_it() -> None:
    known = ["v100-sxm2-16gb-steps", "v100-sxm2-32gb", "v100-sxm3", "v100-sxm2-16gb", "v100-sxm2-32gb-steps"]
    assert nearest_names("v100-sxm2", known) == ("v100-sxm2-32gb", "v100-sxm2-16gb", "v100-sxm2-16gb-steps")
    assert nearest_names("sxm2-16gb", known) == ("v100-sxm2-16gb", "v100-sxm2-16gb-steps")
    assert nearest_names("time", ("time-to-accuracy", "epoch-time")) == ("epoch-time", "time-to-accuracy")
    assert nearest_names("v100-sxm4", known) == ("v100-sxm3",)
    text = str(UnknownNameError("calibration", "V100-sxm2", known[1:4]))
    assert "did you mean 'v100-sxm2-16gb' or 'v100-sxm2-32gb'? Known:" in text


def test_unknown_name_offers_the_nearest_and_lists_the_known() -> None:
    text = str(UnknownNameError("network", "vgg61", ["vgg16", "alexnet"]))
    assert text == "network must be a known name, got 'vgg61'; did you mean 'vgg16'? Known: alexnet, vgg16."


def test_unknown_name_without_a_near_one_is_a_sentence_too() -> None:
    text = str(UnknownNameError("network", "zzz", ["vgg16", "alexnet"]))
    assert text == "network must be a known name, got 'zzz'. Known: alexnet, vgg16."
    assert str(UnknownNameError("option", "zzz", ["a"], "See x.")) == "option must be a known name, got 'zzz'. See x."


@pytest.mark.parametrize(
    ("value", "words"),
    [(True, "true"), ([1, False, None], "[1, false, null]"), ({"a": "b\x1b\n"}, '{"a": "b\\u001b\\n"}'), ("a", "'a'")],
)
def test_values_are_shown_as_they_stand_in_a_file(value: object, words: str) -> None:
    assert errors.shown(value) == words


def test_file_error_says_where() -> None:
    assert str(InputFileError("c.toml", "x must be given, got nothing", "links")) == (
        "c.toml: links: x must be given, got nothing"
    )
