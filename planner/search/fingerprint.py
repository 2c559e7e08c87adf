"""Fingerprints of inputs: equal where all values are equal, on any machine and in any process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from planner import __version__
from planner.domain.request import Problem, SpaceRequest

__all__ = ["fingerprints", "hashed"]

DIGITS = 12
"""Hexadecimal, of a fingerprint: enough to tell studies apart, few enough to read."""


def fingerprints(problem: Problem, request: SpaceRequest) -> dict[str, str]:
    """Return what prices and lawfulness of plans depend on: the version in words, fingerprints of all else.

    How many plans are reported, and which of the tied ones is taken, is no part of it.
    """
    plain = SpaceRequest(request.target_batch)
    settings = (problem.dataset, problem.settings, problem.scenario, problem.explicit_calibration)
    return {
        "planner": __version__,
        "network": hashed(problem.network),
        "cluster": hashed(problem.cluster),
        "calibrations": hashed(problem.calibrations),
        "settings": hashed(settings),
        "request": hashed(replace(request, top=plain.top, choose=plain.choose)),
    }


def hashed(value: object) -> str:
    """Return the fingerprint of a value: records, mappings, sequences, sets, arrays, numbers, text."""
    digest = hashlib.sha256()
    for piece in _pieces(value):
        digest.update(piece)
    return digest.hexdigest()[:DIGITS]


def _pieces(value: Any) -> Iterator[bytes]:
    """Yield what tells a value apart; every part ends in a byte that no part holds."""
    if is_dataclass(value) and not isinstance(value, type):
        yield f"{type(value).__name__}(".encode()
        for field in fields(value):
            yield f"{field.name}=".encode()
            yield from _pieces(getattr(value, field.name))
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype}{value.shape}".encode() + value.tobytes()
    elif isinstance(value, Mapping):
        yield b"{"
        for key in sorted(value, key=repr):
            yield from _pieces(key)
            yield from _pieces(value[key])
    elif isinstance(value, Set):
        yield b"<" + ",".join(sorted(map(hashed, value))).encode()
    elif isinstance(value, tuple | list):
        yield b"["
        for one in value:
            yield from _pieces(one)
    elif isinstance(value, Callable):  # type: ignore[arg-type]
        yield f"{value.__module__}.{value.__qualname__}".encode()
    else:
        yield repr(value).encode()
    yield b"\xff"
