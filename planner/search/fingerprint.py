"""Fingerprints of inputs: equal where all values are equal, on any machine and in any process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
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
        "request": hashed(replace(request, top=plain.top, choose=plain.choose, sensitivity=plain.sensitivity)),
    }


def hashed(value: object) -> str:
    """Return the fingerprint of a value: records, mappings, sequences, sets, arrays, numbers, text."""
    digest = hashlib.sha256()
    for piece in _pieces(value):
        digest.update(piece)
    return digest.hexdigest()[:DIGITS]


def _pieces(value: Any) -> Iterator[bytes]:
    """Yield what tells a value apart; every part ends in a byte that no text holds."""
    if is_dataclass(value) and not isinstance(value, type):
        yield f"{type(value).__name__}(".encode()
        for field in fields(value):
            yield from _pieces((field.name, getattr(value, field.name)))
    elif isinstance(value, Mapping):
        yield b"{"
        for key in sorted(value, key=repr):
            yield from _pieces((key, value[key]))
    elif isinstance(value, tuple | list):
        yield b"["
        for one in value:
            yield from _pieces(one)
    else:
        yield _of_one(value)
    yield b"\xff"


def _of_one(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}".encode() + value.tobytes()
    if isinstance(value, set | frozenset):
        return ",".join(sorted(map(hashed, value))).encode()
    return f"{value.__module__}.{value.__qualname__}".encode() if callable(value) else repr(value).encode()
