"""Make calibrations/NAME.json of every bundled GPU that nobody measured: its peak rates and assumed efficiencies.

    python -m validation.specify [FOLDER]

Nothing in them is measured; they serve where they are asked for by name. A GPU whose calibration is not of a
specification is left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from planner import catalog
from planner.costs.specified import specified_kernels
from planner.domain.calibration import Calibration
from planner.domain.cluster import Accelerator, Node
from planner.domain.samples import COMMAND
from planner.formats.calibration import read_calibration, write_calibration
from planner.formats.documents import write_file
from validation.command import existing_folder, finished, parser_of

__all__ = ["main", "specified_calibration", "unmeasured"]

CALIBRATIONS = Path(__file__).resolve().parent.parent / "calibrations"
WARNING = (
    "Nothing was measured: peak rates of the data sheet times assumed efficiencies, which missed published iteration "
    "times of three GPUs by 30 to 54 %."
)


def unmeasured(folder: Path = CALIBRATIONS) -> Iterator[Accelerator]:
    """Yield the bundled accelerators of which a folder has no calibration of their name, or a specified one."""
    for name in catalog.names("accelerators"):
        path = folder / f"{name}.json"
        if not path.is_file() or read_calibration(path).origin == "specified":
            yield catalog.find_accelerator(name)


def specified_calibration(accelerator: Accelerator) -> Calibration:
    """Return the calibration of an accelerator's data sheet, with a node of one such device.

    It warns of measured GPUs of the same chip, which serve where it is not asked for.
    """
    siblings = dict.fromkeys(one.name for one, _ in catalog.sibling_calibrations(accelerator, lambda *_: True))
    instead = (
        f"Kernels measured on the same chip ({', '.join(siblings)}) are not used, as this calibration was asked for by "
        f"name: a --cluster of {accelerator.name} without --calibration takes them, scaled."
    )
    return Calibration(
        accelerator.name,
        accelerator.name,
        tuple(specified_kernels(accelerator)),
        node=Node(1, accelerator),
        origin="specified",
        source=accelerator.source,
        environment={COMMAND: "python -m validation.specify"},
        warnings=(WARNING, instead) if siblings else (WARNING,),
    )


def main(arguments: list[str] | None = None) -> int:
    """Write the files; return the exit code."""
    parser = parser_of("validation.specify", __doc__)
    parser.add_argument(
        "folder", nargs="?", type=existing_folder, default=CALIBRATIONS, help="for the files; default: calibrations/"
    )
    given = parser.parse_args(arguments)
    return finished(lambda: _write(given.folder))


def _write(folder: Path) -> None:
    for accelerator in tuple(unmeasured(folder)):
        text = write_calibration(specified_calibration(accelerator))
        write_file(folder / f"{accelerator.name}.json", text, force=True)


if __name__ == "__main__":
    sys.exit(main())
