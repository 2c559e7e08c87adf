"""``planner calibrate --samples``: what is wrong with the files, by file, line, column, value, rule and remedy."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from planner import catalog
from planner.domain.samples import DISTURBED_NOTE, Samples
from planner.formats.calibration import CALIBRATION
from planner.formats.samples import COLUMNS, write_samples

Run = Callable[..., tuple[int, str, str]]
V100 = "v100-sxm2-16gb"
PEAK_FLOP_PER_S, PEAK_BYTES_PER_S = 15.7e12, 900e9
FIRST = 3
"""Line of the first row."""


def text(device: str = V100, unit: float = 1.0, *, circumstances: Mapping[str, str] | None = None) -> str:
    """Return products and copies at 80 % of the peak rates behind 3 us; ``unit``: of the times, in a second."""
    sizes = [(m, n) for m in (64, 256, 1024, 4096) for n in (128, 512, 2048)]
    rows: list[Mapping[str, Any]] = [
        {"kind": "gemm", "direction": "forward", "precision": "fp32", "m": m, "n": n, "k": m,
         "time_s": unit * (3e-6 + 2 * m * m * n / (0.8 * PEAK_FLOP_PER_S)), "group": f"m{m}"} for m, n in sizes
    ] + [
        {"kind": "copy", "direction": "forward", "precision": "fp32", "elements": n, "traffic": 2 * n, "fixed_bytes": 0,
         "time_s": unit * (3e-6 + 8 * n / (0.8 * PEAK_BYTES_PER_S)), "group": f"n{n}"}
        for n in (2**e for e in range(8, 24))
    ]  # fmt: skip
    return write_samples(Samples.from_rows([{**row, "device": device} for row in rows], circumstances or {}))


def with_cell(line: int, column: str, value: str) -> str:
    """Return the text with one cell changed."""
    lines = text().splitlines()
    cells = lines[line - 1].split(",")
    cells[COLUMNS.index(column)] = value
    return "\n".join([*lines[: line - 1], ",".join(cells), *lines[line:]]) + "\n"


@pytest.fixture
def fit(run: Run, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Return a function: contents of files by name, further arguments -> exit code, standard error.

    A calibration is written if and only if the exit code is 0, and the files stay as they were.
    """
    (tmp_path / "in").mkdir()

    def call(files: Mapping[str, str | bytes], *arguments: str, several_lines: bool = False) -> tuple[int, str]:
        contents = {name: one.encode() if isinstance(one, str) else one for name, one in files.items()}
        for name, content in contents.items():
            (tmp_path / "in" / name).write_bytes(content)
        code, out, err = run("calibrate", "--samples", "in", "--out", "fit.json", *arguments)
        assert Path("fit.json").exists() == (code == 0) == bool(out)
        assert sorted(path.name for path in tmp_path.iterdir() if path.name != "fit.json") == ["in"]
        assert {path.name: path.read_bytes() for path in Path("in").iterdir()} == contents
        assert len(err.splitlines()) <= 1 or code == 0 or several_lines
        return code, err.replace("in" + os.sep, "")

    return call


Fit = Callable[..., tuple[int, str]]


@pytest.mark.parametrize(
    "changed",
    [
        lambda plain: plain,
        lambda plain: b"\xef\xbb\xbf" + plain,
        lambda plain: plain.replace(b"\n", b"\r\n"),
        lambda plain: plain + b"\n\n",
    ],
    ids=["plain", "byte-order mark", "CRLF", "empty lines"],
)
def test_files_as_editors_leave_them_are_read(fit: Fit, changed: Callable[[bytes], bytes]) -> None:
    assert fit({"a.csv": changed(text().encode())}) == (0, "")
    first = CALIBRATION.read("fit.json")
    gemm = next(entry for entry in first.entries if entry.kind == "gemm")
    assert gemm.samples == 12
    assert first.accelerator == V100


def test_a_suffix_in_capitals_is_one(fit: Fit) -> None:
    assert fit({"A.CSV": text()}) == (0, "")


@pytest.mark.parametrize("value", ["nan", "0", "-1", "", "inf", "1e-6 s", "1e30"])
def test_times_that_are_none_are_refused_by_line(fit: Fit, value: str) -> None:
    code, err = fit({"a.csv": with_cell(7, "time_s", value)})
    rule = "time_s must be a number above 0, at most 1e+18"
    assert (code, err) == (3, f"planner: a.csv: line 7: {rule}, got {value!r}\n")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "a.csv: line 1: first line must be '# planner/samples 1', got an empty file; write it above"),
        (b"\x93\x82\x00\x01\n\xff", "a.csv: line 1: file must be UTF-8 text, got byte 0x93; save it as UTF-8"),
        (text().encode() + b"caf\xe9\n", "a.csv: line 31: file must be UTF-8 text, got byte 0xe9; save it as UTF-8"),
        (text().encode("utf-16"), "a.csv: line 1: file must be UTF-8 text, got byte 0xff; save it as UTF-8"),
        (text().encode() + b"\0\n", "a.csv: line 31: text must be free of null characters, got one as character 1"),
        (b"name,age\nAda,36\n", "a.csv: line 1: first line must be '# planner/samples 1', got 'name,age'; write"),
        (b"# planner/samples 99\nkind,time_s\n", "a.csv: line 1: version must be at most 1, got 99; the file is newer"),
        (text().replace(",", ";").encode(), "a.csv: line 2: columns must be separated by commas, got 'kind;direction;"),
        (
            text().replace("time_s", "time_us").encode(),
            "a.csv: line 2: column must be a known one, got 'time_us'; times",
        ),
        (text().encode()[:20], "a.csv: header must follow the comments"),
        (b"# planner/samples 1\nkind,time_s\n", "a.csv: rows must follow the header, got none in this folder"),
    ],
    ids=[
        "empty",
        "binary",
        "latin",
        "utf-16",
        "null",
        "other",
        "newer",
        "semicolons",
        "microseconds",
        "cut",
        "no rows",
    ],
)
def test_a_wrong_file_is_exit_3(fit: Fit, content: bytes, sentence: str) -> None:
    code, err = fit({"a.csv": content})
    assert code == 3
    assert re.sub(r"(?<=a.csv: )line 1: (?=header)", "", err).startswith(f"planner: {sentence}")


def test_a_file_that_holds_no_samples_is_named_among_others(fit: Fit) -> None:
    code, err = fit({"a.csv": text(), "people.csv": "name,age\n"})
    assert (code, err.endswith("or move a file that holds no samples out of the folder\n")) == (3, True)
    assert err.startswith("planner: people.csv: line 1: ")


@pytest.mark.parametrize(("name", "factor"), [("milliseconds", 1e3), ("microseconds", 1e6)])
def test_another_unit_is_told_from_the_device(fit: Fit, name: str, factor: float) -> None:
    code, err = fit({"a.csv": text(), "b.csv": text(unit=factor)})
    assert code == 3
    assert err.startswith("planner: b.csv: time_s must be in seconds, got times that are ")
    assert err.endswith(f"(median of 28 rows): looks like {name}; divide the column by {factor:,.0f}\n")


def test_times_faster_than_the_device_are_refused(fit: Fit) -> None:
    code, err = fit({"a.csv": text(unit=1e-3)})
    assert code == 3
    assert "rows more than 1.5 times faster than its peak rates: looks like times divided once too often" in err


def test_rows_that_contradict_each_other_are_named(fit: Fit) -> None:
    row = text().splitlines()[FIRST - 1]
    slower = with_cell(FIRST, "time_s", "7e-05").splitlines()[FIRST - 1]
    code, err = fit({"a.csv": text(), "b.csv": "\n".join([*text().splitlines()[:2], row, slower]) + "\n"})
    assert code == 3
    assert err.startswith("planner: b.csv: line 4: time_s of one call must agree within its spread, got 7e-05 s, but ")
    assert " s in b.csv: line 3; leave out the wrong row, or tell them apart in library or source\n" in err


def timed_by(factor: float, *lines: int, notes: str = "") -> str:
    """Return the text with the times of some lines multiplied; of all without any."""
    head, rest = text().splitlines()[: FIRST - 1], text().splitlines()[FIRST - 1 :]
    at = COLUMNS.index("time_s")
    for place, row in enumerate(rest):
        cells = row.split(",")
        if not lines or place + FIRST in lines:
            cells[at], cells[COLUMNS.index("notes")] = repr(float(cells[at]) * factor), notes
        rest[place] = ",".join(cells)
    return "\n".join([*head, *rest]) + "\n"


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (1e3, "as long as rows of kind gemm of like size{}: looks like milliseconds; divide {} alone by 1,000"),
        (
            1e-6,
            (
                "as short as rows of kind gemm of like size{}: looks like seconds divided by 1,000,000 once too often;"
                " multiply {} alone by 1,000,000"
            ),
        ),
    ],
)
def test_rows_of_another_unit_are_named(fit: Fit, factor: float, words: str) -> None:
    several = (" (and so a.csv: lines 5, 8 and 9)", "these 3 rows")
    for lines, said in (((5,), ("", "this row")), ((5, 8, 9), several)):
        code, err = fit({"a.csv": timed_by(factor, *lines)})
        assert code == 3
        assert err.startswith("planner: a.csv: line 5: time_s must be in seconds, got ")
        assert err.endswith(f" {words.format(*said)}\n")


@pytest.mark.parametrize(
    ("name", "factor", "change"),
    [("milliseconds", 1e3, "divide"), ("microseconds", 1e6, "divide"), ("once too often", 1e-6, "multiply")],
)
@pytest.mark.parametrize("lines", [range(3, 31, 3), range(3, 31, 2), [*range(3, 31, 4), *range(4, 31, 2)]])
def test_where_many_rows_are_of_another_unit_these_alone_are_to_be_changed(
    fit: Fit, name: str, factor: float, change: str, lines: Sequence[int]
) -> None:
    """A third of all rows, half of them, and more than half."""
    code, err = fit({"a.csv": timed_by(factor, *lines)})
    first = ", ".join(map(str, sorted(lines)[:4]))
    assert (code, err.startswith(f"planner: a.csv: line {lines[0]}: time_s must be in seconds, got ")) == (3, True)
    assert f"(and so a.csv: lines {first} and {len(lines) - 4} more): looks like" in err
    per_second = max(factor, 1 / factor)
    assert err.endswith(f"{name}; {change} these {len(lines)} rows alone by {per_second:,.0f}\n")


def test_where_few_rows_are_of_two_units_those_of_one_are_named(fit: Fit) -> None:
    few = "\n".join(timed_by(1e3, 3, 5, 6, 8).splitlines()[:9]) + "\n"
    code, err = fit({"a.csv": few})
    assert (code, err.startswith("planner: a.csv: lines 3, 5, 6 and 8: time_s must be in seconds, got 4 of 7 t")) == (
        3,
        True,
    )
    assert err.endswith(": looks like milliseconds; divide these rows alone by 1,000\n")


@pytest.mark.parametrize("factor", [20.0, 1e3])
def test_a_call_that_is_timed_twice_contradicts_itself_whatever_its_unit(fit: Fit, factor: float) -> None:
    whole = text() + timed_by(factor, 9).splitlines()[8] + "\n"
    code, err = fit({"a.csv": whole})
    assert (code, err.startswith("planner: a.csv: line 31: time_s of one call must agree within its spread")) == (
        3,
        True,
    )
    assert "s in a.csv: line 9; leave out the wrong row" in err


def test_a_disturbed_row_that_its_call_contradicts_is_left_out_whatever_its_unit(fit: Fit) -> None:
    """Off its like by 20 it is a row that another one of its call contradicts; of its own call by 1,000 too."""
    assert fit({"a.csv": text()})[0] == 0
    alone = CALIBRATION.read("fit.json").entries
    for factor in (20.0, 1e3):
        Path("fit.json").unlink()
        code, err = fit({"a.csv": text() + timed_by(factor, 9, notes=DISTURBED_NOTE).splitlines()[8] + "\n"})
        assert (code, "seconds" in err) == (0, False)
        assert CALIBRATION.read("fit.json").entries == alone


def test_a_row_off_by_no_unit_is_left_out_and_told(fit: Fit) -> None:
    code, err = fit({"a.csv": timed_by(3e4, 5)})
    assert code == 0
    assert err.startswith("planner: rejected: a.csv: line 5: time_s is ")
    assert err.endswith(" times as long as its like\n")
    assert next(one for one in CALIBRATION.read("fit.json").entries if one.kind == "gemm").samples == 11


@pytest.mark.parametrize("notes", ["", DISTURBED_NOTE])
def test_runs_of_one_machine_are_merged(fit: Fit, notes: str) -> None:
    """Though their times differ by more than the spread within each; what is left is the faster run."""
    assert fit({"a.csv": text()})[0] == 0
    alone = CALIBRATION.read("fit.json").entries
    Path("fit.json").unlink()
    Path("in/a.csv").unlink()
    code, err = fit({"a.csv": text(), "b.csv": timed_by(1.8, 4, 9, 12, notes=notes)})
    said = "b.csv: lines 4, 9 and 12: another row of its call differs by more than the spread, and is undisturbed or "
    assert (code, err.splitlines()[0]) == (0, f"planner: rejected: {said}faster")
    made = CALIBRATION.read("fit.json")
    assert (made.entries, made.environment["rejected"]) == (alone, f"3 of 56 rows: {said}faster")


@pytest.mark.parametrize("notes", ["", DISTURBED_NOTE])
def test_runs_that_differ_grossly_are_refused_and_disturbed_ones_as_such(fit: Fit, notes: str) -> None:
    code, err = fit({"a.csv": text(), "b.csv": timed_by(1.7, notes=notes)})
    assert code == 3
    assert err.startswith("planner: b.csv: line 19: times of one call must be alike in all files, got ")
    said = "(of 28 calls in both 0 are 3 times or more apart, and one file takes 1.70 times as long in the median); "
    noise = f"b.csv: line 19 was {DISTURBED_NOTE}, as 100% of the rows of b.csv were: leave that file out, or"
    end = f"{noise} calibrate again on a quiet machine" if notes else "fit such files apart"
    assert err.endswith(f"{said}{end}\n")


def test_a_file_of_disturbed_rows_alone_is_fitted_and_told(fit: Fit) -> None:
    said = "100% of the convolutions and products were measured while the machine was disturbed; run it again when "
    assert fit({"a.csv": timed_by(1.0, notes=DISTURBED_NOTE)}) == (0, f"planner: {said}it is quiet\n")
    made = CALIBRATION.read("fit.json")
    assert next(one for one in made.entries if one.kind == "gemm").samples == 12
    assert f"{said}it is quiet" in made.warnings


def test_a_file_of_other_disturbed_rows_is_told(fit: Fit) -> None:
    lines = timed_by(1.0, notes=DISTURBED_NOTE).splitlines(keepends=True)
    code, err = fit({"a.csv": "".join(line for line in lines if not line.startswith("gemm"))})
    assert (code, err.startswith("planner: 100% of the rows were measured while ")) == (0, True)


@pytest.mark.parametrize("rows", [1, 3])
def test_few_disturbed_rows_are_too_few(fit: Fit, rows: int) -> None:
    few = timed_by(1.0, notes=DISTURBED_NOTE).splitlines()[: FIRST - 1 + rows]
    code, err = fit({"a.csv": "\n".join(few) + "\n"})
    assert (code, f"got {rows} rows (gemm forward fp32: {rows} rows, 6 needed)" in err) == (5, True)


def test_repeated_rows_are_told_and_fitted_once(fit: Fit) -> None:
    assert fit({"a.csv": text(), "b.csv": text()}) == (
        0,
        "planner: 28 of 56 rows time a call again; the median of each call is fitted\n",
    )
    assert next(one for one in CALIBRATION.read("fit.json").entries if one.kind == "gemm").samples == 12


def test_rejected_rows_are_told_with_the_reason_and_recorded(fit: Fit, run: Run) -> None:
    said = "a.csv: line 5: m must be given and at least 1, got nan"
    assert fit({"a.csv": with_cell(5, "m", "")}) == (0, f"planner: rejected: {said}\n")
    made = CALIBRATION.read("fit.json")
    assert (made.environment, made.warnings) == ({"rejected": f"1 of 28 rows: {said}"}, ())
    shown = " ".join(run("show", "calibrations", "fit.json")[1].split())
    assert f"rejected 1 of 28 rows: {said}" in shown


def test_nothing_is_recorded_where_nothing_is_rejected(fit: Fit) -> None:
    assert fit({"a.csv": text()}) == (0, "")
    assert CALIBRATION.read("fit.json").environment == {}


def test_rows_rejected_for_any_reason_are_told_alike(fit: Fit) -> None:
    """Without a size, off their course, contradicted by another run; a calibration holds the first three reasons."""
    first = timed_by(3e4, 5).replace("\n", "\n# rejected: 2 rows by hand\n", 1).replace("256,128,256,", "256,128,,", 1)
    second = timed_by(1.8, 9, 12).replace("1024,512,1024,", "1024,512,,", 1).replace("1024,2048,1024", "1024,,1024", 1)
    code, err = fit({"a.csv": first, "b.csv": second})
    *lots, again = err.splitlines()
    first, second, third, fourth = (one.removeprefix("planner: rejected: ") for one in lots)
    assert (code, again.startswith("planner: 22 of 50 rows time a call again")) == (0, True)
    assert first == "a.csv: line 7; b.csv: line 10: k must be given and at least 1, got nan"
    assert second == "b.csv: line 11: n must be given and at least 1, got nan"
    assert re.fullmatch(r"a\.csv: line 6: time_s is 0\.\d+ s, [\d,]+ times as long as its like", third)
    assert fourth.startswith("b.csv: lines 9 and 12: another row of its call differs by more than the spread")
    said = f"2 rows by hand; 6 of 56 rows: {first}; {second}; {third}; 2 more rows, for other reasons"
    assert CALIBRATION.read("fit.json").environment["rejected"] == said


def test_a_file_of_rejected_rows_alone_is_too_few(fit: Fit) -> None:
    lines = with_cell(3, "m", "").splitlines()[:3]
    code, err = fit({"a.csv": "\n".join(lines) + "\n"}, several_lines=True)
    told, refused = err.splitlines()
    assert (code, told) == (5, "planner: rejected: a.csv: line 3: m must be given and at least 1, got nan")
    assert refused.startswith("planner: samples must hold enough usable rows of one kind, got 0 rows")


def test_samples_of_another_device_are_refused(fit: Fit) -> None:
    code, err = fit({"a.csv": text(), "b.csv": text("p40")})
    rule = f"device must be '{V100}', as in a.csv: line 3, got 'p40'; fit samples of each device apart"
    assert (code, err) == (3, f"planner: b.csv: line 3: {rule}\n")
    code, err = fit({"a.csv": text(), "b.csv": text("")})
    assert (code, err.startswith("planner: b.csv: line 3: device must be given in every row, got nothing; ")) == (
        3,
        True,
    )


@pytest.mark.parametrize(
    ("device", "remedy"),
    [("v100-sxm2-61gb", "did you mean 'v100-sxm2-"), ("mine", "'planner show accelerators' lists")],
)
def test_an_unknown_device_is_refused(fit: Fit, device: str, remedy: str) -> None:
    code, err = fit({"a.csv": text(device)})
    assert code == 3
    assert err.startswith(f"planner: a.csv: line 3: device must be a known accelerator, got {device!r}; {remedy}")


def test_samples_of_another_device_than_the_name_says_are_refused(fit: Fit) -> None:
    code, err = fit({"a.csv": text()}, "--name", "p40")
    rule = f"--name must be the name of the samples' device, {V100}, or that of no device, got 'p40'"
    assert (code, err) == (2, f"planner: {rule}; these are no samples of p40\n")


@pytest.mark.parametrize("name", ["-x", "..", ".hidden", "a" * 101])
def test_a_name_that_makes_no_good_file_name_is_refused(fit: Fit, name: str) -> None:
    code, err = fit({"a.csv": text()}, f"--name={name}")
    rule = "--name must be of at most 100 characters, the first a letter or digit"
    assert (code, err) == (2, f"planner: {rule}, got {name!r}\n")


def test_a_long_name_is_a_file_of_that_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text(text())
    assert run("calibrate", "--samples", "in", "--name", "a" * 100)[0] == 0
    assert [path.name[16:] for path in catalog.own_calibrations_folder().iterdir()] == ["a" * 100 + ".json"]


def test_samples_of_unlike_circumstances_are_not_mixed(fit: Fit) -> None:
    files = {f"{cuda}.csv": text(circumstances={"cuda": cuda}) for cuda in ("11", "12")}
    rule = "circumstance must be '11', as in 11.csv, got '12'; fit files of unlike circumstances apart"
    assert fit(files) == (3, f"planner: 12.csv: cuda: {rule}\n")


def test_too_few_rows_say_which_kernels_are_missing(fit: Fit) -> None:
    code, err = fit({"a.csv": "\n".join(text().splitlines()[:5]) + "\n"})
    assert code == 5
    assert "got 3 rows (gemm forward fp32: 3 rows, 6 needed)" in err
