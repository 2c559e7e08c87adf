"""Several sample files: circumstances that agree, and where each row stands."""

from pathlib import Path

import pytest

from planner.errors import InputFileError
from planner.formats.samples import SampleFiles, read_sample_files


def files(folder: Path, *comments: str) -> list[Path]:
    """Return files of a row each under comments."""
    made = []
    for at, lines in enumerate(comments):
        made.append(folder / f"{at}.csv")
        made[-1].write_text(f"# planner/samples 1\n{lines}kind,time_s\ngemm,{at + 1}\n")
    return made


def test_files_of_like_circumstances_are_joined(tmp_path: Path) -> None:
    run, other = "# threads: 1\n# source: here\n# load_average: 0.1\n", "# source: there\n# torch: 2\n# threads: 1\n"
    joined = read_sample_files(files(tmp_path, run, "", other, run)).samples
    assert joined.time_s.tolist() == [1, 2, 3, 4]
    known = {"threads": "1", "source": "here; there", "load_average": "0.1", "torch": "2"}
    assert dict(joined.circumstances) == known


def test_a_value_with_a_semicolon_is_joined_once(tmp_path: Path) -> None:
    line = "# source: one; two\n"
    joined = read_sample_files(files(tmp_path, line, line, line)).samples
    assert dict(joined.circumstances) == {"source": "one; two"}
    joined = read_sample_files(files(tmp_path, "# source: two\n", line, "# source: two; three\n")).samples
    assert dict(joined.circumstances) == {"source": "two; one; three"}


@pytest.mark.parametrize("key", ["device", "threads", "framework", "cudnn", "origin"])
def test_files_of_unlike_circumstances_are_refused(tmp_path: Path, key: str) -> None:
    paths = files(tmp_path, "", f"# {key}: one\n", f"# {key}: other\n")
    with pytest.raises(InputFileError) as caught:
        read_sample_files(paths)
    assert (caught.value.path, caught.value.where) == (str(paths[2]), key)
    assert f"must be 'one', as in {paths[1]}, got 'other'" in caught.value.problem


def test_rows_know_their_file_and_line(tmp_path: Path) -> None:
    paths = files(tmp_path, "", "# threads: 1\n")
    paths[1].write_text(paths[1].read_text() + "\ngemm,3\n")
    found = read_sample_files(paths)
    assert found.places == ((str(paths[0]), 3), (str(paths[1]), 4), (str(paths[1]), 6))
    assert found.where([0]) == f"{paths[0]}: line 3"
    assert found.where([2, 0, 1]) == f"{paths[0]}: line 3; {paths[1]}: lines 4 and 6"


def test_many_lines_are_counted(tmp_path: Path) -> None:
    samples = read_sample_files(files(tmp_path, "")).samples
    found = SampleFiles(samples, tuple(("a.csv", line) for line in range(3, 13)))
    assert found.where(range(10)) == "a.csv: lines 3, 4, 5, 6 and 6 more"
    assert found.where(range(3)) == "a.csv: lines 3, 4 and 5"
