"""A request for plans: every value with where it comes from, so that an answer can say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Generic, TypeVar

import numpy as np

from planner.domain.arrays import FloatArray, IntArray, check_count, check_positive, frozen_map
from planner.domain.axes import AXES
from planner.domain.calibration import Calibration
from planner.domain.cluster import Accelerator, Cluster
from planner.domain.configuration import Settings
from planner.domain.framework import Framework
from planner.domain.keys import ALWAYS, Key
from planner.domain.network import Network, layer_parameters
from planner.domain.prediction import Run
from planner.domain.samples import JPEG


@dataclass(frozen=True, slots=True)
class Dataset:
    """Samples of an epoch, as they are stored."""

    name: Annotated[str, Key("name to refer to it", is_name=True)]
    samples: Annotated[int, Key("samples of one epoch", most=10**13)]
    bytes_per_sample: Annotated[float, Key("mean size as stored (encoded)", unit="sample", above=True)]
    source: Annotated[str, Key("where the figures come from")] = ""
    encoding: Annotated[str, Key("of images that threads of a node decode; absent: not known", choices=(JPEG,))] = ""

    def __post_init__(self) -> None:
        check_count("samples", self.samples, most=10**13)
        check_positive("bytes_per_sample", self.bytes_per_sample, "bytes")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One alternative, as the user wrote it and as it acts.

    Attributes
    ----------
    text : empty: things as they are
    multipliers : mapping of term name to factor, applied to the seconds of a term, in every thread that has it
    link_values : mapping of (link, field) to SI value, such as ``("inter_node", "bytes_per_s"): 12.5e9``
    sub_batch_factor : applied to the largest sub-batch of fp32 plans, whose activations take as many fewer bytes a
        sample
    fp32_multipliers : mapping of term name to factor, applied besides in fp32 plans alone: what if they computed in
        fp16
    inter_node_multipliers : mapping of term name to factor, applied besides where a plan spans several nodes: what if
        the link between them were another
    kernel_factor, host_factor : applied to what kernels take on the device, and to the host time of their calls and of
        layers
    accelerator : in place of the cluster's; see :mod:`planner.sources.devices`
    """

    text: str = ""
    multipliers: Mapping[str, float] = field(default_factory=dict)
    link_values: Mapping[tuple[str, str], float] = field(default_factory=dict)
    sub_batch_factor: int = 1
    fp32_multipliers: Mapping[str, float] = field(default_factory=dict)
    inter_node_multipliers: Mapping[str, float] = field(default_factory=dict)
    accelerator: Accelerator | None = None
    kernel_factor: float = 1.0
    host_factor: float = 1.0

    def __post_init__(self) -> None:
        for name in ("multipliers", "fp32_multipliers", "inter_node_multipliers", "link_values"):
            object.__setattr__(self, name, frozen_map(getattr(self, name)))

    def factor(self, term: str, precision: str = "", nodes: IntArray | int = 1) -> FloatArray:
        """Return what the seconds of a term are multiplied by, of the shape of ``nodes``."""
        everywhere = self.multipliers.get(term, 1.0)
        if precision == "fp32":
            everywhere *= self.fp32_multipliers.get(term, 1.0)
        return np.where(np.greater(nodes, 1), everywhere * self.inter_node_multipliers.get(term, 1.0), everywhere)


NO_SCENARIO = Scenario()


T = TypeVar("T")
DEFAULT = "default"
"""Source of a value that nothing but the program chose."""


@dataclass(frozen=True, slots=True)
class Sourced(Generic[T]):
    """A value and its source: ``option``, ``planner.toml``, ``default request``, ``default``, ``network``, ..."""

    value: T
    source: str


@dataclass(frozen=True, slots=True)
class Subject:
    """What an answer is about, by name; all its configurations share it.

    Attributes
    ----------
    scenario : empty: things as they are
    network_option, cluster_option : what ``--network`` and ``--cluster`` take, a file where it has one; empty: its name
    parameters, trained_parameters : where some layers are frozen; else 0
    """

    network: Annotated[str, Key("network that is trained")]
    cluster: Annotated[str, Key("cluster that it is trained on")]
    scenario: Annotated[str, Key("what-if, as it was written; absent: things as they are")] = ""
    settings: Settings = Settings()  # noqa: RUF009 - frozen, so shared safely
    usd_per_gpu_hour: Annotated[float | None, Key("price of a device; absent: not known", unit="price")] = None
    device: Annotated[str, Key("what the cluster computes on", absent=ALWAYS, choices=("GPU", "CPU"))] = "GPU"
    network_option: str = ""
    cluster_option: str = ""
    layers: Annotated[int, Key("blocks of the network; absent: it has none")] = 0
    tokens: Annotated[int, Key("tokens of a sample; absent: no language model", name="tokens_per_sample")] = 0
    parameters: Annotated[int, Key("of the network; absent: all are trained", most=10**13)] = 0
    trained_parameters: Annotated[int, Key("those of them that are trained; absent: all are", most=10**13)] = 0

    def trained_in(self, framework: Framework) -> Subject:
        """Return the same in a framework."""
        return replace(self, settings=self.settings.trained_in(framework))


@dataclass(frozen=True, slots=True)
class Problem:
    """What every candidate is evaluated on: all objects resolved, no names left.

    Attributes
    ----------
    calibrations : in order of precedence: those the user named, this machine's own, bundled by cluster, bundled by
        accelerator
    explicit_calibration : whether nothing else may serve; of specifications only kernels whose work is bytes then do
    """

    network: Network
    dataset: Dataset | None
    cluster: Cluster
    calibrations: tuple[Calibration, ...]
    explicit_calibration: bool = False
    settings: Settings = Settings()  # noqa: RUF009 - frozen, so shared safely
    scenario: Scenario = NO_SCENARIO

    @property
    def subject(self) -> Subject:
        """What it is about, by name."""
        cluster = self.cluster
        device = cluster.node.accelerator.kind.upper()
        price, tokens = cluster.usd_per_gpu_hour, self.network.tokens
        names = self.network.name, cluster.name, self.scenario.text
        subject = Subject(*names, self.settings, price, device, tokens=tokens)
        if not self.network.has_frozen:
            return subject
        each = layer_parameters(self.network)
        trained = each[[not layer.is_frozen for layer in self.network.layers]]
        return replace(subject, parameters=int(each.sum()), trained_parameters=int(trained.sum()))


@dataclass(frozen=True, slots=True)
class SpaceRequest:
    """What ``suggest`` searches over.

    Attributes
    ----------
    target_batch : wanted mini-batch [samples]
    tolerance_sync, tolerance_async : half-width of the window relative to the target, by mode
    takes_nearest : whether synchronous plans have the nearest mini-batch where none is in the window
    asked : mapping of axis to tuple, values to try; of an axis that is absent every one that the cluster, the memory
        and the window allow (every training precision with a usable sub-model; otherwise its default)
    top : plans to report
    parallelism : kinds to try; none: those that the network and the framework have by default
    choose : which of the tied plans is taken
    most : mapping of planner.domain.objective.LIMITS to float, what a plan may take at most
    run : the whole training
    deadline_s : in which it ends on the fewest nodes, then GPUs; None: plans of all are ranked
    allow_specified : whether precisions of 8 bits are candidates by the data sheet alone
    allow_lossy : whether those are that lose accuracy
    sensitivity : whether to say what a change of single inputs does to the best plan
    """

    target_batch: int
    tolerance_sync: float = 0.0
    tolerance_async: float = 0.25
    takes_nearest: bool = False
    asked: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    objective: str = "epoch-time"
    top: int = 5
    pareto: bool = False
    parallelism: tuple[str, ...] = ()
    choose: str = "fewest-gpus"
    most: Mapping[str, float] = field(default_factory=dict)
    run: Run = Run()  # noqa: RUF009 - frozen, so shared safely
    deadline_s: float | None = None
    allow_specified: bool = False
    allow_lossy: bool = False
    sensitivity: bool = False

    def __getitem__(self, axis: str) -> tuple[Any, ...] | None:
        """Return the values to try of an axis; None: all that are lawful."""
        return self.asked.get(axis)

    @property
    def modes(self) -> tuple[str, ...]:
        """Modes to try."""
        return self.asked.get("mode", ("sync",))

    def changed(self, **values: Any) -> SpaceRequest:
        """Return the request with other values of axes, by name, None for all that are lawful, and of fields."""
        axes = {axis.name: values.pop(axis.name) for axis in AXES if axis.name in values}
        asked = {name: one for name, one in {**self.asked, **axes}.items() if one is not None}
        return replace(self, asked=asked, **values)

    def tolerance(self, mode: str) -> float:
        """Return the half-width of the window relative to the target for a mode."""
        return self.tolerance_async if mode == "async" else self.tolerance_sync

    def window(self, mode: str) -> tuple[float, float]:
        """Return the least and largest accepted mini-batch [samples] for a mode."""
        tolerance = self.tolerance(mode)
        return (self.target_batch * (1 - tolerance), self.target_batch * (1 + tolerance))
