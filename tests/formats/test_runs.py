"""Files of runs: headers, rows that cost no other row, and the way back."""

from __future__ import annotations

import csv
import gzip
import statistics
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.runs import RefusedRow, Run, Runs
from planner.errors import NOTHING, InputFileError, ParameterError, VersionError
from planner.formats import runs as runs_format
from planner.formats.logs import steady
from planner.formats.runs import COLUMNS, NoRunError, read_runs, write_runs
from planner.formats.tables import rows_of

HEAD = "id,network,cluster,gpus_per_node,sub_batch,metric,value,group,notes"
GOOD = "a,resnet50,dgx1-v100,8,64,samples_per_s,1734,,"
EXAMPLE = Path(__file__).parents[1] / "data" / "formats" / "runs" / "v1" / "example.csv"
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp", "Cf"]), max_size=20).map(str.strip)


def read(tmp_path: Path, *lines: str) -> Runs:
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    return read_runs(path)


def test_rows_are_runs_with_their_lines(tmp_path: Path) -> None:
    (one,) = read(tmp_path, HEAD, GOOD).rows
    expected = Run(
        id="a", network="resnet50", cluster="dgx1-v100", gpus_per_node=8, sub_batch=64, metric="samples_per_s",
        value=1734.0,
    )  # fmt: skip
    assert (one.line, one.mini_batch) == (2, 512)
    assert write_runs([one]) == write_runs([expected])


def test_an_order_of_ranks_is_a_cell(tmp_path: Path) -> None:
    inner = "pipeline+data+tensor+context+expert"
    head = "id,network,cluster,sub_batch,metric,value,rank_order"
    runs = read(tmp_path, head, f"a,gpt2,dgx-a100,1,iteration_s,1,{inner}", "b,gpt2,dgx-a100,1,iteration_s,1,pipeline")
    assert runs.rows[0].rank_order == tuple(inner.split("+"))
    assert inner in write_runs(runs.rows)
    assert "rank_order" not in write_runs([replace(runs.rows[0], rank_order=())])
    assert "write pipeline,tensor,context,expert,data" in runs.refused[0].reason.rest


def test_kept_file_reads() -> None:
    runs = read_runs(EXAMPLE)
    assert runs.refused == ()
    assert [row.line for row in runs.rows] == [3, 4, 5, 6]
    assert runs.rows[0].notes == "parameter server, on the CPU"
    assert (runs.rows[1].placement, runs.rows[1].sub_batch) == ((1, 1, 2), 100)
    assert (runs.rows[3].value, runs.rows[3].status) == (None, "out_of_memory")


def test_columns_stand_in_any_order_and_the_opening_line_is_free(tmp_path: Path) -> None:
    plain = read(tmp_path, "metric,id,network,cluster,sub_batch,value", "epoch_s,a,vgg16,x,8,7").rows
    opened = read(
        tmp_path, "\ufeff# planner/runs 1,,,", "id,metric,network,cluster,sub_batch,value,", "a,epoch_s,vgg16,x,8,7,"
    ).rows
    assert write_runs(plain) == write_runs(opened)


def test_whole_numbers_of_spreadsheets_and_windows_lines_read(tmp_path: Path) -> None:
    (one,) = read(tmp_path, HEAD + "\r", "a,resnet50,dgx1-v100,8.0,6.4e1,samples_per_s,1734.0,,\r").rows
    assert (one.gpus_per_node, one.sub_batch, one.value) == (8, 64, 1734)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["id,netwrok,cluster,metric", GOOD], r"line 1: column must be .*, got 'netwrok'; did you mean 'network'\?"),
        (["# planner/runs 1", "id,network,cluster,id", GOOD], "line 2: header must name each column once, got 'id'"),
        (["id,network,metric", GOOD], "line 1: column cluster must be given"),
        (["# planner/samples 1", HEAD, GOOD], "line 1: first line must be the header or '# planner/runs 1'"),
        (["", HEAD, GOOD], "line 1: header must name the columns, got an empty line; remove it"),
        (['id,"network', GOOD], "line 1: quotes must enclose a whole cell"),
        (["id,network,,cluster", GOOD], "got ''; name the column or remove it"),
        ([HEAD.replace(",", ";"), GOOD], r"got 'id;network.*\.\.\.'; save the file with commas, not semicolons"),
        ([HEAD.replace(",", "\t"), GOOD], "columns must be separated by commas.*, not tabs"),
        (["x" * 100_000, GOOD], "line 1: line must be of at most 65,536 characters"),
        (["id,qqq", GOOD], "line 1: column must be a known one, got 'qqq'; known: id, source, network"),
    ],
)  # fmt: skip
def test_wrong_header_is_an_error_with_its_line(tmp_path: Path, lines: list[str], sentence: str) -> None:
    with pytest.raises(InputFileError, match=sentence):
        read(tmp_path, *lines)


def test_newer_missing_and_empty_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(VersionError, match="version must be at most 1, got 2"):
        read(tmp_path, "# planner/runs 2", HEAD, GOOD)
    with pytest.raises(InputFileError, match="file must be readable"):
        read_runs(tmp_path / "none.csv")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(InputFileError, match="header must name the columns, got an empty file"):
        read_runs(tmp_path / "empty.csv")
    with pytest.raises(NoRunError, match="file must hold a run, got a header alone"):
        read(tmp_path, HEAD)


BAD = [
    ("b,resnet50,c,8,0,iteration_s,1,,", "sub_batch must be a whole number from 1"),
    ("b,resnet50,c,8,1.5,iteration_s,1,,", "sub_batch must be a whole number, got '1.5'"),
    ("b,resnet50,c,8,1_0,iteration_s,1,,", "sub_batch must be a whole number, got '1_0'"),
    ("b,resnet50,c,8,8,iteration_s,nan,,", "value must be a number from 1e-09 to 1e+15, got 'nan'"),
    ("b,resnet50,c,8,8,iteration_s,-1,,", "value must be a number from 1e-09 to 1e+15, got '-1'"),
    ("b,resnet50,c,8,8,iteration_s,1e999,,", "value must be a number from 1e-09 to 1e+15, got '1e999'"),
    ("b,resnet50,c,8,8,iteration_s,1e-300,,", "value must be a number from 1e-09 to 1e+15, got '1e-300'"),
    ("b,resnet50,c,8,8,iteration_s,0,,", "value must be a number from 1e-09 to 1e+15, got '0'"),
    ("b,resnet50,c,8,8,iteration_s,1e-999,,", "value must be a number from 1e-09 to 1e+15, got '1e-999'"),
    ('b,resnet50,c,8,8,iteration_s,"1,000",,', "value must be a number from 1e-09 to 1e+15, got '1,000'"),
    ("b,resnet50,c,8,8,iteration_s,,,", "value must be given where status is ok, got nothing"),
    ("b,resnet50,c,8,8,iteration,1,,", "metric must be one of iteration_s, update_s"),
    ("b,resnet50,c,8,,iteration_s,1,,", "sub_batch must be given, or mini_batch"),
    (",resnet50,c,8,8,iteration_s,1,,", "id must be given, got nothing"),
    ("b", "network must be given, got nothing"),
    (f"{'b' * 301},resnet50,c,8,8,iteration_s,1,,", "id must be of at most 300 characters, got 301"),
    ("b\x1b[2J,resnet50,c,8,8,iteration_s,1,,", "id must be on one line, without control characters, got 'b\\x1b[2J'"),
    ("b,resnet50\u2028,c,8,8,iteration_s,1,x\u2028y,", "group must be on one line"),
    ("b,res\0net,c,8,8,iteration_s,1,,", "text must be free of null characters"),
    ("a,resnet50,c,8,8,iteration_s,1,,", "id must be given once, got 'a'; it stands on line 2 too"),
    (
        "b,resnet50,c,8,8,iteration_s,1,,,,x",
        "row must be of at most 9 cells, as the header, got 11; quote a cell that has a comma",
    ),
    ('b,resnet50,c,8,8,iteration_s,1,,"never closed', "quotes must enclose a whole cell"),
    ('b,resnet50,c,8,8,iteration_s,1,,"x"y', "quotes must enclose a whole cell"),
]


@pytest.mark.parametrize(("row", "reason"), BAD)
def test_wrong_row_is_refused_with_its_line_and_stops_nothing(tmp_path: Path, row: str, reason: str) -> None:
    runs = read(tmp_path, HEAD, GOOD, "", row, "z" + GOOD)
    assert [one.id for one in runs.rows] == ["a", "za"]
    (refused,) = runs.refused
    assert refused.line == 4
    assert str(refused.reason).startswith(reason)


def test_all_wrong_rows_are_refused_together(tmp_path: Path) -> None:
    runs = read(tmp_path, HEAD, GOOD, *(row for row, _ in BAD), "z" + GOOD)
    assert len(runs.rows) == 2
    assert [one.line for one in runs.refused] == list(range(3, 3 + len(BAD)))


def test_file_without_a_readable_row_says_why_row_by_row(tmp_path: Path) -> None:
    with pytest.raises(
        NoRunError, match=r"line 2: file must .*, got 1 refused row, the first because id must be"
    ) as caught:
        read(tmp_path, HEAD, ",resnet50,c,8,8,iteration_s,1,,")
    assert caught.value.runs == Runs((), (RefusedRow(2, "", ParameterError("id", "given", NOTHING).refusal),))


def test_group_keeps_to_the_metric_of_its_first_row(tmp_path: Path) -> None:
    rows = ["a,n,c,8,8,iteration_s,1,g,", "b,n,c,4,8,samples_per_s,1,g,", "c,n,c,2,8,iteration_s,1,g,"]
    runs = read(tmp_path, HEAD, *rows)
    assert [one.id for one in runs.rows] == ["a", "c"]
    (refused,) = runs.refused
    assert refused.id == "b"
    rule = "metric must be the same in group 'g', iteration_s as on line 2"
    assert str(refused.reason) == f"{rule}, got 'samples_per_s'; give each metric a group of its own"


def test_quoted_cells_may_span_lines(tmp_path: Path) -> None:
    runs = read(tmp_path, HEAD, GOOD + '"two', 'lines, ""here"""', "b" + GOOD)
    assert runs.refused == ()
    assert [(one.line, one.notes) for one in runs.rows] == [(2, 'two\nlines, "here"'), (4, "")]


def test_wrong_bytes_cost_their_row_alone(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(f"{HEAD}\n{GOOD}".encode() + b"\xff\n" + f"b{GOOD}\n".encode())
    runs = read_runs(path)
    assert [one.id for one in runs.rows] == ["ba"]
    (refused,) = runs.refused
    reason = f"text must be UTF-8, got byte 0xff as character {len(GOOD) + 1}; save the file as UTF-8"
    assert (refused.line, refused.id, str(refused.reason)) == (2, "", reason)


def test_the_sign_for_a_wrong_byte_is_text_like_any_other(tmp_path: Path) -> None:
    assert [one.notes for one in read(tmp_path, HEAD, f"{GOOD}\ufffd").rows] == ["\ufffd"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (gzip.compress(f"{HEAD}\n{GOOD}\n".encode()), "got one compressed with gzip; decompress it first"),
        (f"{HEAD}\n{GOOD}\n".encode("utf-16"), "line 1: text must be UTF-8, got byte 0xff as character 1"),
        (b"\0" * 9000, "line 1: text must be free of null characters"),
        (b"\n\n\n", "line 1: header must name the columns, got an empty line"),
    ],
)
def test_what_is_no_table_is_an_error(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    with pytest.raises(InputFileError, match=sentence):
        read_runs(path)


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"'), max_size=9), min_size=2)
)
def test_cells_are_those_of_the_csv_module(cells: list[str]) -> None:
    line = ",".join(cells) + "\n"
    (expected,) = csv.reader([line])
    ((number, found),) = rows_of(iter([(7, line)]))
    assert number == 7
    assert found == [cell.strip() for cell in expected]


def test_an_open_quote_before_a_wrong_line_costs_itself_alone(tmp_path: Path) -> None:
    runs = read(tmp_path, HEAD, f'a{GOOD}"open', "b\0" + GOOD, f'c"{GOOD}', "d" + GOOD)
    assert [one.id for one in runs.rows] == ['c"a', "da"]
    assert [(one.line, one.reason.rule) for one in runs.refused] == [
        (2, "quotes must enclose a whole cell"),
        (3, "text must be free of null characters"),
    ]


def test_overlong_line_costs_itself_alone(tmp_path: Path) -> None:
    runs = read(tmp_path, HEAD, GOOD + "x" * 3_000_000, "b" + GOOD)
    assert [(one.id, one.line) for one in runs.rows] == [("ba", 3)]
    assert [one.line for one in runs.refused] == [2]


def test_refused_rows_beyond_those_listed_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_format, "MOST_LISTED_REFUSALS", 3)
    runs = read(tmp_path, HEAD, GOOD, *["bad"] * 10)
    assert (len(runs.refused), runs.omitted) == (3, 7)


def test_runs_beyond_the_most_are_counted_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_format, "MOST_RUNS", 2)
    monkeypatch.setattr(runs_format, "MOST_LISTED_REFUSALS", 1)
    rows = ["bad", "bad", GOOD, "b" + GOOD, "", "c" + GOOD, "bad", "", "d" + GOOD + '"two', 'lines"', "e\0"]
    runs = read(tmp_path, HEAD, *rows)
    assert [one.id for one in runs.rows] == ["a", "ba"]
    assert [(one.line, one.id) for one in runs.refused] == [(2, "bad"), (7, "ca")]
    rule = "file must be of at most 2 runs, got this row and 3 rows after it"
    assert str(runs.refused[1].reason) == f"{rule}, all omitted; split the file"
    assert runs.omitted == 1 + 3


def test_exactly_the_most_runs_are_no_row_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_format, "MOST_RUNS", 2)
    runs = read(tmp_path, HEAD, GOOD, "b" + GOOD, "", "")
    assert (len(runs.rows), runs.refused, runs.omitted) == (2, (), 0)


@given(
    words=st.tuples(TEXT, TEXT, TEXT),
    numbers=st.tuples(st.integers(1, 99), st.integers(1, 99), st.integers(1, 9), st.integers(1, 9)),
    value=st.floats(1e-9, 1e12),
    known=st.booleans(),
)
def test_what_is_written_reads_back(
    tmp_path_factory: pytest.TempPathFactory,
    words: tuple[str, str, str],
    numbers: tuple[int, int, int, int],
    value: float,
    known: bool,  # noqa: FBT001 - drawn by Hypothesis
) -> None:
    nodes, sub_batch, gpus, steps = numbers
    run = Run(
        id="x" + words[0], network="n" + words[1], cluster="c", metric="iteration_s", value=value, nodes=nodes,
        sub_batch=sub_batch, gpus_per_node=gpus if known else None, accumulation_steps=steps, notes=words[2], line=3,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("runs") / "runs.csv"
    path.write_text(write_runs([run]), encoding="utf-8")
    assert read_runs(path).rows == (run,)


def test_every_column_of_a_run_is_written() -> None:
    assert set(Run.__dataclass_fields__) == {*COLUMNS, "line"}


def test_ten_thousand_rows_are_read(tmp_path: Path) -> None:
    header, *rows = EXAMPLE.read_text().splitlines()[1:]
    path = tmp_path / "many.csv"
    path.write_text("\n".join([header, *(f"{number}{row}" for number in range(2500) for row in rows)]))
    assert len(read_runs(path).rows) == 10_000


def measured(path: Path) -> tuple[Runs, int]:
    """Return the runs of a file and the most bytes that reading it held at once."""
    tracemalloc.start()
    try:
        return read_runs(path), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_format, "MOST_LISTED_REFUSALS", 100)
    path = tmp_path / "bad.csv"
    path.write_text(f"{HEAD}\n{GOOD}\n" + "bad,row\n" * 20_000 + "x" * 2_000_000)
    runs, peak = measured(path)
    assert (len(runs.rows), runs.omitted) == (1, 19_901)
    assert peak < 2e6


def test_memory_does_not_grow_with_runs_beyond_the_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_format, "MOST_RUNS", 100)
    path = tmp_path / "many.csv"
    path.write_text(f"{HEAD}\n" + "".join(f"{at}{GOOD}\n" for at in range(20_000)))
    runs, peak = measured(path)
    assert (len(runs.rows), len(runs.refused), runs.omitted) == (100, 1, 19_899)
    assert peak < 1e6


def test_a_run_takes_less_than_half_a_kilobyte(tmp_path: Path) -> None:
    header, *rows = EXAMPLE.read_text().splitlines()[1:]
    path = tmp_path / "many.csv"
    path.write_text("\n".join([header, *(f"{number}{row}" for number in range(2500) for row in rows)]))
    runs, peak = measured(path)
    assert len(runs.rows) == 10_000
    assert peak / 10_000 < 512


@given(
    st.lists(st.floats(1.5, 100), max_size=9),
    st.lists(st.tuples(st.floats(0.9, 1.1), st.floats(2, 50)), min_size=10, max_size=30),
    st.sets(st.integers(0, 29), max_size=4),
    st.floats(1e-3, 1e3),
)
def test_the_time_of_a_log_is_the_median_of_its_steady_iterations(
    warm_up: list[float], later: list[tuple[float, float]], slow: set[int], seconds: float
) -> None:
    """Whatever comes before them, and however slow some between them are."""
    slow -= {0}
    times = [seconds, *(seconds * one for one in warm_up)]
    times += [seconds * (factor if at in slow else jitter) for at, (jitter, factor) in enumerate(later)]
    found = steady(list(enumerate(times, 1)))
    expected = [seconds * jitter for at, (jitter, _) in enumerate(later) if at not in slow]
    assert found is not None
    assert found.time_s == pytest.approx(statistics.median(expected))
    assert (found.kept, found.warm_up) == (len(expected), 1 + len(warm_up))
