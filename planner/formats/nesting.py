"""How deep tables and lists are nested: of TOML told from the text, before its parser meets it.

That descends once a bracket, and reads a path of n dotted parts in n squared steps; the parser of JSON stops by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from planner.errors import InputFileError

__all__ = ["DEEPEST_LEVELS", "check_depth", "check_nesting"]

DEEPEST_LEVELS = {"toml": 5, "json": 32}
"""Levels of lists and tables in a document, and parts of a dotted key; present kinds need 3 in TOML and 8 in JSON."""
_SKIPPED_TEXT = re.compile(
    # What is no bracket and no dot of a key. A string that never closes ends where the parser gives up; one of several
    # lines may end in up to two quotes of its own.
    r'"""(?:[^"\\]++|\\.?|"(?!""))*+(?:"{3,5}|\Z)'
    r"|'''(?:[^']++|'(?!''))*+(?:'{3,5}|\Z)"
    r'|"(?:[^"\\\n]++|\\.?)*+(?:"|$|\Z)'
    r"|'[^'\n]*+(?:'|$)"
    r"|\#[^\n]*+",
    re.DOTALL | re.MULTILINE,
)
_OTHER_SIGNS = re.compile(r"[^\[\]{}.,=\n]+")
_DEEP_PATH = re.compile(rf"\.{{{DEEPEST_LEVELS['toml']}}}")


def check_depth(document: Mapping[str, Any], path: str) -> None:
    """Raise InputFileError where a document nests more than the DEEPEST_LEVELS levels of JSON."""
    level: list[Any] = [document]
    depth = 0
    while level:
        if depth == DEEPEST_LEVELS["json"]:
            raise _error(path, depth)
        inside = chain.from_iterable(one.values() if isinstance(one, dict) else one for one in level)
        level, depth = [one for one in inside if type(one) in (dict, list)], depth + 1


def check_nesting(text: str, path: str) -> None:
    """Raise InputFileError where a TOML text nests more than DEEPEST_LEVELS levels."""
    most = DEEPEST_LEVELS["toml"]
    if text.count("[") + text.count("{") + text.count(".") < most:
        return
    signs = _OTHER_SIGNS.sub("", _SKIPPED_TEXT.sub("", text))
    codes = np.frombuffer(signs.encode(), np.uint8)
    steps = np.zeros(codes.size, np.int8)
    steps[(codes == ord("[")) | (codes == ord("{"))] = 1
    steps[(codes == ord("]")) | (codes == ord("}"))] = -1
    if np.cumsum(steps, dtype=np.int32).max(initial=0) > most or _DEEP_PATH.search(signs):
        raise _error(path, most)


def _error(path: str, most: int) -> InputFileError:
    return InputFileError(path, f"tables must be nested less deeply, at most {most} levels, got more")
