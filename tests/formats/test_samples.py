"""Sample files: columns, units of traffic, and mistakes by line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.samples import NUMBER_COLUMNS, TEXT_COLUMNS, Samples
from planner.errors import InputFileError, VersionError
from planner.formats.samples import COLUMNS, read_samples, write_samples

HEAD = "# planner/samples 1\n# host: a: b\n"


def read(tmp_path: Path, text: str) -> Samples:
    path = tmp_path / "s.csv"
    path.write_text(text)
    return read_samples(path)[0]


def same(one: Samples, other: Samples) -> None:
    for name in NUMBER_COLUMNS:
        np.testing.assert_array_equal(one.number[name], other.number[name], err_msg=name)
    for name in TEXT_COLUMNS:
        assert list(one.text[name]) == list(other.text[name])
    assert one.circumstances == other.circumstances


def test_kept_example_means_what_it_says(assets: Path) -> None:
    samples = read_samples(assets / "samples" / "v1" / "example.csv")[0]
    number = samples.number
    assert samples.circumstances == {"device": "imagined", "threads": "1"}
    assert list(samples.text["kind"]) == ["gemm", "convolution", "convolution", "max_pool", "copy", "all_reduce"]
    assert samples.text["notes"][0] == "a note, quoted"
    assert [number[name][0] for name in ("m", "n", "k", "batch", "repeats")] == [64, 32, 16, 1, 7]
    assert [number[name][1] for name in ("stride_h", "stride_w", "pad_h", "pad_w")] == [2, 1, 3, 2]
    assert [number[name][2] for name in ("stride_h", "stride_w", "pad_h", "pad_w")] == [2, 2, 3, 3]
    # 1.25 passes over 1000 elements of 2 bytes are 2500 of the 6500 bytes; the rest are indices.
    assert (number["traffic"][3], number["fixed_bytes"][3]) == (1250, 4000)
    assert (number["traffic"][4], number["fixed_bytes"][4]) == (2000, 0)
    assert (number["bytes"][5], number["ranks"][5], number["nodes"][5]) == (2**20, 8, 2)
    assert np.isnan(number["traffic"][5])
    assert np.isnan(number["m"][1])


def test_kept_example_comes_back_as_it_was(assets: Path, tmp_path: Path) -> None:
    samples = read_samples(assets / "samples" / "v1" / "example.csv")[0]
    text = write_samples(samples)
    assert text.splitlines()[3] == ",".join(COLUMNS)
    again = read(tmp_path, text)
    # bytes of a traffic row are derived from passes where the file left them out
    assert again.number["bytes"][4] == 2000 * 4
    np.testing.assert_array_equal(np.delete(again.number["bytes"], 4), np.delete(samples.number["bytes"], 4))
    same(again, Samples(samples.text, {**samples.number, "bytes": again.number["bytes"]}, samples.circumstances))


@given(
    counts=st.tuples(st.integers(1, 2**40), st.integers(0, 2**42), st.integers(0, 2**40)),
    precision=st.sampled_from(["fp32", "fp16", "any"]),
    time=st.floats(1e-9, 1e6),
)
def test_traffic_survives_its_spelling_in_passes(
    tmp_path_factory: pytest.TempPathFactory, counts: tuple[int, int, int], precision: str, time: float
) -> None:
    work = dict(zip(("elements", "traffic", "fixed_bytes"), counts, strict=True))
    samples = Samples.from_rows([{"kind": "activation", "precision": precision, "time_s": time, **work}], {"host": "a"})
    again = read(tmp_path_factory.mktemp("s"), write_samples(samples))
    assert again.time_s[0] == time
    assert {name: again.number[name][0] for name in work} == work


def test_columns_may_be_few_and_in_any_order(tmp_path: Path) -> None:
    samples = read(tmp_path, HEAD + "time_s,kind\n0.5,gemm\n\n0.25,gemm\n")
    assert list(samples.time_s) == [0.5, 0.25]
    assert samples.circumstances == {"host": "a: b"}
    assert set(samples.text["precision"]) == {""}


def test_bytes_without_passes_do_not_scale_with_the_precision(tmp_path: Path) -> None:
    samples = read(tmp_path, HEAD + "kind,precision,bytes,time_s\ncopy,fp16,1000,1\n")
    assert (samples.number["traffic"][0], samples.number["fixed_bytes"][0]) == (0, 1000)


ROWS = "kind,direction,precision,m,elements,passes,bytes,stride,time_s\n"


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        ("", "line 1", "first line must be '# planner/samples 1', got an empty file"),
        (
            "kind,time_s\n",
            "line 1",
            "first line must be.*, got 'kind,time_s'; write it above the header, or move a file",
        ),
        ("kind," * 99, "line 1", r"got '(kind,){12}\.\.\.'"),
        ("# planner/samples\n", "line 1", "first line must be"),
        ("# planner/samples 1\n# no colon\n", "line 2", "comment must be '# key: value'"),
        (HEAD + "# host: c\n", "line 3", "comment must be given once, got 'host' again"),
        ("# planner/samples 0\nkind,time_s\n", "line 1", "first line must be"),
        (HEAD, "line 2", "header must follow"),
        (HEAD + 'kind,notes,time_s\ngemm,"cut', "line 4", "quotes must enclose a whole cell.*got '\"cut'"),
        (HEAD + 'kind,notes,time_s\ngemm,"cut,1\ngemm,"b",2\n', "line 4", "quotes must enclose.*got '\"cut'"),
        (HEAD + 'kind,notes,time_s\ngemm,"a\nb",1\ngemm,"a"b,2\n', "line 6", "quotes must .*got '\"a\"b'"),
        (HEAD + 'kind,notes,time_s\ngemm,"a"b,1\n', "line 4", "quotes must enclose a whole cell"),
        (HEAD + "\n", "line 3", "header must follow the comments, got the end of the file"),
        (HEAD + "kind,tim_s\n", "line 3", "column must be a known one, got 'tim_s'; did you mean 'time_s'"),
        (
            HEAD + "kind,time_ms\n",
            "line 3",
            "got 'time_ms'; times are in seconds: divide by 1e3 and call the column time_s",
        ),
        (HEAD + "kind,time_s\ngemm,1\ngemm,\0001\n", "line 5", "free of null characters, got one as character 6"),
        (
            HEAD + "kind;time_s\ngemm;1\n",
            "line 3",
            "separated by commas, got 'kind;time_s'; .* with commas, not semicolons",
        ),
        (HEAD + "kind\ttime_s\n", "line 3", "columns must be separated by commas"),
        (HEAD + "gemm,forward,fp32\n", "line 3", "header must name the columns.*, got 'gemm,forward,fp32'"),
        (HEAD + "kind,m\n", "line 3", "column time_s must be given, got only kind, m"),
        (HEAD + "kind,m,m,time_s\n", "line 3", "header must name each column once, got 'm' twice"),
        (HEAD + ROWS + "gemm,,,,,,,,nan\n", "line 4", "time_s must be a number above 0.*got 'nan'"),
        (HEAD + ROWS + "gemm,,,,,,,,1\ngemm,,,,,,,,0\n", "line 5", "time_s must be a number above 0.*got '0'"),
        (HEAD + ROWS + "\ngemm,,,,,,,,-1\n", "line 5", "time_s must be a number above 0.*got '-1'"),
        (HEAD + ROWS + "gemm,,,,,,,,\n", "line 4", "time_s must be a number above 0.*got ''"),
        (HEAD + ROWS + "gemm,,,,,,,,inf\n", "line 4", "time_s must be"),
        (HEAD + ROWS + "gemm,,,1.5,,,,,1\n", "line 4", "m must be a whole number of at least 0.*got '1.5'"),
        (HEAD + ROWS + "gemm,,,x,,,,,1\ngemm,,,1.5,,,,,1\n", "line 4", "m must be a whole number.*got 'x'"),
        (HEAD + ROWS + "gemm,,,1.5,,,,,1\ngemm,,,x,,,,,1\n", "line 4", "m must be a whole number.*got '1.5'"),
        (HEAD + ROWS + "gemm,,,-1,,,,,1\n", "line 4", "m must be a whole number of at least 0"),
        (HEAD + ROWS + "gemm,,,,,,,2x,1\n", "line 4", "stride must be a whole number.*HxW, got '2x'"),
        (HEAD + ROWS + "gemm,,,,,,,2*2,1\n", "line 4", "stride must be a whole number.*HxW"),
        (HEAD + ROWS + ",,,,,,,,1\n", "line 4", "kind must be given"),
        (
            HEAD + ROWS + "gemm,,,,,,,,1\ngem,,,,,,,,1\n",
            "line 5",
            "kind must be one of gemm.*'gem'; did you mean",
        ),
        (HEAD + ROWS + "fft,,,,,,,,1\n", "line 4", "kind must be one of gemm, convolution.*got 'fft'$"),
        (HEAD + ROWS + "gemm,foward,,,,,,,1\n", "line 4", "direction must be one of.*did you mean 'forward'"),
        (HEAD + ROWS + "gemm,,fp132,,,,,,1\n", "line 4", "precision must be one of any, fp32.*you mean 'fp32'"),
        (HEAD + ROWS + "copy,,,,10,,,,1\n", "line 4", "passes must be given with elements, unless bytes is given"),
        (HEAD + ROWS + "copy,,fp32,,10,2,79,,1\n", "line 4", "bytes must be at least passes x elements"),
        (HEAD + ROWS + "gemm,,,,,,,,1,1\n", "line 4", "row must have at most 9 cells"),
        (HEAD + 'kind,notes,time_s\ngemm,"two\nlines",1\ngemm,,x\n', "line 6", "time_s must be"),
    ],
)
def test_mistakes_name_the_line(tmp_path: Path, text: str, line: str, sentence: str) -> None:
    with pytest.raises(InputFileError, match=sentence) as caught:
        read(tmp_path, text)
    assert caught.value.where == line


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text(HEAD + 'kind,notes,time_s\n\ngemm,,1\ngemm,"a\nb",2\r\ngemm,,3\n')
    samples, lines = read_samples(path)
    assert list(zip(samples.time_s, lines, strict=True)) == [(1, 5), (2, 6), (3, 8)]


def test_blank_lines_among_the_circumstances_say_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text(HEAD + '\n# node: {"gpus": 1}\n \r\n# date: today\n\n' + "kind,time_s\ngemm,1\n")
    samples, lines = read_samples(path)
    assert {**samples.circumstances} == {"host": "a: b", "node": '{"gpus": 1}', "date": "today"}
    assert lines.tolist() == [9]


def test_newer_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VersionError, match="version must be at most 1, got 2; the file is newer"):
        read(tmp_path, "# planner/samples 2\nwhatever\n")


def test_quotes_inside_quoted_cells_are_doubled(tmp_path: Path) -> None:
    samples = read(tmp_path, HEAD + 'notes,kind,time_s\n"a ""b"", c",gemm,1\n"",gemm,2\n3" disk,gemm,3\n')
    assert list(samples.text["notes"]) == ['a "b", c', "", '3" disk']


def test_header_without_rows_is_no_sample(tmp_path: Path) -> None:
    assert read(tmp_path, HEAD + ROWS).size == 0
