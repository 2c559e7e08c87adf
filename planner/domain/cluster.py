"""A cluster: nodes of accelerators, of one kind or several, the links between them, storage and price. SI units."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from planner.domain.arrays import check_count, check_not_negative, check_positive, frozen_map
from planner.domain.keys import Key
from planner.domain.precision import PRECISIONS, precision_named
from planner.errors import ParameterError, UnknownNameError

LOCAL = "local"
"""Name of the cluster that a calibration alone implies: the node it was measured on."""
LINK_KINDS = frozenset(
    {
        "nvlink", "nvswitch", "xgmi", "pcie", "pcie3", "pcie4", "pcie5",
        "infiniband", "roce", "omnipath", "ethernet", "efa", "aries", "memory",
    }
)  # fmt: skip
"""Known kinds; another is allowed, gets the generic latency model, and a warning."""
CUDA_CORE_BYTES = 4
ROUNDING_TOLERANCE = 1.05
"""By what the rate of CUDA cores may exceed that of fp32 times the elements a core takes: data sheets round."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One schedulable device (a K80 board has two), or a CPU; what is empty is not known.

    Devices of one chip differ in clocks, memory and what is switched off.
    """

    name: Annotated[str, Key("name to refer to it", is_name=True)]
    kind: Annotated[str, Key("what it is", absent="gpu", choices=("gpu", "cpu"))]
    memory_bytes: Annotated[float, Key("device memory", name="memory_GiB", above=True)]
    memory_bytes_per_s: Annotated[float, Key("peak rate", name="memory_bandwidth_GBps", above=True)]
    peak_flop_per_s: Annotated[
        Mapping[str, float],
        Key(
            "dense peak rate by precision; one that is absent is one the device does not have",
            name="peak_TFLOPps",
            keys=PRECISIONS,
            above=True,
        ),
    ]
    multiprocessors: Annotated[int | None, Key("streaming multiprocessors, or cores")] = None
    source: Annotated[str, Key("where the figures come from")] = ""
    vendor: Annotated[str, Key("who made it", is_name=True)] = ""
    architecture: Annotated[str, Key("its generation", is_name=True)] = ""
    chip: Annotated[str, Key("its die, which it shares with sibling devices", is_name=True)] = ""

    def __post_init__(self) -> None:
        if self.kind not in ("gpu", "cpu"):
            raise ParameterError("accelerator kind", "gpu or cpu", self.kind)
        check_positive("memory", self.memory_bytes, "bytes")
        check_positive("memory bandwidth", self.memory_bytes_per_s, "byte/s")
        for name, rate in self.peak_flop_per_s.items():
            precision_named(name)
            check_positive(f"peak rate {name}", rate, "FLOP/s")
        object.__setattr__(self, "peak_flop_per_s", frozen_map(self.peak_flop_per_s))

    @property
    def widest_flop_per_s(self) -> float:
        """Peak rate in fp32; of a device without it, its lowest."""
        return self.peak_flop_per_s.get("fp32", min(self.peak_flop_per_s.values()))

    @property
    def ridges(self) -> dict[str, float]:
        """Ridge of the roofline of every precision [FLOP/byte]."""
        return {name: rate / self.memory_bytes_per_s for name, rate in self.peak_flop_per_s.items()}

    def counted_bytes_per_s(self, precision: str) -> float:
        """Memory bandwidth for bytes as work counts them: of products in 8 bits 2 an element, of which 1 moves."""
        if precision not in PRECISIONS:
            return self.memory_bytes_per_s
        one = PRECISIONS[precision]
        return self.memory_bytes_per_s * (one.activation_bytes / one.weight_bytes if one.measured_only else 1)

    def has_matrix_units(self, precision: str) -> bool:
        """Tell by the peak rates whether matrix units (tensor cores) multiply in a precision.

        A CUDA core takes as many elements at a time as fit into its 4 bytes (halves: NVIDIA, Tesla P100 white paper;
        int8: DP4A), so a higher rate is not theirs. No core rounds to TF32: a device that has it has matrix units.
        """
        peaks = self.peak_flop_per_s
        if precision == "fp32" or not {"fp32", precision} <= peaks.keys():
            return False
        of_cores = peaks["fp32"] * CUDA_CORE_BYTES / precision_named(precision).weight_bytes
        return "tf32" in peaks or peaks[precision] > ROUNDING_TOLERANCE * of_cores


@dataclass(frozen=True, slots=True)
class Link:
    """A link: bandwidth one way (per GPU inside a node and to the host, per NIC between nodes) and latency.

    ``gpu_direct`` of None is taken as true.
    """

    kind: Annotated[
        str, Key("free text; known: nvlink, nvswitch, xgmi, pcie, pcie3, infiniband, ethernet, ...", is_name=True)
    ]
    bytes_per_s: float
    latency_s: float
    nics_per_node: Annotated[int, Key("network adapters of a node", most=1024)] = 1
    flow_bytes_per_s: Annotated[
        float | None, Key("most that a stream, as of a TCP connection, gets; absent: all", name="flow_GBps", above=True)
    ] = None
    pair_bytes_per_s: Annotated[
        float | None, Key("most of two nodes, both ways together; absent: all each way", name="pair_GBps", above=True)
    ] = None
    gpu_direct: Annotated[
        bool | None, Key("whether adapters read and write GPU memory themselves; absent: not known")
    ] = None
    in_network_reduction: Annotated[bool, Key("whether its switches add up all-reduce (NVLink SHARP, SHARP)")] = False

    def __post_init__(self) -> None:
        check_positive("bandwidth", self.bytes_per_s, "byte/s")
        check_not_negative("latency", self.latency_s, "s")
        check_count("nics_per_node", self.nics_per_node)
        for what in ("flow", "pair"):
            if (rate := getattr(self, f"{what}_bytes_per_s")) is not None:
                check_positive(what, rate, "byte/s")

    @property
    def stream_bytes_per_s(self) -> float:
        """The bandwidth that one stream of messages gets."""
        return min(self.bytes_per_s, self.flow_bytes_per_s or self.bytes_per_s)

    @property
    def pair_ratio(self) -> float:
        """By what times longer a byte takes where two nodes send to each other at once, at least 1."""
        return 1.0 if self.pair_bytes_per_s is None else max(1.0, 2 * self.stream_bytes_per_s / self.pair_bytes_per_s)


@dataclass(frozen=True, slots=True)
class Node:
    """A computer of the cluster."""

    gpus: Annotated[int, Key("devices of the node", most=4096)]
    accelerator: Annotated[Accelerator, Key("the device")]
    host_memory_bytes: Annotated[float | None, Key("memory of the host", name="host_memory_GiB", above=True)] = None
    cpu_threads: Annotated[int | None, Key("hardware threads of the host")] = None

    def __post_init__(self) -> None:
        check_count("gpus", self.gpus, most=4096)
        if self.host_memory_bytes is not None:
            check_positive("host_memory", self.host_memory_bytes, "bytes")
        if self.cpu_threads is not None:
            check_count("cpu_threads", self.cpu_threads)


@dataclass(frozen=True, slots=True)
class Storage:
    """Where samples are read from."""

    read_bytes_per_s: Annotated[float, Key("read rate", name="read_GBps", above=True)]
    shared: Annotated[bool, Key("true: of one server, divided by the nodes that read; false: of each node")] = False
    cache_bytes: Annotated[float, Key("cache of a node", name="cache_GiB")] = 0.0

    def __post_init__(self) -> None:
        check_positive("read", self.read_bytes_per_s, "byte/s")
        check_not_negative("cache", self.cache_bytes, "bytes")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal nodes and what joins them; None where nothing is known (then what needs it is refused by name)."""

    name: str
    nodes: int
    node: Node
    intra_node: Link | None = None
    inter_node: Link | None = None
    host: Link | None = None
    storage: Storage | None = None
    usd_per_gpu_hour: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_count("nodes", self.nodes, most=1_000_000)
        if self.usd_per_gpu_hour is not None and not (
            math.isfinite(self.usd_per_gpu_hour) and self.usd_per_gpu_hour >= 0
        ):
            raise ParameterError("usd_per_gpu_hour", "a price of at least 0", self.usd_per_gpu_hour)
        object.__setattr__(self, "sources", frozen_map(self.sources))


_NAME = re.compile(r"[^\s:=,+]+")


@dataclass(frozen=True, slots=True)
class GroupPart:
    """What the nodes of one group do in a plan: each of their devices takes sub-batch x accumulation samples a step."""

    name: Annotated[str, Key("name in the cluster's file")]
    nodes: Annotated[int, Key("computers of the group")]
    gpus_per_node: Annotated[int, Key("devices of each")]
    sub_batch: Annotated[int, Key("samples of one pass of its devices")]
    accumulation_steps: Annotated[int, Key("passes summed up before an update; absent: 1")] = 1

    def __post_init__(self) -> None:
        for what in ("nodes", "gpus_per_node", "sub_batch", "accumulation_steps"):
            check_count(f"{what} of group {self.name}", getattr(self, what))

    @property
    def gpus(self) -> int:
        """Accelerators of the group that take part."""
        return self.nodes * self.gpus_per_node

    @property
    def samples(self) -> int:
        """The group's samples of a mini-batch."""
        return self.gpus * self.sub_batch * self.accumulation_steps


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Equal nodes of a cluster that has others too.

    ``cluster``: the cluster as if it had these nodes alone, with the links that they have.
    """

    name: str
    cluster: Cluster

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ParameterError("the name of a node group", "without spaces, colons, commas, = and +", self.name)


@dataclass(frozen=True, slots=True)
class MixedCluster:
    """A cluster of at least two groups of nodes, with distinct names."""

    name: str
    groups: tuple[NodeGroup, ...]

    def __post_init__(self) -> None:
        names = [one.name for one in self.groups]
        if len(set(names)) < len(names):
            raise ParameterError("the names of node groups", "different", ", ".join(names))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the groups, in their order."""
        return tuple(one.name for one in self.groups)

    @property
    def accelerators(self) -> tuple[Accelerator, ...]:
        """What the nodes of each group compute on."""
        return tuple(one.cluster.node.accelerator for one in self.groups)

    def refusal(self, option: str) -> ParameterError:
        """Return what is wrong where equal nodes are needed; ``option``: what names the cluster."""
        rule = f"of one node group in this command, not of {' and '.join(self.names)}"
        remedy = "planner suggest and planner predict take several; for others give a group a file of its own"
        return ParameterError("--cluster", rule, option, remedy)

    def group(self, name: str) -> NodeGroup:
        """Return the group of a name."""
        match = next((one for one in self.groups if one.name == name), None)
        if match is None:
            raise UnknownNameError(f"node group of cluster {self.name}", name, self.names)
        return match

    def check(self, parts: Sequence[GroupPart]) -> None:
        """Raise ParameterError where a plan has a group twice, or more nodes of one than there are."""
        names = [part.name for part in parts]
        if len(set(names)) < len(names):
            raise ParameterError("--group", "given once for each group", ", ".join(names))
        for part in parts:
            cluster = self.group(part.name).cluster
            if part.nodes > cluster.nodes:
                raise ParameterError(f"nodes of group {part.name}", f"at most {cluster.nodes}", part.nodes)
            if part.gpus_per_node > cluster.node.gpus:
                most = f"at most the {cluster.node.gpus} of a node"
                raise ParameterError(f"GPUs of group {part.name}", most, part.gpus_per_node)
