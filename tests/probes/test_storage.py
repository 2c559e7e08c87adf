"""Reads of a file on a disk that takes as long as it is told to, and of a real one."""

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from planner.domain.samples import Samples
from planner.fitting.calibration import fit_input
from planner.probes import inputs as storage
from planner.probes.inputs import measure_storage, processor_wait_s, resident_share

MIB = 2**20
PAGE = 4096


class Usage(NamedTuple):
    """What a disk has free."""

    free: int


class FakeDisk:
    """Clock and reads: a cold page range costs a latency and its bytes, one that was read before a tenth of both."""

    def __init__(self, latency_s: float = 2e-4, bytes_per_s: float = 5e8, cached: float = 0.1) -> None:
        self.now, self.latency_s, self.bytes_per_s, self.cached = 0.0, latency_s, bytes_per_s, cached
        self.held: set[int] = set()
        self.reads: list[tuple[int, int]] = []

    def clock(self) -> float:
        """Return the time [s]."""
        return self.now

    def preadv(self, _file: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Read at an offset, as os.preadv does."""
        size = len(buffers[0])
        pages = set(range(offset // PAGE, (offset + size) // PAGE))
        factor = self.cached if pages <= self.held else 1.0
        self.held |= pages
        self.reads.append((offset, size))
        self.now += factor * (self.latency_s + size / self.bytes_per_s)
        return size


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FakeDisk:
    made = FakeDisk()
    monkeypatch.setattr(os, "preadv", made.preadv)
    monkeypatch.setattr(storage, "resident_share", lambda *_: 0.0)
    monkeypatch.setattr(storage, "processor_wait_s", lambda: 0.0)
    return made


def test_latency_and_bandwidth_are_found_cold_and_cached(disk: FakeDisk, tmp_path: Path) -> None:
    found = measure_storage(tmp_path, 10.0, most_bytes=64 * MIB, clock=disk.clock)
    assert found.warning == ""
    entries, _ = fit_input(Samples.from_rows(list(found.rows), {}))
    rates = {one.kind: (one.coefficients["samples"], one.coefficients["bytes"]) for one in entries}
    assert rates["load"] == pytest.approx((2e-4, 2e-9))
    assert rates["load_cached"] == pytest.approx((2e-5, 2e-10))
    assert list(tmp_path.iterdir()) == []


def test_no_cold_read_touches_what_another_read(disk: FakeDisk, tmp_path: Path) -> None:
    found = measure_storage(tmp_path, 10.0, most_bytes=32 * MIB, clock=disk.clock)
    again = sum(row["repeats"] for row in found.rows if row["kind"] == "load_cached")
    cold = disk.reads[:again]
    assert disk.reads[again:] == cold
    assert cold != sorted(cold)
    pages = [page for offset, size in cold for page in range(offset, offset + size, PAGE)]
    assert len(pages) == len(set(pages))
    assert max(pages) < 32 * MIB


def test_waiting_for_a_processor_is_not_the_disks(
    disk: FakeDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third of all time goes to other programs: rates are those of the disk alone, 1.5 times what the clock says."""
    monkeypatch.setattr(storage, "processor_wait_s", lambda: disk.now / 3)
    found = measure_storage(tmp_path, 10.0, most_bytes=64 * MIB, clock=disk.clock)
    entries, _ = fit_input(Samples.from_rows(list(found.rows), {}))
    assert {one.kind: one.coefficients["bytes"] for one in entries} == pytest.approx(
        {"load": 2e-9 / 1.5, "load_cached": 2e-10 / 1.5}
    )


def test_a_thread_that_computes_waits_for_no_longer_than_it_runs() -> None:
    start, waited = time.perf_counter(), processor_wait_s()
    while time.perf_counter() - start < 0.02:
        pass
    assert 0 <= processor_wait_s() - waited <= time.perf_counter() - start


def test_a_file_that_stays_in_the_cache_gives_cached_reads_alone(
    disk: FakeDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "resident_share", lambda *_: 0.75)
    found = measure_storage(tmp_path, 10.0, most_bytes=32 * MIB, clock=disk.clock)
    assert {row["kind"] for row in found.rows} == {"load_cached"}
    assert found.warning == (
        "cold reads could not be told from cached ones (75% of the file stayed in the cache of the system): "
        "only cached reads are recorded"
    )


def test_reads_as_quick_as_the_same_again_were_not_cold(disk: FakeDisk, tmp_path: Path) -> None:
    disk.cached = 0.95
    found = measure_storage(tmp_path, 10.0, most_bytes=32 * MIB, clock=disk.clock)
    assert {row["kind"] for row in found.rows} == {"load_cached"}
    assert "they took no longer than the same reads again" in found.warning


def test_reading_ends_by_the_clock(disk: FakeDisk, tmp_path: Path) -> None:
    disk.latency_s, disk.cached = 0.1, 1.0
    found = measure_storage(tmp_path, 2.0, most_bytes=32 * MIB, clock=disk.clock)
    assert 0.9 * 2.0 <= disk.now <= 2.0 + 0.11
    assert all(row["repeats"] >= storage.LEAST_READS for row in found.rows)


def test_a_disk_without_room_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100 * MIB))
    found = measure_storage(tmp_path, 10.0)
    assert found.rows == ()
    assert found.warning == f"storage was not measured: {tmp_path} has 100 MiB free, 1 GiB wanted"


def test_a_disk_that_writes_too_slowly_is_said(tmp_path: Path) -> None:
    times = iter(range(1000))
    found = measure_storage(tmp_path, 5.0, clock=lambda: float(next(times)))
    assert found.rows == ()
    assert found.warning.startswith("storage was not measured: too little time, ")


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    found = measure_storage(tmp_path / "none", 1.0)
    assert found.rows == ()
    assert found.warning == f"storage was not measured: {tmp_path / 'none'}: No such file or directory"


def test_nothing_is_left_when_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "preadv", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure_storage(tmp_path, 10.0, most_bytes=32 * MIB)
    assert list(tmp_path.iterdir()) == []


def test_pages_just_written_are_held(tmp_path: Path) -> None:
    path = tmp_path / "some"
    path.write_bytes(bytes(MIB + 1))
    with path.open("r+b") as file:
        assert resident_share(file.fileno(), MIB + 1) in (None, 1.0)


@pytest.mark.live
def test_this_disk(tmp_path: Path) -> None:
    """Cold reads take longer than cached ones, or the probe says that it cannot tell; larger reads take longer."""
    found = measure_storage(tmp_path, 3.0, most_bytes=48 * MIB)
    times = {(row["kind"], row["bytes"]): row["time_s"] for row in found.rows}
    small, large = storage.SAMPLE_BYTES[0], storage.SAMPLE_BYTES[-1]
    assert 0 < times["load_cached", small] < times["load_cached", large] < 0.1
    if not found.warning:
        assert all(times["load", size] > times["load_cached", size] for size in storage.SAMPLE_BYTES)
    assert list(tmp_path.iterdir()) == []
