"""What a framework adds to its kernels, and which entry of the calibrations says so.

An entry that says nothing of the exponent of the composition leaves it at the value of the network's family: the longer
of host and GPU hides part of the other in convolutional networks, and most of it in those with attention.

The accelerator's own entries go before those of any accelerator, which were pooled over GPUs; of each those of the
framework before generic ones, and of these those of the asked precision before those of any. What a switch changes is
counted, and runs with other switches told what one fit says of a program: there a framework without its switches is the
same. Of what was measured with the one and is asked of the other, that is said. Coefficients that were fitted on top of
specified kernels make up for the errors of these and serve nothing else (library ``specified``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from planner.domain.calibration import END_TO_END, Entry
from planner.domain.framework import GENERIC, framework_parts
from planner.domain.kernels import MATRIX_KINDS
from planner.domain.network import Network
from planner.errors import ParameterError
from planner.numbers import constant, constants
from planner.sources.source import Source, source_of

__all__ = [
    "ASSUMED_HOST_S_PER_CALL",
    "ASSUMED_SCALE_DEVIATION",
    "DATASHEET_LIBRARY",
    "DEVIATION_SETTING",
    "EXPONENTS",
    "FORMULA",
    "MORE_REPLICA_WAIT",
    "REPLICA_WAIT",
    "SPLIT_DATASHEET_LIBRARY",
    "SPLIT_LIBRARY",
    "Overheads",
    "assumed_overheads",
    "check_overheads",
    "exponent_name",
    "find_overheads",
]

DATASHEET_LIBRARY = "specified"
"""Library of overheads that were fitted on top of specified kernels."""
SPLIT_LIBRARY = "split"
SPLIT_DATASHEET_LIBRARY = "split-specified"
"""Libraries of overheads that were fitted to runs which split transformers: they go before others of a framework, for
all plans of transformers, as plans of one network are compared with each other."""
ASSUMED_HOST_S_PER_CALL = constant("overheads.host_s_per_call")
"""Host time of a kernel call on a GPU where no framework was measured (docs/numbers.md).

Not added to kernels that are specified: their launch is stated with them."""
DEVIATION_SETTING = "deviation"
"""Setting of what is assumed: its relative standard deviation."""
ASSUMED_SCALE_DEVIATION = constants("overheads.scale_deviation")
"""Of a stage's kernels at their full speed where no framework was measured, by kind of device (docs/numbers.md)."""
REPLICA_WAIT = "replica_wait"
"""Coefficient, and setting of the collectives of a cluster whose runs told it of whatever program."""
MORE_REPLICA_WAIT = "more_replica_wait"
"""Setting of the collectives of a cluster: what its runs add to the wait of each program, above or below 0."""
NEUTRAL_COEFFICIENTS: Mapping[str, float] = {
    "kernel_scale": 1.0,
    "matrix_scale": 1.0,
    "host_s_per_call": 0.0,
    "host_s_per_layer": 0.0,
    REPLICA_WAIT: 0.0,
}
"""Coefficient -> the value at which it changes nothing."""
EXPONENTS = constants("overheads.exponents")
"""Exponent of the composition where nothing tells it, of networks with attention and of all others (docs/numbers.md).
"""
ATTENTION = "exponent_attention"
EXACT, OF_FRAMEWORK, WITHOUT_SWITCHES, GENERIC_MATCH = "exact", "framework", "without switches", "generic"
MATCHES = (
    (EXACT, False),
    (OF_FRAMEWORK, False),
    (WITHOUT_SWITCHES, False),
    (OF_FRAMEWORK, True),
    (GENERIC_MATCH, False),
)
"""How an entry's framework matches, and whether it is of another version; best first."""
FORMULA = (
    "a step takes ((kernel_scale·(matrix_scale·M + K))^exponent + (host_s_per_call·calls + host_s_per_layer·layers)"
    "^exponent)^(1/exponent), M = seconds of its products, convolutions and attention, K = of its other kernels, of "
    "which forward, backward and update have shares by their seconds; on several GPUs 1 + replica_wait times that; a "
    "scale that is not stated is 1, a time or share is 0; exponent_attention is that of networks with attention"
)
"""What the coefficients of an entry stand for, in a line."""


@dataclass(frozen=True, slots=True)
class Overheads:
    """What a framework adds: a step takes (GPU^exponent + host^exponent)^(1/exponent).

    Attributes
    ----------
    kernel_scale, matrix_scale : float
        GPU is kernel_scale x the sum of the step's kernels, those of MATRIX_KINDS times matrix_scale first.
    host_s_per_call, host_s_per_layer : float
        host is host_s_per_call x calls + host_s_per_layer x layers [s].
    exponent : float
        1 adds, a large one takes the longer.
    replica_wait : float
        Share by which the compute of a step takes longer once several replicas wait for the slowest of them.
    source : Source
    matched : str
        How the entry was found: ``exact``, ``framework``, ``without switches``, ``generic`` or ``assumed``.
    pooled : bool
        The entry is one of any accelerator.
    scale_doubt : Entry or None
        What kernels at their full speed are unsure by, in its setting ``deviation``; None where a fit tells.
    """

    kernel_scale: float
    matrix_scale: float
    host_s_per_call: float
    host_s_per_layer: float
    exponent: float
    replica_wait: float
    source: Source
    matched: str
    pooled: bool = False
    scale_doubt: Entry | None = None

    def scale_of(self, kind: str) -> float:
        """Return by what the times of a kernel kind are multiplied."""
        return self.kernel_scale * (self.matrix_scale if kind in MATRIX_KINDS else 1.0)

    def scaled(self, kernels: float, host: float) -> Overheads:
        """Return the same with kernels, and host time, multiplied."""
        return replace(
            self,
            kernel_scale=self.kernel_scale * kernels,
            host_s_per_call=self.host_s_per_call * host,
            host_s_per_layer=self.host_s_per_layer * host,
        )

    def waiting(self, settings: Mapping[str, object]) -> Overheads:
        """Return the same with replicas that wait as runs on the cluster showed, of whose collectives the settings are.

        Those of plans that split a network have waits of their own.
        """
        whole, more = settings.get(REPLICA_WAIT), settings.get(MORE_REPLICA_WAIT)
        if self.source.entry.library in (SPLIT_LIBRARY, SPLIT_DATASHEET_LIBRARY):
            return self
        if isinstance(more, float):
            return replace(self, replica_wait=max(self.replica_wait + more, 0.0))
        return replace(self, replica_wait=whole) if isinstance(whole, float) else self

    @property
    def scales(self) -> bool:
        """Whether any kernel's time is multiplied by other than 1."""
        return self.kernel_scale != 1 or self.matrix_scale != 1


def check_overheads(entry: Entry) -> None:
    """Raise ParameterError where a coefficient of a framework is out of its nature: stages would take no time, or less.

    Exponents below 1 make two that overlap longer than both one after the other.
    """
    for name, value in entry.coefficients.items():
        if name in EXPONENTS and value < 1:
            raise ParameterError(f"coefficient {name}", "at least 1", value)
        if value < 0 or (name.endswith("_scale") and not value):
            raise ParameterError(f"coefficient {name}", "above 0" if name.endswith("_scale") else "at least 0", value)


def exponent_name(network: Network) -> str:
    """Return the coefficient, one of EXPONENTS, that is the exponent of a network's family."""
    attends = any(layer.kind == "attention" for layer in network.layers)
    return "exponent_attention" if attends else "exponent"


def find_overheads(
    sources: Iterable[tuple[Source, bool]],
    framework: str,
    precision: str,
    *,
    on_specified: bool,
    exponent: str = "exponent",
    mode: str = "sync",
) -> Overheads | None:
    """Return the overheads of a framework, as asked for, of any version, or generic; None where there are none.

    Parameters
    ----------
    sources : (Source, whether it was pooled over accelerators), in the order of precedence
    framework : str
        Name, or ``name@version``.
    precision : str
    on_specified : bool
        Whether matrix kernels come from the specification.
    exponent : one of EXPONENTS
        Of the network's family.
    mode : one of MODES
        Entries of it go before those of any mode, these before those of the other.
    """
    library = DATASHEET_LIBRARY if on_specified else ""
    of_split = SPLIT_DATASHEET_LIBRARY if on_specified else SPLIT_LIBRARY
    libraries = (of_split, library, "") if exponent == ATTENTION else (library, "")
    best: tuple[tuple[int, ...], Source] | None = None
    for place, (source, pooled) in enumerate(sources):
        entry = source.entry
        match = _match(entry, framework)
        if match is None or entry.precision not in ("", precision) or entry.library not in libraries:
            continue
        at = (mode, "", entry.mode).index(entry.mode)
        is_other = int(entry.library != of_split or match == MATCHES[-1])
        of_library = libraries.index(entry.library)
        rank = (is_other, int(pooled), MATCHES.index(match), at, of_library, int(entry.precision != precision), place)
        if best is None or rank < best[0]:
            best = (rank, source)
    if best is None:
        return None
    matched, _ = MATCHES[best[0][2]]
    return _overheads(best[1], matched, exponent, EXPONENTS[exponent], pooled=bool(best[0][1]))


def _match(entry: Entry, framework: str) -> tuple[str, bool] | None:
    """Return how an entry's framework matches, one of MATCHES: of several versions one without a number goes first."""
    name, version, switches = framework_parts(framework)
    of_program = entry.estimator == END_TO_END and entry.library not in (SPLIT_LIBRARY, SPLIT_DATASHEET_LIBRARY)
    entry_name, entry_version, entry_switches = framework_parts(entry.kind)
    if entry_name != name or entry_switches not in (switches, ()):
        return MATCHES[-1] if entry.kind == GENERIC.name else None
    if entry_switches != switches and not of_program:
        return WITHOUT_SWITCHES, False
    if entry_version == version:
        return EXACT, False
    return OF_FRAMEWORK, bool(entry_version)


def assumed_overheads(device_kind: str, exponent: str = "exponent") -> Overheads:
    """Return what is assumed where no framework was measured."""
    values = {
        **NEUTRAL_COEFFICIENTS,
        **EXPONENTS,
        "host_s_per_call": ASSUMED_HOST_S_PER_CALL if device_kind == "gpu" else 0.0,
    }
    entry = Entry(
        "overheads", "generic", "", "", "", "overheads", {}, values, fixed=tuple(values), origin="assumed",
        source="stated assumption: no framework was measured on this accelerator",
    )  # fmt: skip
    doubt = replace(
        entry, settings={DEVIATION_SETTING: ASSUMED_SCALE_DEVIATION[device_kind]}, coefficients={}, fixed=()
    )
    return _overheads(source_of(entry), "assumed", exponent, EXPONENTS[exponent], scale_doubt=doubt)


def _overheads(
    source: Source,
    matched: str,
    exponent: str,
    usual: float,
    *,
    pooled: bool = False,
    scale_doubt: Entry | None = None,
) -> Overheads:
    coefficients = source.entry.coefficients
    values = {name: coefficients.get(name, value) for name, value in NEUTRAL_COEFFICIENTS.items()}
    power = coefficients.get(exponent, coefficients.get("exponent", usual))
    return Overheads(**values, exponent=power, source=source, matched=matched, pooled=pooled, scale_doubt=scale_doubt)
