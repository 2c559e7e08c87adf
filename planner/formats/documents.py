"""Documents as text: parsed with the place of what is wrong, printed in one order, written whole or not at all."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from planner.errors import InputFileError, OutputError

__all__ = ["dump_json", "dump_toml", "json_pieces", "key_order", "parse_text", "read_text", "write_bytes", "write_file"]

TWICE = re.compile(r"Cannot overwrite|Cannot declare|Duplicate inline table key '(.*)'")
"""Messages of the TOML parser about a key given twice; only the last names it."""
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def read_text(path: Path | str) -> str:
    """Return the text of a file without a byte-order mark, or raise InputFileError."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputFileError(str(path), f"file must be readable, got {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        line, byte = error.object.count(b"\n", 0, error.start) + 1, error.object[error.start]
        problem = f"file must be UTF-8 text, got byte 0x{byte:02x}; save it as UTF-8"
        raise InputFileError(str(path), problem, f"line {line}") from None


def parse_text(text: str, path: str, syntax: str) -> dict[str, Any]:
    """Return the keys of a TOML or JSON text.

    InputFileError names the line where it stops making sense, or the key that a table has twice.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            keys = [key for key, _ in pairs]
            again = next(key for at, key in enumerate(keys) if key in keys[:at])
            raise InputFileError(path, f"key must be given once, got {again!r} twice in a table")
        return table

    try:
        document = tomllib.loads(text) if syntax == "toml" else json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise InputFileError(path, f"text must be JSON, got: {error.msg}", f"line {error.lineno}") from None
    except tomllib.TOMLDecodeError as error:
        raise _toml_error(text, path, str(error)) from None
    except RecursionError:
        raise InputFileError(path, "tables must be nested less deeply") from None
    except ValueError as error:  # a whole number of thousands of digits
        raise InputFileError(path, f"numbers must be of a believable size, got: {error}") from None
    if not isinstance(document, dict):
        raise InputFileError(path, f"document must be a table, got {type(document).__name__}")
    return document


def _toml_error(text: str, path: str, said: str) -> InputFileError:
    message, _, place = said.partition(" (at ")
    found = re.match(r"line (\d+)", place)
    line = int(found[1]) if found else text.count("\n") + 1
    if found and (twice := TWICE.match(message)):
        key = twice[1] or text.splitlines()[line - 1].partition("=")[0].strip().strip("[]")
        return InputFileError(path, f"key must be given once, got {key!r} again", f"line {line}")
    return InputFileError(path, f"text must be TOML, got: {message}", f"line {line}")


def key_order(table: Mapping[str, Any]) -> list[str]:
    """Return keys in the order of files: format, version, then the others sorted."""
    first = [key for key in ("format", "version") if key in table]
    return first + sorted(key for key in table if key not in first)


def dump_json(document: Mapping[str, Any]) -> str:
    """Return a document as JSON.

    ``format`` and ``version`` first, other keys sorted, indented by two, lists of plain values on one line, shortest
    floats that read back exactly; numbers that are not finite are null.
    """
    return "".join(json_pieces(document))


def json_pieces(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text of ``dump_json`` piece by piece: of a long list of tables, a table at a time."""
    yield from _pieces(document, 0)
    yield "\n"


def _pieces(value: Any, depth: int) -> Iterator[str]:
    inside, outside = "\n" + "  " * (depth + 1), "\n" + "  " * depth
    if isinstance(value, Mapping) and value:
        for at, key in enumerate(key_order(value)):
            yield f"{',' if at else '{'}{inside}{_json_scalar(str(key))}: "
            if _is_nested(value[key]):
                yield from _pieces(value[key], depth + 1)
            else:
                yield _json_scalar(value[key])
        yield outside + "}"
    elif _is_nested(value) and any(map(_is_nested, value)):
        for at, item in enumerate(value):
            yield f"{',' if at else '['}{inside}{''.join(_pieces(item, depth + 1))}"
        yield outside + "]"
    elif isinstance(value, Mapping):
        yield "{}"
    else:
        yield f"[{', '.join(map(_json_scalar, value))}]" if _is_nested(value) else _json_scalar(value)


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple | np.ndarray)


_encoded = json.JSONEncoder(ensure_ascii=False).encode


def _json_scalar(value: Any) -> str:
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, float) and not math.isfinite(plain):
        return "null"
    return _encoded(plain)


def dump_toml(document: Mapping[str, Any]) -> str:
    """Return a document as TOML in the same order: plain keys, then tables; tables in lists of tables stand inline."""
    return "\n".join(_toml_table(document, ())).strip() + "\n"


def _toml_table(table: Mapping[str, Any], place: tuple[str, ...]) -> Iterable[str]:
    nested = {key: table[key] for key in key_order(table) if isinstance(table[key], Mapping)}
    lists = {key: table[key] for key in key_order(table) if _is_list_of_tables(table[key])}
    for key in key_order(table):
        if key not in nested and key not in lists:
            yield f"{_toml_key(key)} = {_toml_value(table[key])}"
    for key, value in nested.items():
        here = (*place, _toml_key(key))
        if not value or any(not isinstance(item, Mapping) for item in value.values()):
            yield from ("", f"[{'.'.join(here)}]")
        yield from _toml_table(value, here)
    for key, rows in lists.items():
        for row in rows:
            yield from ("", f"[[{'.'.join((*place, _toml_key(key)))}]]")
            yield from (f"{_toml_key(k)} = {_toml_value(row[k])}" for k in key_order(row))


def _is_list_of_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _toml_key(key: str) -> str:
    return key if BARE_KEY.fullmatch(key) else _toml_text(key)


def _toml_text(text: str) -> str:
    # JSON's escapes are TOML's, except that TOML wants delete escaped too.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml_key(k)} = {_toml_value(value[k])}" for k in key_order(value)) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    return _toml_text(value) if isinstance(value, str) else _json_scalar(value)


def write_file(path: Path | str, text: str, force: bool = False) -> None:  # noqa: FBT001, FBT002 - the option as given
    """Write a text, in UTF-8, as ``write_bytes`` does."""
    write_bytes(path, text.encode(), force)


def write_bytes(path: Path | str, content: bytes, force: bool = False) -> None:  # noqa: FBT001, FBT002 - as above
    """Write a file whole or not at all.

    The content goes to a temporary file in the same folder, which then takes the place of ``path``: a reader, or an
    interruption, never meets half a document.

    Raises
    ------
    OutputError
        The file exists and ``force`` is false, or the folder is missing or not writable.
    """
    target = Path(path)
    if target.exists() and not force:
        raise OutputError(f"output file must be a new one, got {str(path)!r}, which exists; use --force to replace it")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"output file must be writable, got {str(path)!r}: {reason}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
