"""Documents: text read within limits, parsed with the place of what is wrong, printed in one order, written whole.

Every file that a user can name is opened here: a regular file of bounded size, or standard input, written ``-``.
How deep TOML nests is told from its text before the parser meets it, which descends once a bracket and reads a path of
n dotted parts in n squared steps; the parser of JSON stops by itself. A :class:`Kind` is a format with its keys.
"""

from __future__ import annotations

import contextlib
import glob
import io
import json
import math
import os
import platform
import re
import stat
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import numpy as np

from planner.errors import InputFileError, OutputError, Refusal, VersionError, shown
from planner.formats.fields import FieldError, Table, received

LARGEST_DOCUMENTS = {"toml": 2**19, "json": 2**23}
"""Bytes of a document. People write TOML, of which a network of 300 transformer blocks has this many; programs write
JSON, of which bundled calibrations have a fiftieth. Parsing more takes over a second."""
STANDARD_INPUT = "-"
"""The text that stands for standard input; a Path of this name is a file."""
KINDS_OF_FILES = {
    stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip
TEMPORARY_PREFIX = f".planner-{re.sub('[^A-Za-z0-9]', '-', platform.node())[:64]}-"
"""How temporary files begin, before the process and a random number: another computer may write to the same folder."""
DUPLICATE_KEY = re.compile(r"Cannot overwrite|Cannot declare|Duplicate inline table key '(.*)'")
"""Messages of the TOML parser about a key given twice; only the last names it."""
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def place_of(path: Path | str) -> str:
    """Return what errors call a file."""
    return "standard input" if path == STANDARD_INPUT else str(path)


def read_text(path: Path | str, most: int = LARGEST_DOCUMENTS["json"]) -> str:
    """Return the text of a file, or of standard input: lines end in a line feed, no byte-order mark.

    Standard input is read once, so that what asks for it again gets the same text. InputFileError where it is not
    readable, no regular file, no UTF-8, or has more than ``most`` bytes; of standard input, that it is a terminal.
    """
    if path == STANDARD_INPUT:
        content = _read_once(sys.stdin, max(LARGEST_DOCUMENTS.values()))
    else:
        with opened(path, most) as file:
            content = file.read(most + 1) or b""  # files of the system may have nothing to give at the moment
    if len(content) > most:
        raise InputFileError(place_of(path), f"file must be of at most {most:,} bytes, got more")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, byte = error.object.count(b"\n", 0, error.start) + 1, error.object[error.start]
        problem = f"file must be UTF-8 text, got byte 0x{byte:02x}; save it as UTF-8"
        raise InputFileError(place_of(path), problem, f"line {line}") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


@contextmanager
def opened(path: Path | str, most: int) -> Iterator[BinaryIO]:
    """Open a regular file, or standard input, of at most ``most`` bytes; InputFileError where it cannot be read.

    Nothing else is opened: to open a pipe waits for who writes to it, and a device may never end.
    """
    if path == STANDARD_INPUT:
        name, remedy = place_of(path), f"pipe a file into it, or name the file instead of {STANDARD_INPUT}"
        if sys.stdin is None or sys.stdin.closed:
            raise InputFileError(name, f"must be open, got a closed one; {remedy}")
        if sys.stdin.isatty():
            raise InputFileError(name, f"must be a file or a pipe, got a terminal; {remedy}")
        yield io.BufferedReader(_Limited(sys.stdin.buffer, most))
        return
    if "\0" in str(path):
        raise InputFileError(str(path), "name of a file must be free of null characters, got one")
    try:
        _check_regular(Path(path).stat(), path, most)
        # It may have been replaced since: opening must not wait for a pipe, and what is open is looked at again.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb") as file:
            _check_regular(os.fstat(descriptor), path, most)
            yield file
    except OSError as error:
        why = Refusal("unreadable", "file must be readable", got=str(error.strerror or error))
        raise InputFileError(str(path), why) from None


def _check_regular(status: os.stat_result, path: Path | str, most: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = KINDS_OF_FILES.get(stat.S_IFMT(status.st_mode), "something else")
        remedy = "" if stat.S_ISDIR(status.st_mode) else "; copy it into a file, or pipe it in and name it -"
        raise InputFileError(str(path), f"file must be a regular one, got {kind}{remedy}")
    if status.st_size > most:
        raise InputFileError(str(path), f"file must be of at most {most:,} bytes, got {status.st_size:,}")


class _Limited(io.RawIOBase):
    """Standard input, which ends in InputFileError after so many bytes."""

    def __init__(self, stream: BinaryIO, most: int) -> None:
        self.stream, self.most, self.left = stream, most, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            content = self.stream.read1(len(buffer))  # type: ignore[attr-defined]  # what every buffered stream has
        except OSError as error:
            raise InputFileError(place_of(STANDARD_INPUT), f"must be readable, got {error.strerror or error}") from None
        self.left -= len(content)
        if self.left < 0:
            raise InputFileError(place_of(STANDARD_INPUT), f"file must be of at most {self.most:,} bytes, got more")
        buffer[: len(content)] = content
        return len(content)


@lru_cache(1)
def _read_once(_stream: object, most: int) -> bytes:
    """Return the bytes of a standard input, the same whoever asks again."""
    with opened(STANDARD_INPUT, most) as file:
        return file.read()


def parse_text(text: str, path: str, syntax: str) -> dict[str, Any]:
    """Return the keys of a TOML or JSON text.

    InputFileError names the line where it stops making sense, or the key that a table has twice.
    """
    if syntax == "toml":
        check_nesting(text, path)
    try:
        document = tomllib.loads(text) if syntax == "toml" else json.loads(text, object_pairs_hook=partial(_once, path))
    except json.JSONDecodeError as error:
        got = shown(rest[0]) if (rest := text[error.pos :].split()) else "its end"
        problem = f"text must be JSON, got {got}: {error.msg[0].lower()}{error.msg[1:]}"
        raise InputFileError(path, problem, f"line {error.lineno}") from None
    except tomllib.TOMLDecodeError as error:
        message, _, place = str(error).partition(" (at ")
        line_match = re.match(r"line (\d+)", place)
        line = int(line_match[1]) if line_match else text.count("\n") + 1
        if line_match and (twice := DUPLICATE_KEY.match(message)):
            key = twice[1] or text.splitlines()[line - 1].partition("=")[0].strip().strip("[]")
            raise InputFileError(path, f"key must be given once, got {shown(key)} again", f"line {line}") from None
        raise InputFileError(path, f"text must be TOML, got: {message}", f"line {line}") from None
    except RecursionError:
        raise InputFileError(path, "tables must be nested less deeply") from None
    except ValueError as error:  # a whole number of thousands of digits
        if "digits" not in str(error):
            raise
        raise InputFileError(path, "numbers must be of a believable size, got one of thousands of digits") from None
    if not isinstance(document, dict):
        raise InputFileError(path, f"document must be an object of keys and values, got {_JSON_NAMES[type(document)]}")
    check_depth(document, path)
    return document


_JSON_NAMES = {
    list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false", type(None): "null",
}  # fmt: skip


def _once(path: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the table of keys and values, or refuse a key that is there twice."""
    table = dict(pairs)
    if len(table) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise InputFileError(path, f"key must be given once, got {shown(twice)} twice in a table")
    return table


def dump_toml(document: Mapping[str, Any]) -> str:
    """Return a document as TOML in the same order: plain keys, then tables; tables in lists of tables stand inline."""
    return "\n".join(_toml_table(document, ())).strip() + "\n"


def _toml_table(table: Mapping[str, Any], place: tuple[str, ...]) -> Iterable[str]:
    tables = {key: table[key] for key in key_order(table) if isinstance(table[key], Mapping)}
    lists = {
        key: rows
        for key in key_order(table)
        if isinstance(rows := table[key], list) and rows and all(isinstance(row, Mapping) for row in rows)
    }
    for key in key_order(table):
        if key not in tables and key not in lists:
            yield f"{_toml_key(key)} = {_toml_value(table[key])}"
    for key, value in tables.items():
        here = (*place, _toml_key(key))
        if not value or any(not isinstance(item, Mapping) for item in value.values()):
            yield from ("", f"[{'.'.join(here)}]")
        yield from _toml_table(value, here)
    for key, rows in lists.items():
        for row in rows:
            yield from ("", f"[[{'.'.join((*place, _toml_key(key)))}]]")
            yield from (f"{_toml_key(k)} = {_toml_value(row[k])}" for k in key_order(row))


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
    return _toml_text(value) if isinstance(value, str) else json_scalar(value)


def write_file(path: Path | str, content: str | bytes, force: bool = False) -> None:  # noqa: FBT001, FBT002 - the option as given
    """Write a file, of text in UTF-8, whole or not at all.

    The content goes to a temporary file in the same folder, which then takes the place of ``path``: a reader, or an
    interruption, never meets half a document. What a killed process left of one goes with the next write to the folder.
    OutputError where the file exists and ``force`` is false, or the folder is missing or not writable.
    """
    target = Path(path)
    check_replaceable(target, force=force)
    _remove_leftovers(target.parent)
    temporary = target.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{os.urandom(8).hex()}.tmp")
    try:
        with temporary.open("xb") as file:  # a new file: no link that somebody laid is followed
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"output file must be writable, got {str(path)!r}: {reason}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def check_replaceable(target: Path, *, force: bool) -> None:
    """Raise OutputError where an output exists; with ``force``, where it is no regular file, as a device would go."""
    try:
        status = target.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise OutputError(f"output file must be writable, got {str(target)!r}: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        what = KINDS_OF_FILES.get(stat.S_IFMT(status.st_mode), "none")
        raise OutputError(f"output file must be a regular one, got {str(target)!r}, which is {what}")
    if not force:
        remedy = "use --force to replace it"
        raise OutputError(f"output file must be a new one, got {str(target)!r}, which exists; {remedy}")


def _remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of this computer's processes that are no more; best effort, as nobody needs it."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f"{glob.escape(TEMPORARY_PREFIX)}*.tmp"):
            process = path.name.removeprefix(TEMPORARY_PREFIX).removesuffix(".tmp").partition("-")[0]
            if process.isdecimal():
                try:
                    os.kill(int(process), 0)
                except (ProcessLookupError, OverflowError):
                    path.unlink()
                except OSError:  # it is somebody else's
                    continue


WIDEST_TABLE = 120
"""Characters up to which a table of plain values stands on one line of JSON."""


def key_order(table: Mapping[str, Any]) -> list[str]:
    """Return keys in the order of files: format, version, then the others sorted."""
    first = [key for key in ("format", "version") if key in table]
    return first + sorted(key for key in table if key not in first)


def dump_json(document: Mapping[str, Any]) -> str:
    """Return a document as JSON.

    ``format`` and ``version`` first, other keys sorted, indented by two, lists of plain values on one line, and tables
    of up to WIDEST_TABLE characters; shortest floats that read back exactly; numbers that are not finite are null.
    """
    return "".join(json_pieces(document))


def json_pieces(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text of ``dump_json`` piece by piece: of a long list of tables, a table at a time."""
    for at, key in enumerate(key_order(document)):
        value = document[key]
        yield f"{',' if at else '{'}\n  {json_scalar(str(key))}: "
        if _is_list(value) and len(value) and isinstance(value[0], Mapping):
            yield from (f"{',' if place else '['}\n    {_text(one, 2)}" for place, one in enumerate(value))
            yield "\n  ]"
        else:
            yield _text(value, 1)
    yield "\n}\n" if document else "{}\n"


def json_line(document: Mapping[str, Any]) -> str:
    """Return the text of ``dump_json`` on one line: breaks inside of texts are escaped."""
    return re.sub("\n *", "", dump_json(document)) + "\n"


def _text(value: Any, depth: int) -> str:
    if type(value) in _PLAIN or not _is_nested(value):
        return json_scalar(value)
    outside = "\n" + "  " * depth
    if not _is_list(value):
        parts = [f"{json_scalar(str(key))}: {_text(value[key], depth + 1)}" for key in key_order(value)]
        if not any(any(map(_is_nested, one)) if _is_list(one) else _is_nested(one) for one in value.values()):
            line = f"{{{', '.join(parts)}}}"
            if len(line) <= WIDEST_TABLE:
                return line
        return f"{{{outside}  {f',{outside}  '.join(parts)}{outside}}}"
    parts = [_text(item, depth + 1) for item in value]
    if not any(map(_is_nested, value)):
        return f"[{', '.join(parts)}]"
    return f"[{outside}  {f',{outside}  '.join(parts)}{outside}]"


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple | np.ndarray)


def _is_nested(value: Any) -> bool:
    return type(value) not in _PLAIN and (_is_list(value) or isinstance(value, Mapping))


_PLAIN = {str, float, int, bool, type(None)}
_encode = json.JSONEncoder(ensure_ascii=False).encode


def json_scalar(value: Any) -> str:
    """Return a plain value; null for a number that is not finite."""
    if type(value) is str:
        return encode_basestring(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else "null"
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, float) and not math.isfinite(plain):
        return "null"
    return _encode(plain)


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
            raise _too_deep(path, depth)
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
        raise _too_deep(path, most)


def _too_deep(path: str, most: int) -> InputFileError:
    return InputFileError(path, f"tables must be nested less deeply, at most {most} levels, got more")


R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Kind(Generic[R]):
    """A kind of document: ``format`` is ``planner/<name>``, ``syntax`` toml or json; ``table`` has its keys."""

    name: str
    syntax: str
    table: Table[R]
    version: int = 1

    @property
    def format(self) -> str:
        """Value of the key ``format``."""
        return f"planner/{self.name}"

    def read(self, path: Path | str) -> R:
        """Return the record of a file, or of standard input where ``path`` is the text ``-``.

        InputFileError, with path and place, where it is unreadable, truncated, of another format, or a key or value
        breaks its rule; VersionError where it is newer than this program.
        """
        return self.parse(read_text(path, LARGEST_DOCUMENTS[self.syntax]), place_of(path))

    def parse(self, text: str, path: str) -> R:
        """Return the record of a text that came from ``path``."""
        return self.build(parse_text(text, path, self.syntax), path)

    def build(self, document: Mapping[str, Any], path: str) -> R:
        """Return the record of a parsed document."""
        keys = dict(document)
        name, version = keys.pop("format", None), keys.pop("version", None)
        if name != self.format:
            raise InputFileError(path, f"value must be {self.format!r}, got {received(name)}", "format")
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise InputFileError(path, f"value must be {self.version}, got {received(version)}", "version")
        if version > self.version:
            remedy = "the file is newer than this program; update planner"
            raise VersionError(path, f"value must be at most {self.version}, got {shown(version)}; {remedy}", "version")
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


def _definitions_apart(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_definitions_apart(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    for title, inner in schema.get("$defs", {}).items():
        if title not in definitions:
            definitions[title] = _definitions_apart(inner, definitions)
    return {key: _definitions_apart(value, definitions) for key, value in schema.items() if key != "$defs"}
