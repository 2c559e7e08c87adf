"""Which parameters a training changes, as an option says it; nothing here imports NumPy, as ``--help`` loads it."""

from __future__ import annotations

import re
from typing import NamedTuple

from planner.errors import ParameterError, nearest_name

__all__ = ["ALL", "ATTENTION", "LAST", "LORA", "Trainable", "trainable_of"]

ALL, LAST, LORA = "all", "last", "lora"
ATTENTION = "attention"
_DIGITS = re.compile(r"[0-9]{1,18}")
_FORM = "all, last:K or lora:rank=R[,targets=attention|all]"


class Trainable(NamedTuple):
    """ALL; LAST and how many layers; LORA, its rank, and the products that it changes, ``attention`` or ``all``."""

    kind: str = ALL
    number: int = 0
    targets: str = ATTENTION


def trainable_of(text: str, what: str = "--trainable") -> Trainable:
    """Return what a text says; ParameterError where it is of another form.

    >>> trainable_of("last:2"), trainable_of("lora:rank=16,targets=all")
    (Trainable(kind='last', number=2, targets='attention'), Trainable(kind='lora', number=16, targets='all'))
    """
    kind, _, rest = text.partition(":")
    if kind not in (ALL, LAST, LORA):
        near = nearest_name(kind, (ALL, LAST, LORA))
        raise ParameterError(what, _FORM, text, f"did you mean {near!r}?" if near else "")
    if kind == ALL and text == ALL:
        return Trainable()
    keys = {"rank": rest} if kind == LAST else dict(one.split("=", 1) for one in rest.split(",") if "=" in one)
    number, targets = keys.pop("rank", ""), keys.pop("targets", ATTENTION)
    is_form = kind != ALL and not keys and rest.count("=") in ((0,) if kind == LAST else (1, 2))
    if not is_form or targets not in (ATTENTION, ALL) or not _DIGITS.fullmatch(number):
        raise ParameterError(what, _FORM, text, "write for example last:2 or lora:rank=16")
    if int(number) < 1:
        raise ParameterError(f"{'rank' if kind == LORA else 'layers'} in {what}", "at least 1", number)
    return Trainable(kind, int(number), targets)
