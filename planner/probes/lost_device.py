"""A device that fails while it is measured: told from a kernel that it does not have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from planner.errors import ParameterError
from planner.probes.gpu import why_no_kernel
from planner.probes.resume import append_failed, holds_measured
from planner.probes.torch_package import import_torch

__all__ = ["DeviceLostError", "check_computes", "first_line", "told_when_lost"]

NO_MEMORY = "it does not fit the memory"
RETRY, OTHER_DEVICE = "try the same command once more", "; if the device fails again, name another GPU or --device cpu"


class DeviceLostError(RuntimeError):
    """A device computes nothing any more in this process.

    Attributes
    ----------
    what : str
        The call or step that it failed in; empty: not known.
    """

    def __init__(self, message: str, what: str = "") -> None:
        super().__init__(message)
        self.what = what


def check_computes(device: str, error: RuntimeError, what: str = "") -> None:
    """Tell whether an error of PyTorch is over with the call that it came from, by a tiny kernel.

    Behind some errors of CUDA, such as an illegal address, all calls fail until the process ends (CUDA Runtime API,
    cudaErrorIllegalAddress); behind others, such as a launch with too much shared memory, none.

    Parameters
    ----------
    device : str
        As PyTorch names it.
    error : RuntimeError
    what : str
        The call or step that it came from.

    Raises
    ------
    DeviceLostError
        The device computes nothing any more.
    """
    torch = import_torch()
    if device != "cpu":
        with contextlib.suppress(RuntimeError):  # what is still to be said of earlier calls; the kernel decides
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
    if not _is_memory(error) and why_no_kernel(torch, device):
        raise DeviceLostError(first_line(error), what) from error


def first_line(error: RuntimeError) -> str:
    """Return what an error of PyTorch says, without the hints of CUDA and of its allocator behind that."""
    return NO_MEMORY if _is_memory(error) else str(error).partition("\n")[0]


def _is_memory(error: RuntimeError) -> bool:
    """Tell whether PyTorch's allocator found no memory: it called nothing that could lose the device."""
    return isinstance(error, import_torch().OutOfMemoryError)


@contextlib.contextmanager
def told_when_lost(device: str, resume: Path | None) -> Iterator[None]:
    """Say in a sentence that a device was lost meanwhile; what it failed in is left out where a file is continued.

    Raises
    ------
    ParameterError
        It was lost.
    """
    try:
        try:
            yield
        except DeviceLostError:
            raise
        except RuntimeError as error:
            check_computes(device, error)
            raise
    except DeviceLostError as lost:
        where, remedy = f" in {lost.what}" if lost.what else "", RETRY + (OTHER_DEVICE if resume else "")
        without = " without it" if lost.what else ""
        if resume and holds_measured(resume):
            remedy = f"what was measured is kept in {resume}; the same command goes on from there{without}"
        elif resume and lost.what:
            remedy = f"the same command begins again{without}"
        if resume and lost.what:
            append_failed(resume, lost.what)
        rule, value = "a device that goes on computing", f"{device}, which failed{where}: {lost}"
        raise ParameterError("--device", rule, value, remedy) from lost
