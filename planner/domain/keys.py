"""What the fields of records mean in documents: declared once, where the record is, and read by ``planner.formats``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import MISSING, Field
from typing import Any

ALWAYS: Any = object()
"""The value of an absent key: there is none, as the key must be given."""
_AS_FIELD: Any = object()


class Key:
    """In the annotation of a field, its key in documents: what it means, and what the type of the field leaves open.

    ``name``: the key, where it is not the field's; a unit is its suffix. ``absent``: what the field is where there is
    no key, by default its default. ``null``: the value may be null also where the key may be absent. ``size``: least
    and most items of a list. ``pattern``, ``keys``: what keys of a mapping match, or are. ``rule``: of a single value,
    or of each item: ``least`` and ``most`` of whole numbers; ``unit``, ``above`` and ``signed`` of numbers;
    ``choices``, ``empty`` and ``is_name`` of text.

    >>> Key("memory of the host", name="host_memory_GiB", above=True).rule
    {'above': True}
    """

    def __init__(
        self, doc: str, *, name: str = "", absent: Any = _AS_FIELD, null: bool = False,
        size: tuple[int, int | None] = (0, None), pattern: str = ".+", keys: Collection[str] = (), **rule: Any,
    ) -> None:  # fmt: skip
        self.doc, self.name, self.null, self.size, self.pattern = doc, name, null, size, pattern
        self.keys, self.rule, self._absent = tuple(keys), rule, absent

    def absent(self, field: Field[Any]) -> Any:
        """Return what a field is where its key is absent; ALWAYS: the key must be given."""
        if self._absent is not _AS_FIELD:
            return self._absent
        default = field.default if field.default_factory is MISSING else field.default_factory()
        return ALWAYS if default is MISSING else default
