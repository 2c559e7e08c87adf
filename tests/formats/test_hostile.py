"""Files that are no documents, or are made to cost much: each is refused in one sentence, and soon."""

from __future__ import annotations

import io
import os
import socket
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from planner.domain.network import MOST_LAYERS
from planner.errors import InputFileError, ParameterError, UnknownNameError, printable, shown
from planner.formats.documents import DEEPEST_LEVELS, LARGEST_DOCUMENTS, opened, parse_text, place_of, read_text
from planner.formats.fields import LONGEST_NAME
from planner.formats.network import DATASET, NETWORK
from planner.formats.parts import SETTINGS
from planner.formats.runs import read_runs
from planner.formats.samples import read_samples
from planner.formats.tables import LONGEST_CELL, MOST_COLUMNS, MOST_ROWS

READERS: tuple[Callable[[Path], object], ...] = (NETWORK.read, read_samples, read_runs)
DATASET_TEXT = 'format = "planner/dataset"\nversion = 1\nname = "{}"\nsamples = {}\nbytes_per_sample = 100\n'


class Piped(io.TextIOWrapper):
    """Standard input that is a pipe with these bytes in it."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8")


class Terminal(Piped):
    """Standard input at which somebody sits."""

    def isatty(self) -> bool:
        """Say so."""
        return True


@pytest.fixture
def bound(tmp_path: Path) -> Iterator[Path]:
    """Return the path of a socket."""
    with socket.socket(socket.AF_UNIX) as one:
        place = Path.cwd()
        os.chdir(tmp_path)  # the path of a socket must be short
        one.bind("socket")
        os.chdir(place)
        yield tmp_path / "socket"


@pytest.mark.parametrize("read", READERS)
def test_only_regular_files_are_read(read: Callable[[Path], object], tmp_path: Path, bound: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("/dev/zero")
    for path, got in ((pipe, "a pipe"), (Path("/dev/zero"), "a device"), (link, "a device"), (bound, "a socket")):
        with pytest.raises(InputFileError, match=f"file must be a regular one, got {got}; copy it into a file"):
            read(path)
    with pytest.raises(InputFileError, match=r"file must be a regular one, got a directory$"):
        read(tmp_path)


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.toml"
    path.write_text("a = 1")
    known = os.open

    def replaced(_path: object, flags: int) -> int:
        path.unlink()
        os.mkfifo(path)
        return known(path, flags)

    monkeypatch.setattr("os.open", replaced)
    with pytest.raises(InputFileError, match="got a pipe"):
        read_text(path)


def test_no_more_than_the_limit_is_read_even_of_a_file_that_grows(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100)
    assert read_text(path, 100) == "x" * 100
    with pytest.raises(InputFileError, match=r"file must be of at most 99 bytes, got 100$"):
        read_text(path, 99)
    with opened(path, 100) as file:
        path.write_bytes(b"x" * 1000)
        assert len(file.read(101)) == 101
    sparse = tmp_path / "sparse.toml"
    with sparse.open("wb") as whole:
        whole.truncate(2**40)
    for read in READERS:
        with pytest.raises(InputFileError, match="file must be of at most"):
            read(sparse)


def test_standard_input_is_read_once_and_within_the_same_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Piped(DATASET_TEXT.format("piped", 7).replace("\n", "\r\n").encode()))
    assert [DATASET.read("-").samples for _ in range(2)] == [7, 7]
    assert place_of("-") == "standard input"
    monkeypatch.setattr("sys.stdin", Piped(b"\n" * (LARGEST_DOCUMENTS["toml"] + 1)))
    with pytest.raises(InputFileError, match=r"^standard input: file must be of at most 524,288 bytes, got more$"):
        DATASET.read("-")


def test_a_path_is_never_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-").write_text("a file")
    assert read_text(Path("-")) == read_text("./-") == "a file"


@pytest.mark.parametrize(("stream", "got"), [(None, "a closed one"), (Terminal(b""), "a terminal")])
def test_standard_input_without_a_document_is_refused(
    stream: Piped | None, got: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", stream)
    with pytest.raises(InputFileError, match=f"^standard input: must be .*, got {got}; pipe a file into it"):
        read_text("-")


@pytest.mark.parametrize(
    "text",
    [
        ".".join("a" * 50_000) + " = 1",
        "[" + " . ".join("a" * 50_000) + "]",
        "[[" + ".".join(['"a"'] * 50_000) + "]]",
        "a = " + "[" * 100_000,
        "a = " + "{ b = " * 50_000,
        '# it\'s\na = """\n"]\\""""\nb = \'\'\'\'\'\'\nc = ' + "[" * 6,
        'a = "\\"" # "\nb = ' + "[" * 6,
    ],
)
def test_deep_toml_is_refused(text: str) -> None:
    with pytest.raises(InputFileError, match="tables must be nested less deeply, at most 5 levels"):
        parse_text(text, "x", "toml")


@pytest.mark.parametrize("inside", ["[" * 32 + "]" * 32, '{"b": ' * 32 + "1" + "}" * 32, "[" * 900 + "]" * 900])
def test_deep_json_is_refused(inside: str) -> None:
    with pytest.raises(InputFileError, match="tables must be nested less deeply, at most 32 levels"):
        parse_text('{"a": ' + inside + "}", "x", "json")


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        ("toml", "a = [1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5]\n" * 1),
        (
            "toml",
            "a = '[[[[[[[[[[[[[['\nb = \"{{{{{{{{\"\n# [[[[[[[[[[[\nc = \"\"\"\n[[[[[[[\n\"\"\"\nd = '''\n[[[[[['\n'''",
        ),
        ("toml", 'a = "......."\n"b......." = 1'),
        ("toml", "a = [[[[[1]]]]]\nb.c.d.e.f = 1"),
        ("json", '{"a": "' + "[" * 1000 + '\\"' + "{" * 1000 + '"}'),
        ("json", '{"a": ' + "[" * 31 + "]" * 31 + ', "b": [' + "[]," * 1000 + "[]]}"),
    ],
)
def test_what_only_looks_deep_is_read(syntax: str, text: str) -> None:
    assert parse_text(text, "x", syntax)


BRACKETS_IN_STRINGS = (
    '"[["',
    "'{{'",
    '"\\\\"',
    '"\\"[[[["',
    "'''[''[\n[''''",
    '"""]"\\"[\n[""""',
    "1.5",
    "{}",
    "# [[[\n1",
)


@pytest.mark.parametrize("depth", range(1, 9))
@pytest.mark.parametrize("seed", range(20))
def test_lists_are_refused_by_their_depth_whatever_strings_and_comments_hold(depth: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    inner = [", ".join(generator.choice(BRACKETS_IN_STRINGS, 3)) for _ in range(depth)]
    text = "a = " + "".join(f"[{strings}, " for strings in inner) + "]" * depth
    if depth < DEEPEST_LEVELS["toml"] or (depth == DEEPEST_LEVELS["toml"] and "{}" not in inner[-1]):
        assert parse_text(text, "x", "toml") == tomllib.loads(text)
    else:
        with pytest.raises(InputFileError, match="nested less deeply"):
            parse_text(text, "x", "toml")


@pytest.mark.parametrize(
    ("syntax", "unit"),
    [
        ("json", "{"), ("json", '"'), ("json", '\\"'), ("json", '"a\\'), ("toml", "a."), ("toml", '"'), ("toml", "'"),
        ("toml", '"""'), ("toml", "'''"), ("toml", '\\"'), ("toml", "a=1.5,"), ("toml", "#'\n"), ("toml", "[a.b]\n"),
    ],
)  # fmt: skip
def test_the_time_to_tell_nesting_grows_with_the_text(syntax: str, unit: str) -> None:
    def seconds(count: int) -> float:
        text = "x = " + unit * count
        times = []
        for _ in range(3):
            began = time.process_time()
            with pytest.raises(InputFileError):
                parse_text(text, "x", syntax)
            times.append(time.process_time() - began)
        return min(times)

    assert seconds(32_000) < 100 * seconds(1_000) + 0.1  # a thousandfold, were it the square


def test_a_key_given_twice_behind_many_others_is_found_soon() -> None:
    text = "{" + ",".join(f'"{at}": 1' for at in range(200_000)) + ', "7": 1}'
    began = time.process_time()
    with pytest.raises(InputFileError, match="got '7' twice"):
        parse_text(text, "x", "json")
    assert time.process_time() - began < 5  # comparing each with all before it takes minutes


@pytest.mark.parametrize("number", ["9" * 4200, "0x" + "f" * 5000, "0b" + "1" * 30000])
def test_a_number_of_many_digits_is_not_repeated(number: str) -> None:
    with pytest.raises(InputFileError, match="got a whole number of over 40 digits"):
        DATASET.parse(DATASET_TEXT.format("a", number), "x")
    with pytest.raises(InputFileError, match="got a whole number of over 40 digits"):
        SETTINGS.parse(f'format = "planner/settings"\nversion = 1\nseed = {number}\n', "x")


@pytest.mark.parametrize("number", ["1000000000000000000", "100000000000000000000", "-3", "3.0"])
def test_a_number_is_repeated_as_it_was_given(number: str) -> None:
    with pytest.raises(InputFileError, match=rf"samples: value must be a whole number.*, got {number}$"):
        DATASET.parse(DATASET_TEXT.format("a", number), "x")


@pytest.mark.parametrize("number", [10**18, 10**30])
def test_a_whole_number_of_settings_and_layers_stays_one(number: int) -> None:
    opening = 'format = "planner/settings"\nversion = 1\n'
    assert str(SETTINGS.parse(f"{opening}nodes = {number}\n", "x")["nodes"]) == str(number)
    layer = f'[[layers]]\nname = "l"\nkind = "linear"\nattributes = {{ features = {number} }}\n'
    with pytest.raises(InputFileError, match=f"features must be a whole number from 1 to 1000000000, got {number}$"):
        NETWORK.parse(f'format = "planner/network"\nversion = 1\nname = "n"\ninput = [8]\n{layer}', "x")


@pytest.mark.parametrize(
    "name",
    ["a\\u001b[31m", "a\\nb", "\\u0000", "a\\u009b", "\\u202eevil", "a\\u2066", "a\\u200bb", "a\\u2028", "\\u007f"],
)
def test_names_without_characters_that_a_terminal_obeys(name: str) -> None:
    with pytest.raises(InputFileError, match=r"^x: name: value must be .* without control characters") as caught:
        DATASET.parse(DATASET_TEXT.format(name, 7), "x")
    assert str(caught.value).isprintable()


def test_names_are_of_at_most_200_characters() -> None:
    assert DATASET.parse(DATASET_TEXT.format("ü" * LONGEST_NAME, 7), "x").samples == 7
    with pytest.raises(InputFileError, match="name must be of at most 200 characters, got 201"):
        DATASET.parse(DATASET_TEXT.format("x" * (LONGEST_NAME + 1), 7), "x")


def test_sentences_may_break_lines_but_not_give_orders() -> None:
    text = DATASET_TEXT.format("a", 7) + 'source = "{}"\n'
    assert DATASET.parse(text.format("one\\ntwo\\tनमस्\u200dते"), "x").source == "one\ntwo\tनमस्\u200dते"
    for hidden in ("\\u001b[2J", "\\r", "\\u202e"):
        with pytest.raises(InputFileError, match="source: value must be text without control characters"):
            DATASET.parse(text.format(hidden), "x")


def test_a_lone_surrogate_is_no_text() -> None:
    with pytest.raises(InputFileError, match=r"value must be text.*got '\\ud800'"):
        DATASET.build(parse_text('{"format": "planner/dataset", "version": 1, "name": "\\ud800"}', "x", "json"), "x")


def test_long_keys_and_names_are_shortened_in_errors() -> None:
    with pytest.raises(InputFileError, match=r"k\.\.\.: key must be a known one, got 'k+\.\.\.'") as caught:
        DATASET.parse('format = "planner/dataset"\nversion = 1\n' + "k" * 100_000 + " = 1\n", "x")
    assert len(str(caught.value)) < 800
    assert len(str(ParameterError("it", "short", "x" * 10_000))) < 300
    assert len(str(UnknownNameError("network", "x" * 10_000, ["alexnet"]))) < 300


def test_a_file_is_named_without_giving_orders_to_a_terminal() -> None:
    error = InputFileError("a\x1b[31m\n\u202e\udcff.toml", "file must be readable", "b\x07")
    assert str(error) == r"a\x1b[31m\n\u202e\udcff.toml: b\x07: file must be readable"
    assert printable("größe 3") == "größe 3"
    assert shown(3) == "3"


def test_a_network_of_too_many_layers_is_refused() -> None:
    layers = '[[layers]]\nname = "a"\nkind = "add"\n' * (MOST_LAYERS + 1)
    with pytest.raises(
        InputFileError, match=r"layers: value must be a list of 1 to 20000 values.*got a list of 20,001$"
    ):
        NETWORK.parse(f'format = "planner/network"\nversion = 1\nname = "a"\ninput = [1]\n{layers}', "x")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("kind,time_s\ngemm,1\n" + "," * MOST_COLUMNS, r"line 4: row must have at most 200 cells, got 201$"),
        ("kind," + "," * 10**6, r"line 2: line must be of at most 65,536 characters"),
        ("kind,time_s\n" + "x" * (LONGEST_CELL + 1) + ",1\n", "line 3: cell must be of at most 5,000 characters"),
        ("kind,time_s\n" + "gemm,1\n" * (MOST_ROWS + 1), "line 100003: file must be of at most 100,000 rows"),
        ("\n" * 10**6, r"header must follow the comments, got 1,000 lines without one"),
        ("# a: \x1b[2J\nkind,time_s\n", r"line 2: text must be free of control characters, got U\+001B as character 6"),
        ("kind,time_s,notes\ngemm,1,\u202eevil\n", r"line 3: text must be free of control characters, got U\+202E"),
    ],
)
def test_sample_files_that_would_cost_much_are_refused(tmp_path: Path, body: str, problem: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"# planner/samples 1\n{body}")
    with pytest.raises(InputFileError, match=problem):
        read_samples(path)[0]


def test_a_version_of_thousands_of_digits_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"# planner/samples {'1' * 5000}\nkind,time_s\n")
    with pytest.raises(InputFileError, match="first line must be"):
        read_samples(path)[0]


@pytest.mark.parametrize("name", ["res\x1bnet", "\u202eteser", "n" * 201])
def test_names_of_runs_are_names(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"id,network,cluster,metric,value\na,{name},c,iteration_s,1\n")
    with pytest.raises(InputFileError, match=r"network must be (on one line|of at most 200 characters)") as caught:
        read_runs(path)
    assert str(caught.value).removeprefix(str(path)).isprintable()


def test_a_table_of_runs_none_of_which_can_be_read_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,network,cluster,metric,value\n" + "x,y\n" * 30_000)
    with pytest.raises(InputFileError, match="file must hold a run that can be read, got 10,000 refused rows"):
        read_runs(path)


def test_a_table_of_too_many_keys_is_refused() -> None:
    layer = '[[layers]]\nname = "l"\nkind = "linear"\n[layers.attributes]\n'
    keys = "".join(f"a{at} = 1\n" for at in range(10_001))
    with pytest.raises(InputFileError, match=r"attributes: table must be of at most 10,000 keys, got 10,001$"):
        NETWORK.parse(f'format = "planner/network"\nversion = 1\nname = "n"\ninput = [8]\n{layer}{keys}', "x")


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        ([10**9, 10**9, 10**9], "layer input: elements a sample must be at most 10,000,000,000,000, got 1000000"),
        ([10**9], "parameters of a layer must be at most 10,000,000,000,000, got '1,000,000,001,000,000,000 or more'"),
        ([10**6, 10**6], "parameters of a layer must be at most"),
    ],
)
def test_layers_that_no_counter_holds_are_refused(shape: list[int], problem: str) -> None:
    linear = '[[layers]]\nname = "l"\nkind = "linear"\nattributes = { features = 1000000000 }\n'
    text = f'[[layers]]\nname = "f"\nkind = "flatten"\n{linear}'
    with pytest.raises(InputFileError, match=problem):
        NETWORK.parse(f'format = "planner/network"\nversion = 1\nname = "n"\ninput = {shape}\n{text}', "x")
