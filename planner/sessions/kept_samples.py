"""Everything that ``planner calibrate`` measures, as a samples file beside the calibration, and back again.

Rows of kernels are as they are fitted; a training step is a row of kind ``step`` that names its network; circumstance
``node`` is what was measured on, so that the file gives the calibration on any machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from planner import catalog
from planner.domain.cluster import Node
from planner.domain.network import Network
from planner.domain.samples import Samples
from planner.domain.training import STEP, TimedStep
from planner.errors import PlannerError
from planner.formats.calibration import parse_node, text_of_node
from planner.formats.samples import write_samples
from planner.probes.calibrate import Measurement
from planner.probes.steps import probe_networks
from planner.sessions.values import Say

__all__ = ["NODE", "node_of", "samples_path", "samples_text", "steps_of"]

NODE = "node"
SUFFIX = ".samples.csv"


def samples_path(calibration: Path) -> Path:
    """Return the file beside that of a calibration: ``mine.samples.csv`` beside ``mine.json``."""
    return calibration.with_suffix(SUFFIX)


def samples_text(measurement: Measurement, source: str, date: str) -> str:
    """Return the samples file of a measurement, with its source and date."""
    rows: list[Mapping[str, Any]] = [
        {
            "kind": STEP,
            "precision": step.precision,
            "device": measurement.accelerator.name,
            "library": "pytorch",
            "call": step.network.name,
            "sub_batch": step.sub_batch,
            "time_s": step.time_s,
            "spread_s": step.spread_s,
        }
        for step in measurement.steps
    ]
    circumstances = {"source": source, "date": date, NODE: text_of_node(measurement.node)}
    whole = measurement.samples.joined(Samples.from_rows(rows, {})) if rows else measurement.samples
    return write_samples(Samples(whole.text, whole.number, {**whole.circumstances, **circumstances}))


def node_of(samples: Samples, path: str) -> Node | None:
    """Return the node that samples were measured on, where their circumstances hold it."""
    text = samples.circumstances.get(NODE, "")
    return parse_node(text, path) if text else None


def steps_of(samples: Samples, say: Say) -> dict[int, TimedStep]:
    """Return the training steps among rows, by their position; ``say`` is told of networks that are not known."""
    at = np.flatnonzero(samples.text["kind"] == STEP)
    columns = (
        at, samples.text["call"][at], samples.number["sub_batch"][at], samples.time_s[at],
        samples.number["spread_s"][at], samples.text["precision"][at],
    )  # fmt: skip
    networks = {name: _network(name, say) for name in dict.fromkeys(columns[1].tolist())}
    steps = {}
    for row, name, sub_batch, time_s, spread_s, precision in zip(*(column.tolist() for column in columns), strict=True):
        network = networks[name]
        if network is not None and sub_batch >= 1:
            known_spread_s = 0.0 if np.isnan(spread_s) else spread_s
            steps[row] = TimedStep(network, int(sub_batch), time_s, known_spread_s, precision or "fp32")
    return steps


def _network(name: str, say: Say) -> Network | None:
    probe = {network.name: network for network in probe_networks("gpu")}
    if name in probe:
        return probe[name]
    try:
        return catalog.find_network(name)
    except PlannerError as error:
        say(f"rows of kind step of network {name!r} are left out: {error}")
        return None
