"""Measuring this machine for ``planner calibrate``: the device, a progress bar, what is kept when interrupted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from planner.cli.streams import note
from planner.errors import MissingPackageError, ParameterError
from planner.probes.calibrate import Measurement, Progress, measure_cpu
from planner.probes.torch_package import import_torch
from planner.report.printing import console

__all__ = ["check_device", "measured"]


def check_device(device: str) -> None:
    """Refuse a device that this machine does not have, or that cannot be measured yet."""
    if device == "cpu":
        return
    if not import_torch().cuda.is_available():
        raise MissingPackageError(
            f"--device must be a device that PyTorch sees, got {device!r} without CUDA; use --device cpu"
        )
    raise ParameterError("--device", "cpu, the only device that can be measured yet", device)


def measured(budget_s: float, partial: Path) -> Measurement:
    """Return the measurements of this CPU, going on from ``partial`` where it holds some."""
    with _progress(budget_s) as progress:
        return measure_cpu(budget_s, resume=partial, progress=progress)


@contextmanager
def _progress(budget_s: float) -> Iterator[Callable[[Progress], None]]:
    """Give a function that shows how far a run is: a bar on a terminal, a sentence before it elsewhere."""
    if not sys.stderr.isatty():
        note(f"measuring this CPU for {budget_s:.0f} s")
        yield lambda _: None
        return
    from rich.progress import BarColumn, TextColumn  # noqa: PLC0415 - heavy, and only a terminal needs it
    from rich.progress import Progress as Bars  # noqa: PLC0415 - as above

    columns = (TextColumn("measuring"), BarColumn(), TextColumn("{task.fields[state]}"))
    with Bars(*columns, console=console(sys.stderr), transient=True) as bars:
        task = bars.add_task("measuring", total=budget_s, state="starting")

        def show(now: Progress) -> None:
            disturbed = f", {now.disturbed} disturbed" if now.disturbed else ""
            state = f"{now.elapsed_s:.0f} of {now.budget_s:.0f} s, {now.done}/{now.total} points{disturbed}"
            bars.update(task, completed=now.elapsed_s, state=state)

        yield show
