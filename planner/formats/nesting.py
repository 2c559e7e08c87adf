"""How deep a text nests its tables and lists, told in linear time before a parser meets it.

A parser descends once a bracket, and that of TOML reads a path of n dotted parts in n squared steps.
"""

from __future__ import annotations

import re

import numpy as np

from planner.errors import InputFileError

__all__ = ["DEEPEST", "check_nesting"]

DEEPEST = {"toml": 5, "json": 32}
"""Levels of lists and tables in a document, and parts of a dotted key; present kinds need 3 in TOML and 8 in JSON."""
_STRING = r'"(?:[^"\\]++|\\.?)*+(?:"|\Z)'
_SKIPPED = {
    # What is no bracket and no dot of a key. A string that never closes ends where its parser gives up; one of
    # several lines may end in up to two quotes of its own.
    "json": re.compile(_STRING, re.DOTALL),
    "toml": re.compile(
        r'"""(?:[^"\\]++|\\.?|"(?!""))*+(?:"{3,5}|\Z)'
        r"|'''(?:[^']++|'(?!''))*+(?:'{3,5}|\Z)"
        r'|"(?:[^"\\\n]++|\\.?)*+(?:"|$|\Z)'
        r"|'[^'\n]*+(?:'|$)"
        r"|\#[^\n]*+",
        re.DOTALL | re.MULTILINE,
    ),
}
_BESIDE = {"json": re.compile(r"[^\[\]{}]+"), "toml": re.compile(r"[^\[\]{}.,=\n]+")}
_PATH = re.compile(rf"\.{{{DEEPEST['toml']}}}")


def check_nesting(text: str, path: str, syntax: str) -> None:
    """Raise InputFileError where a TOML or JSON text nests more than DEEPEST levels."""
    most = DEEPEST[syntax]
    if text.count("[") + text.count("{") + text.count(".") < most:
        return
    if syntax == "json" and "\\" not in text:  # then every second part between quotes is a string
        codes = np.frombuffer("".join(text.split('"')[::2]).encode("ascii", "replace"), np.uint8)
    else:
        signs = _BESIDE[syntax].sub("", _SKIPPED[syntax].sub("", text))
        codes = np.frombuffer(signs.encode(), np.uint8)
    steps = np.zeros(codes.size, np.int8)
    steps[(codes == ord("[")) | (codes == ord("{"))] = 1
    steps[(codes == ord("]")) | (codes == ord("}"))] = -1
    if np.cumsum(steps, dtype=np.int32).max(initial=0) > most or (syntax == "toml" and _PATH.search(signs)):
        raise InputFileError(path, f"tables must be nested less deeply, at most {most} levels, got more")
