"""``planner batch``: requests as JSON lines in, answers as JSON lines out; and a request as a mapping, answered.

A request has the options of a command as keys, and is answered by that command as with ``--json``. What an answer reads
stays in memory for the next one.
"""

from __future__ import annotations

import copy
import io
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from math import inf
from typing import Any, TypeVar

from planner.cli.options import COMMANDS, OPTIONS
from planner.cli.request import as_text
from planner.cli.streams import kept_documents, note, write_text
from planner.errors import InputFileError, NothingFitsError, ParameterError, PlannerError, UnknownNameError
from planner.formats.documents import STANDARD_INPUT, json_line, opened, parse_text, place_of
from planner.formats.summaries import error_document
from planner.formats.tables import line_problem, lines_of
from planner.search.searchable import KEPT

__all__ = ["answered", "run"]

ANSWERING = ("suggest", "predict")
"""Commands that a request may be for, the first where it says none."""
NOT_KEYS = ("json", "verbose", "study")
"""Options that a request does not have: how to print, and where to write."""
MOST_BYTES = 2**50
"""Of requests, which are read line by line."""
BLANK = "\ufeff \t\r\n"
"""Around a request; a line of nothing else is none."""
E = TypeVar("E", bound=PlannerError)


def run(arguments: Mapping[str, Any]) -> None:
    """Answer every line, in order, as it comes; then raise the error of the first that has none."""
    path = arguments.get("requests", STANDARD_INPUT)
    noted: set[str] = set()
    failed: list[tuple[int, PlannerError]] = []
    count = 0
    token = KEPT.set({})  # for these requests alone
    try:
        with opened(path, MOST_BYTES) as file, io.TextIOWrapper(file, "utf-8", "surrogateescape") as text:
            for number, line in lines_of(text):
                if line.strip(BLANK):
                    count += 1
                    document, error = _answer(line, place_of(path), number, noted)
                    failed += [(number, error)] if error else []
                    write_text(json_line(document))
                    sys.stdout.flush()
    finally:
        KEPT.reset(token)
    if failed:
        note(f"{len(failed)} of {count} requests failed, the first on line {failed[0][0]}:")
        raise failed[0][1]


def _answer(line: str, path: str, number: int, noted: set[str]) -> tuple[Mapping[str, Any], PlannerError | None]:
    """Return the document of a line, and why it is no answer."""
    try:
        if why := line_problem(line):
            raise InputFileError(path, why, f"line {number}")
        try:
            request = parse_text(line.strip(BLANK), path, "json")
        except InputFileError as wrong:
            raise InputFileError(path, wrong.problem, f"line {number}") from None
        command = request.pop("command", ANSWERING[0])
        if command not in ANSWERING:
            raise ParameterError("command", f"one of {', '.join(ANSWERING)}", command)
        document, nothing = answered(command, request, noted)
    except PlannerError as error:
        return error_document(error, number), error
    return error_document(nothing, number, document) if nothing else document, nothing


def answered(
    command: str, request: Mapping[str, Any], noted: set[str]
) -> tuple[Mapping[str, Any], NothingFitsError | None]:
    """Return the document that a command answers a request with, and the error where nothing fits.

    Other errors are raised, in the words of a request: keys in place of flags. Notes in ``noted`` are not said again.
    """
    with kept_documents(noted) as documents:
        try:
            import_module(f"planner.cli.{command}").run({**_arguments(command, request), "json": True})
        except NothingFitsError as error:
            return documents[0], _reworded(error)
        except PlannerError as error:
            raise _reworded(error) from error
        return documents[0], None


def _arguments(command: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a request as they are typed for the options of a command; null is not given."""
    known = next(one.options for one in COMMANDS if one.name == command)
    arguments = {}
    for key, value in request.items():
        if key not in known or key in NOT_KEYS:
            raise UnknownNameError("key of a request", key, set(known) - set(NOT_KEYS))
        if value is None or value is False:
            continue
        option = OPTIONS[key]
        items = value if isinstance(value, list) else [value]
        is_plain = bool(items) and all(isinstance(one, str | int | float) for one in items)
        is_odd = any(one != one or one in (inf, -inf) or (items is value and one is True) for one in items)  # noqa: PLR0124 - NaN
        if not is_plain or is_odd or option.switch != (value is True):
            raise ParameterError(key, "true or false" if option.switch else "text, a number or a list of them", value)
        if STANDARD_INPUT in items:
            raise ParameterError(key, "a name or a file", STANDARD_INPUT, "standard input may hold the requests")
        arguments[key] = as_text(option, list(items) if items is not value else value)
    return arguments


def _reworded(error: E) -> E:
    """Return the error with keys of the request in place of flags."""

    def key(flag: re.Match[str]) -> str:
        name = flag[1].replace("-", "_")
        return name if name in OPTIONS else flag[0]

    named, why = copy.copy(error), error.refusal
    named.refusal = replace(why, **{name: _FLAG.sub(key, getattr(why, name)) for name in ("rule", "subject", "rest")})
    named.args = (str(named.refusal),)
    return named


_FLAG = re.compile(r"--([a-z][a-z-]*)")
