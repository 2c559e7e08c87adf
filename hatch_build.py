"""Puts the index of the bundled calibrations into the wheel."""

from __future__ import annotations

import json
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class IndexHook(BuildHookInterface):
    """Makes the index while the wheel is built; an editable install makes its own when it is first needed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the index to the files of the wheel."""
        if version == "editable":
            return
        root = Path(self.root)
        # By its path: planner itself needs packages that are not there while a wheel is built.
        spec = spec_from_file_location("bundled_index", root / "planner" / "catalog" / "bundled_index.py")
        if spec is None or spec.loader is None:
            raise ImportError(f"bundled_index.py must be below {root}")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        index = module.made_index(root / "calibrations", root / "planner" / "_bundled" / "accelerators", final=True)
        self.folder = tempfile.TemporaryDirectory()  # goes with the hook, when the wheel is written
        path = Path(self.folder.name) / "calibrations.index"
        path.write_text(json.dumps(index))
        build_data["force_include"][str(path)] = "planner/_bundled/calibrations.index"
