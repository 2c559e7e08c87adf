"""The values of options, and where they come from: the command line, ``planner.toml``, the default request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.cli.options import COMMANDS, OPTIONS, Option
from planner.cli.parsing import EVERY
from planner.domain.axes import AXES
from planner.domain.request import Sourced
from planner.errors import CoverageError, InputFileError, ParameterError, Refusal, UsageError
from planner.sessions.inputs import OPTION, SETTINGS_FILE, Values, merge
from planner.sources.refusals import KERNEL_MISSING

__all__ = ["from_options", "from_settings", "in_full", "options_named", "settings_named"]


def from_options(arguments: Mapping[str, Any]) -> Values:
    """Return what the command line gives, parsed."""
    return {
        name: Sourced(_parsed(OPTIONS[name], OPTIONS[name].flag, value), OPTION) for name, value in arguments.items()
    }


def from_settings(settings: Mapping[str, Any], source: str, command: str) -> Values:
    """Return the values of a settings table that ``command`` has, parsed with the rules of the options.

    ``settings`` maps option names to text, numbers or lists; a value against its rule is InputFileError naming
    ``source``.
    """
    names = next(declared.options for declared in COMMANDS if declared.name == command)
    try:
        return {
            key: Sourced(_parsed(OPTIONS[key], key, _texts(OPTIONS[key], value)), source)
            for key, value in settings.items()
            if key in names
        }
    except ParameterError as error:
        raise InputFileError(source, str(error)) from error


def in_full(values: Values) -> Values:
    """Return the values with what ``recompute every:K`` stands for: full recompute of each K-th layer.

    ``recompute_every`` beside it replaces K where it comes from a stronger source.
    """
    given, own = values.get("recompute"), values.get("recompute_every")
    if given is None or not given.value[0].startswith(EVERY):
        return values
    if own is not None and own.source == given.source:
        flag, beside = OPTIONS["recompute_every"].flag, f"{OPTIONS['recompute'].flag} {','.join(given.value)}"
        raise ParameterError(flag, f"left out beside {beside}", ",".join(map(str, own.value)))
    meant: Values = {
        "recompute": replace(given, value=("full",)),
        "recompute_every": replace(given, value=tuple(int(one.removeprefix(EVERY)) for one in given.value)),
    }
    stronger: Values = {"recompute_every": own} if own is not None and own.source == OPTION else {}
    return merge(stronger, meant, values)


@contextmanager
def settings_named(values: Values) -> Iterator[None]:
    """Let an error about a value of ``planner.toml`` name that file and the key, not a flag that nobody typed.

    InputFileError: instead of UsageError: the file is what is wrong.
    CoverageError: with the same exit code as without the file.
    """
    try:
        yield
    except (UsageError, CoverageError) as error:
        names = (name for name, value in values.items() if value.source == SETTINGS_FILE)
        key = next((name for name in names if _is_about(error.refusal, name)), None)
        if key is None:
            raise
        sentence = str(error).replace(OPTIONS[key].flag, key)
        if isinstance(error, CoverageError):
            why = Refusal(error.refusal.code, f"{SETTINGS_FILE}: {key}: {sentence}", key)
            raise CoverageError(why) from error
        raise InputFileError(SETTINGS_FILE, sentence, key) from error


@contextmanager
def options_named() -> Iterator[None]:
    """Let an error about how a plan is split name the option that says it, as it is typed."""
    try:
        yield
    except ParameterError as error:
        what = " x ".join(_FLAGS.get(name, name) for name in error.what.split(" x "))
        if what == error.what:
            raise
        raise ParameterError(what, error.rule, error.value, error.remedy) from error


_FLAGS = {axis.name: OPTIONS[axis.option].flag for axis in AXES if axis.only_sync}


def _is_about(refusal: Refusal, key: str) -> bool:
    """Return whether what is refused is the value of an option, or a part of it: a kernel is one of a precision."""
    if key == "precision" and refusal.code == KERNEL_MISSING:
        return True
    word = "data set" if key == "dataset" else key
    return re.match(rf"(\S+ of )?({OPTIONS[key].flag}|{word})(?![\w-])", refusal.subject) is not None


def _parsed(option: Option, what: str, value: Any) -> Any:
    if option.switch:
        return value
    if option.repeatable:
        each = [option.parse(what, _single(what, one)) for one in value]
        return tuple(each if option.is_distinct else dict.fromkeys(each))
    return option.parse(what, value)


def _single(what: str, text: str) -> str:
    """Return a value of an option that is given once for each, or refuse a list of names in one."""
    several = [one.strip() for one in text.partition(":")[0].split(",") if one.strip()]  # arguments may have commas
    is_file = False
    with suppress(OSError):  # of a name that no file can have
        is_file = Path(text).exists()
    if len(several) < 2 or is_file:
        return text
    again = " ".join(f"{what} {one}" for one in several) if what.startswith("-") else f"{what} = {several}"
    raise ParameterError(what, "one name or file", text, f"for several write {again}")


def _texts(option: Option, value: Any) -> Any:
    if option.switch:
        return value
    items = value if isinstance(value, list) else [value]
    return [str(item) for item in items] if option.repeatable else ",".join(str(item) for item in items)
