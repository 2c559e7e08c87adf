"""Printing, parsing and writing of documents."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import InputFileError, OutputError
from planner.formats.documents import (
    TEMPORARY_PREFIX,
    WIDEST_TABLE,
    dump_json,
    dump_toml,
    parse_text,
    read_text,
    write_file,
)
from planner.formats.samples import read_samples

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
SCALARS = st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))
TABLES = st.dictionaries(TEXTS, VALUES, max_size=4)


@given(TABLES)
def test_json_reads_back_as_it_was(table: dict[str, Any]) -> None:
    assert json.loads(dump_json(table)) == table


@given(TABLES)
def test_toml_reads_back_as_it_was(table: dict[str, Any]) -> None:
    assert tomllib.loads(dump_toml(table)) == table


def test_json_has_format_and_version_first_and_the_rest_sorted() -> None:
    text = dump_json({"b": [1, 0.1], "a": {"y": None, "x": [{}]}, "version": 1, "format": "planner/x"})
    assert text == (
        '{\n  "format": "planner/x",\n  "version": 1,\n  "a": {\n    "x": [\n      {}\n    ],\n    "y": null\n  },\n'
        '  "b": [1, 0.1]\n}\n'
    )


def test_json_of_a_table_of_plain_values_stands_on_a_line_where_it_is_short() -> None:
    name = "n" * (WIDEST_TABLE - len('{"a": [1, 2], "b": ""}'))
    fits, wide = ({"a": [1, 2], "b": name + more} for more in ("", "n"))
    lines = dump_json({"version": 1, "rows": [fits, wide, {"c": fits}], "own": {"d": 1.5}}).splitlines()
    assert lines == [
        "{",
        '  "version": 1,',
        '  "own": {"d": 1.5},',
        '  "rows": [',
        f'    {{"a": [1, 2], "b": "{name}"}},',
        "    {",
        '      "a": [1, 2],',
        f'      "b": "{name}n"',
        "    },",
        "    {",
        f'      "c": {{"a": [1, 2], "b": "{name}"}}',
        "    }",
        "  ]",
        "}",
    ]


def test_json_of_arrays_and_of_numbers_that_are_not_finite() -> None:
    document = {"a": np.array([1.5, np.nan]), "b": np.int64(3), "c": float("inf"), "d": (np.float64(0.1), True)}
    assert json.loads(dump_json(document)) == {"a": [1.5, None], "b": 3, "c": None, "d": [0.1, True]}


@pytest.mark.parametrize(
    ("syntax", "text", "line"),
    [
        ("json", '{\n  "a": 1,\n  "b": [1,\n', "line 4"),
        ("json", "{\n  a: 1\n}", "line 2"),
        ("toml", "a = 1\nb = \n", "line 2"),
        ("toml", 'a = 1\nb = "cut', "line 2"),
        ("toml", "a = 1\na = 2\n", "line 2"),
    ],
)
def test_truncated_or_invalid_text_names_the_line(syntax: str, text: str, line: str) -> None:
    with pytest.raises(InputFileError) as caught:
        parse_text(text, "x.file", syntax)
    assert caught.value.where == line
    assert caught.value.exit_code == 3


def test_document_must_be_a_table() -> None:
    with pytest.raises(InputFileError, match="must be an object of keys and values, got a list"):
        parse_text("[1]", "x.json", "json")


@pytest.mark.parametrize(
    ("text", "syntax", "where", "problem"),
    [
        ('{"a": 1, "b": {"c": 1, "d": 2, "c": 3}}', "json", "", "key must be given once, got 'c' twice in a table"),
        ("a = 1\nb = 2\na = 3\n", "toml", "line 3", "key must be given once, got 'a' again"),
        ("[links]\nx = 1\n\n[links]\n", "toml", "line 4", "key must be given once, got 'links' again"),
        ("a = { b = 1, b = 2 }\n", "toml", "line 1", "key must be given once, got 'b' again"),
    ],
)
def test_a_key_given_twice_is_named(text: str, syntax: str, where: str, problem: str) -> None:
    with pytest.raises(InputFileError) as caught:
        parse_text(text, "x", syntax)
    assert (caught.value.where, caught.value.problem) == (where, problem)


def test_the_same_key_in_different_tables_is_no_mistake() -> None:
    assert parse_text('{"a": {"b": 1}, "c": {"b": 2}}', "x", "json") == {"a": {"b": 1}, "c": {"b": 2}}


def test_deep_nesting_is_an_expected_failure() -> None:
    with pytest.raises(InputFileError, match="nested less deeply"):
        parse_text("[" * 100_000, "x.json", "json")


@pytest.mark.parametrize(("syntax", "text"), [("toml", "a = {}"), ("json", '{{"a": {}}}')])
def test_number_of_thousands_of_digits_is_an_expected_failure(syntax: str, text: str) -> None:
    with pytest.raises(InputFileError, match="believable size"):
        parse_text(text.format("9" * 5000), "x.file", syntax)


def test_unreadable_files_are_expected_failures(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    for path, problem in ((tmp_path / "none", "No such file"), (tmp_path, "directory"), (tmp_path / "latin", "UTF-8")):
        with pytest.raises(InputFileError, match=problem):
            read_text(path)


def test_write_file_leaves_nothing_else_behind(tmp_path: Path) -> None:
    write_file(tmp_path / "a.json", "one\n")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_bytes() == b"one\n"


def test_text_and_bytes_are_written_alike(tmp_path: Path) -> None:
    write_file(tmp_path / "a.svg", b"\r\n\x00\xff")
    assert (tmp_path / "a.svg").read_bytes() == b"\r\n\x00\xff"
    write_file(tmp_path / "a.json", "\u00fc\r\n")
    assert (tmp_path / "a.json").read_bytes() == b"\xc3\xbc\r\n"


def test_write_file_replaces_only_when_forced(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    write_file(target, "one")
    with pytest.raises(OutputError, match="exists; use --force"):
        write_file(target, "two")
    assert target.read_text() == "one"
    write_file(target, "three", force=True)
    assert target.read_text() == "three"


def test_write_file_refuses_places_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "missing" / "a.json", tmp_path / "file" / "a.json"):
        with pytest.raises(OutputError, match="must be writable"):
            write_file(path, "text", force=True)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


def test_interrupted_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_descriptor: int) -> None:
        raise KeyboardInterrupt

    target = tmp_path / "a.json"
    target.write_text("old")
    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_file(target, "new", force=True)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.json", "old")]


def test_a_killed_write_leaves_nothing_that_the_next_one_does_not_clean(tmp_path: Path) -> None:
    killed = (
        "import os, signal; from planner.formats import documents\n"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "documents.write_file('a.json', 'half')"
    )
    left = subprocess.run([sys.executable, "-c", killed], cwd=tmp_path, check=False)
    assert left.returncode == -signal.SIGKILL
    assert [path.name.startswith(TEMPORARY_PREFIX) for path in tmp_path.iterdir()] == [True]
    write_file(tmp_path / "b.json", "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["b.json"]


def test_temporary_files_of_others_stay(tmp_path: Path) -> None:
    others = {
        f"{TEMPORARY_PREFIX}{os.getppid()}-0123.tmp",
        ".planner-elsewhere-1.tmp",
        f"{TEMPORARY_PREFIX}notes.tmp",
        ".a.json.1.tmp",
    }
    for name in others:
        (tmp_path / name).touch()
    write_file(tmp_path / "a.json", "whole")
    assert {path.name for path in tmp_path.iterdir()} == {*others, "a.json"}


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "marked.toml"
    path.write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert parse_text(read_text(path), str(path), "toml") == {"a": 1}
    path.write_bytes(b"\xef\xbb\xbf# planner/samples 1\nkind,time_s\ngemm,1\n")
    assert read_samples(path)[0].size == 1


def test_an_output_that_is_no_regular_file_is_never_replaced(tmp_path: Path) -> None:
    """Renaming a temporary file onto a device or a pipe would put a file in its place."""
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    for path, what in ((pipe, "a pipe"), (Path(os.devnull), "a device"), (tmp_path, "a directory")):
        with pytest.raises(OutputError, match=f"must be a regular one, got .*, which is {what}"):
            write_file(path, "x", force=True)
    assert pipe.is_fifo()
    with pytest.raises(OutputError, match="must be writable"):
        write_file(tmp_path / ("x" * 5000), "x")
