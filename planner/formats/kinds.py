"""A kind of document: name, version, syntax and keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from planner.errors import InputFileError, VersionError, shown
from planner.formats.documents import LARGEST_DOCUMENTS, dump_json, dump_toml, parse_text, place_of, read_text
from planner.formats.fields import Table
from planner.formats.values import FieldError, received

__all__ = ["Kind"]

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Kind(Generic[R]):
    """A kind of document.

    Attributes
    ----------
    name : str
        ``format`` is ``planner/<name>``.
    version : int
        The present one, written to files.
    syntax : {"toml", "json"}
    table : Table
        Keys of the present version.
    """

    name: str
    version: int
    syntax: str
    table: Table[R]

    @property
    def format(self) -> str:
        """Value of the key ``format``."""
        return f"planner/{self.name}"

    def read(self, path: Path | str) -> R:
        """Return the record of a file, or of standard input where ``path`` is the text ``-``.

        Raises
        ------
        InputFileError
            Unreadable, truncated, of another format, or a key or value against its rule; path and place are named.
        VersionError
            Newer than this program.
        """
        return self.parse(read_text(path, LARGEST_DOCUMENTS[self.syntax]), place_of(path))

    def parse(self, text: str, path: str) -> R:
        """Return the record of a text that came from ``path``."""
        return self.build(parse_text(text, path, self.syntax), path)

    def build(self, document: Mapping[str, Any], path: str) -> R:
        """Return the record of a parsed document."""
        keys = dict(document)
        self._check_format(keys.pop("format", None), path)
        self._check_version(keys.pop("version", None), path)
        try:
            return self.table.read(keys, "")
        except FieldError as error:
            raise InputFileError(path, error.problem, error.place) from None

    def document(self, record: Any) -> dict[str, Any]:
        """Return the document of a record, or of a mapping with its fields."""
        return {"format": self.format, "version": self.version} | self.table.write(record)

    def dump(self, record: Any) -> str:
        """Return the text of a record's file."""
        return (dump_toml if self.syntax == "toml" else dump_json)(self.document(record))

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the present version."""
        definitions: dict[str, Any] = {}
        table: dict[str, Any] = _definitions_apart(self.table.keys_schema(), definitions)
        opening = {
            "format": {"const": self.format, "description": "what the document is"},
            "version": {"const": self.version, "description": "version of the format"},
        }
        return table | {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": self.format,
            "properties": opening | table["properties"],
            "required": ["format", "version", *table["required"]],
            **({"$defs": definitions} if definitions else {}),
        }

    def _check_format(self, name: Any, path: str) -> None:
        if name != self.format:
            raise InputFileError(path, f"value must be {self.format!r}, got {received(name)}", "format")

    def _check_version(self, version: Any, path: str) -> None:
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise InputFileError(path, f"value must be {self.version}, got {received(version)}", "version")
        if version > self.version:
            remedy = "the file is newer than this program; update planner"
            raise VersionError(path, f"value must be at most {self.version}, got {shown(version)}; {remedy}", "version")


def _definitions_apart(schema: Any, definitions: dict[str, Any]) -> Any:
    """Return a schema without the definitions in it, which go to ``definitions``."""
    if isinstance(schema, list):
        return [_definitions_apart(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    for title, inner in schema.get("$defs", {}).items():
        if title not in definitions:
            definitions[title] = _definitions_apart(inner, definitions)
    return {key: _definitions_apart(value, definitions) for key, value in schema.items() if key != "$defs"}
