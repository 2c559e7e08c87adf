"""Cluster and accelerator files (TOML), and scenarios as typed: items joined by ``+``, alternatives by ``,``.

``fp16`` halves computation and doubles the largest sub-batch of fp32 plans; ``edr`` multiplies all-reduce by the
bandwidth of the inter-node link over 12.5 GB/s (4X EDR InfiniBand), latency included, in plans of several nodes (Oyama
et al., SPRINT slides, 2016); ``term*=x`` multiplies a term everywhere; ``link.key=value`` replaces a value of a link;
``gpu=NAME`` puts another accelerator into the nodes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.domain.cluster import LOCAL, Accelerator, Cluster, Link, MixedCluster, Node, NodeGroup, Storage
from planner.domain.request import Scenario
from planner.errors import NOTHING, InputFileError, ParameterError, UnknownNameError
from planner.formats.detected import known_of
from planner.formats.documents import LARGEST_DOCUMENTS, STANDARD_INPUT, Kind, place_of, read_text
from planner.formats.fields import Field, ListOf, MapOf, Name, Number, Table, Text, Whole, refuse, without_none
from planner.units import parse_quantity

_ACCELERATOR = Table.of(Accelerator)
ACCELERATOR = Kind("accelerator", "toml", _ACCELERATOR)
_INLINE_ACCELERATOR = Table.of(
    Accelerator,
    Field("name", Name(), "name to refer to it; the node's gpu unless given", None),
    make=dict,
    doc="the device of the nodes, where it is not a bundled one",
)
_NODE_FIELDS = (
    Field("gpus", Whole(most=4096), "devices of a node"),
    Field("gpu", Name(), "name of an accelerator or CPU; one that is not bundled is described in [accelerator]"),
    Field("host_memory_GiB", Number("GiB", above=True), "memory of the host", None, "host_memory_bytes"),
    Field("cpu_threads", Whole(), "hardware threads of the host", None),
)


_RATE = Number("GBps", above=True)
_NOT_BETWEEN = ("nics_per_node", "flow_bytes_per_s", "pair_bytes_per_s", "gpu_direct")


def _link(bandwidth: str, omit: tuple[str, ...] = (), **latency: Any) -> Table[Link]:
    return Table.of(
        Link,
        Field("bandwidth_GBps", _RATE, bandwidth, into="bytes_per_s"),
        Field("latency_us", Number("us"), "of one message", into="latency_s", **latency),
        omit=omit,
    )


_LINKS = Table(
    Field("intra_node", _link("per GPU, one direction", _NOT_BETWEEN), "between the GPUs of a node", None),
    Field("inter_node", _link("per NIC, one direction"), "between nodes", None),
    Field(
        "host",
        _link("host to device, per GPU", (*_NOT_BETWEEN, "in_network_reduction"), default=0.0),
        "between host and GPU",
        None,
    ),
    make=without_none,
    doc="what joins GPUs, nodes and hosts",
)
_GROUP = Table(
    Field("name", Name(), "name of the group"),
    Field("count", Whole(most=1_000_000), "nodes of the group"),
    *_NODE_FIELDS,
    Field("links", _LINKS, "those of its nodes; one that is absent: that of the cluster", None),
)
_LINK_NAMES = ("intra_node", "inter_node", "host")
_PRICE = Table(Field("usd_per_gpu_hour", Number("price"), "price of one GPU", None), doc="optional; never guessed")


@dataclass(frozen=True)
class _ClusterName(Name):
    """A name that ``--cluster`` cannot take for something else: this machine, a path, or standard input."""

    def read(self, value: Any, place: str) -> str:
        """Return the name."""
        name = Name.read(self, value, place)
        if name in (LOCAL, STANDARD_INPUT) or "/" in name or os.sep in name or name.endswith(".toml"):
            refuse(place, f"a name, neither {LOCAL!r}, which is this machine, nor a path", name)
        return name


_CLUSTER = Table(
    Field("name", _ClusterName(), "name to refer to it; neither 'local' nor a path"),
    Field("nodes", Whole(most=1_000_000), "nodes of the cluster; required beside [node]", None),
    Field("node", Table(*_NODE_FIELDS), "short for one group of nodes", None),
    Field("node_groups", ListOf(_GROUP, least=1), "groups of equal nodes", None),
    Field("accelerator", _INLINE_ACCELERATOR, "the device of the nodes, where it is not a bundled one", None),
    Field("links", _LINKS, "what joins GPUs, nodes and hosts", None),
    Field("storage", Table.of(Storage, doc="where samples are read from"), "where samples are read from", None),
    Field("price", _PRICE, "optional; never guessed", None),
    Field("sources", MapOf(Text()), "key -> where its figure comes from", {}),
)
CLUSTER = Kind("cluster", "toml", _CLUSTER)


def read_cluster(path: Path | str, find_accelerator: Callable[[str], Accelerator]) -> Cluster | MixedCluster:
    """Return the cluster of a file: a mixed one where it has several groups of nodes.

    ``find_accelerator``: name -> bundled accelerator, or UnknownNameError; asked only where the file describes none.
    """
    text = read_text(path, LARGEST_DOCUMENTS["toml"])
    try:
        keys = CLUSTER.parse(text, place_of(path))
    except InputFileError:
        if not (known := known_of(text, place_of(path))):
            raise
        remedy = f"'planner show clusters --detect --from {path} > mine.toml' writes one that asks for the rest"
        problem = f"file must also say which GPU exactly a node has, and its links, got {known}; {remedy}"
        raise InputFileError(place_of(path), problem) from None
    try:
        groups = _groups(keys)
        clusters = [_cluster(keys, one, several=len(groups) > 1, place=(path, find_accelerator)) for one in groups]
        if len(groups) == 1:
            return clusters[0]
        return MixedCluster(
            keys["name"], tuple(NodeGroup(one["name"], of) for one, of in zip(groups, clusters, strict=True))
        )
    except UnknownNameError as error:
        remedy = "describe it in [accelerator]"
        raise InputFileError(place_of(path), f"{error} To use another, {remedy}.", "node.gpu") from None
    except ParameterError as error:
        raise InputFileError(place_of(path), str(error)) from None


def _groups(keys: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    groups: Sequence[Mapping[str, Any]] | None = keys["node_groups"]
    if groups is None:
        for name in ("nodes", "node"):
            if keys[name] is None:
                raise ParameterError(name, "given, or [[node_groups]]", NOTHING)
        return [{**keys["node"], "count": keys["nodes"], "links": None}]
    if keys["node"] is not None or keys["nodes"] not in (None, sum(one["count"] for one in groups)):
        raise ParameterError("node_groups", "given instead of nodes and [node]", "both")
    return groups


def _cluster(
    keys: Mapping[str, Any],
    group: Mapping[str, Any],
    *,
    several: bool,
    place: tuple[Path | str, Callable[[str], Accelerator]],
) -> Cluster:
    """Return the cluster of one group's nodes; ``place``: path of the file, and what finds accelerators."""
    links, (path, find), nodes = keys["links"], place, group["count"] + several
    if group["links"]:
        links = {**(links or {}), **group["links"]}
    if links is None and nodes * group["gpus"] > 1:
        remedy = "copy those of a like cluster, as 'planner show clusters NAME --toml' prints them"
        problem = f"table must be given ({_LINKS.doc}), got nothing for {nodes} x {group['gpus']} GPUs; {remedy}"
        raise InputFileError(place_of(path), problem, "links")
    # Of several groups those are described inline whose device has that name.
    inline, gpu = keys["accelerator"], group["gpu"]
    if inline is None or (several and inline["name"] not in (None, gpu)):
        accelerator = find(gpu)
    elif several and inline["name"] is None:
        raise ParameterError("accelerator.name", "given where there are several node groups", NOTHING)
    elif inline["name"] not in (None, gpu):
        raise ParameterError("accelerator.name", f"that of node.gpu, {gpu!r}", inline["name"])
    else:
        accelerator = Accelerator(**{**inline, "name": gpu})
    return Cluster(
        name=f"{keys['name']}, group {group['name']}" if several else keys["name"], nodes=group["count"],
        node=Node(group["gpus"], accelerator, group["host_memory_bytes"], group["cpu_threads"]), **(links or {}),
        storage=keys["storage"], usd_per_gpu_hour=(keys["price"] or {}).get("usd_per_gpu_hour"),
        sources=keys["sources"],
    )  # fmt: skip


def write_cluster(cluster: Cluster) -> str:
    """Return the text of a cluster's file; the accelerator is described in it, so that it needs no other file."""
    links = {name: getattr(cluster, name) for name in _LINK_NAMES}
    node = {name: getattr(cluster.node, name) for name in ("gpus", "host_memory_bytes", "cpu_threads")}
    return CLUSTER.dump(
        {
            "name": cluster.name,
            "nodes": cluster.nodes,
            "node": node | {"gpu": cluster.node.accelerator.name},
            "accelerator": cluster.node.accelerator,
            "links": links if any(links.values()) else None,
            "storage": cluster.storage,
            "price": None if cluster.usd_per_gpu_hour is None else {"usd_per_gpu_hour": cluster.usd_per_gpu_hour},
            "sources": cluster.sources,
        }
    )


EDR_BYTES_PER_S = 12.5e9
TERM_NAMES = (
    "load_input", "host_to_device", "forward", "backward", "all_reduce", "update", "update_gradient", "sum_gradient",
    "update_weights", "tensor_messages", "context_messages", "expert_messages", "stage_messages", "replica_wait",
)  # fmt: skip
LINK_KEYS = {"bandwidth": ("bytes_per_s", "bandwidth"), "latency": ("latency_s", "latency")}
"""Key as typed -> field of the record, and dimension of the quantity."""
LARGEST_FACTOR = 1e6
GPU = "gpu"
_FORM_WORDS = (
    "fp16, edr, TERM*=FACTOR such as all_reduce*=0.5, LINK.KEY=VALUE such as inter_node.bandwidth=12.5GB/s, or gpu=NAME"
)
FindAccelerator = Callable[[str], Accelerator]


def parse_scenarios(text: str, cluster: Cluster, find_accelerator: FindAccelerator) -> tuple[Scenario, ...]:
    """Return the alternatives of a text, in its order, each once; ``find_accelerator``: name -> bundled accelerator.

    ParameterError or UnknownNameError where an item is unknown, impossible on this cluster, or contradicts another.
    """
    parts = dict.fromkeys(part.strip() for part in text.split(","))
    return tuple(_alternative(one, cluster, find_accelerator) for one in parts)


def _alternative(text: str, cluster: Cluster, find_accelerator: FindAccelerator) -> Scenario:
    multipliers: dict[str, float] = {}
    link_values: dict[tuple[str, str], float] = {}
    devices = []
    items = [item.strip() for item in text.split("+")]
    for at, item in enumerate(items):
        name, sign, value = item.partition("*=" if "*=" in item else "=")
        if item in items[:at]:
            raise ParameterError("--scenario", "made of different items", item)
        if item.partition("=")[0].strip() == GPU:
            devices.append(item)
        elif sign == "*=":
            term = _known_name(name, "term", TERM_NAMES, item)
            try:
                factor = float(value)
            except ValueError:
                factor = math.nan
            if not 1 / LARGEST_FACTOR <= factor <= LARGEST_FACTOR:
                rule = f"a number from {1 / LARGEST_FACTOR:g} to {LARGEST_FACTOR:g}"
                raise ParameterError(f"factor of --scenario item {item!r}", rule, value)
            multipliers[term] = multipliers.get(term, 1.0) * factor
        elif sign:
            link_name, _, key = name.partition(".")
            link = _known_name(link_name, "link", _LINK_NAMES, item)
            into, dimension = LINK_KEYS[_known_name(key, "key", tuple(LINK_KEYS), item)]
            if getattr(cluster, link) is None:
                raise ParameterError(
                    f"link of --scenario item {item!r}", f"one that cluster {cluster.name!r} has", link
                )
            number = parse_quantity(value.strip(), dimension, f"value of --scenario item {item!r}")
            if (link, into) in link_values:
                raise ParameterError("--scenario", "without two values for one key of a link", item)
            link_values[link, into] = number
        elif item not in ("fp16", "edr"):
            raise ParameterError("--scenario item", _FORM_WORDS, item)
    if "edr" in items and ("inter_node", "bytes_per_s") in link_values:
        raise ParameterError("--scenario", "either edr or inter_node.bandwidth, which it stands for", text)
    of_inter_node = {}
    if "edr" in items:
        if cluster.inter_node is None:
            raise ParameterError("--scenario item 'edr'", "used where nodes are linked", f"cluster {cluster.name!r}")
        if (rate := cluster.inter_node.bytes_per_s) >= EDR_BYTES_PER_S:
            rule = "used where the inter_node link has less than 12.5 GB/s"
            raise ParameterError("--scenario item 'edr'", rule, f"{rate / 1e9:g} GB/s on {cluster.name}")
        of_inter_node = {"all_reduce": rate / EDR_BYTES_PER_S}
    return Scenario(
        text, multipliers, link_values, 2 if "fp16" in items else 1,
        {"forward": 0.5, "backward": 0.5} if "fp16" in items else {}, of_inter_node,
        _scenario_accelerator(devices, cluster, find_accelerator),
    )  # fmt: skip


def _scenario_accelerator(items: list[str], cluster: Cluster, find_accelerator: FindAccelerator) -> Accelerator | None:
    if not items:
        return None
    if len(items) > 1:
        raise ParameterError("--scenario", "without two accelerators", "+".join(items))
    (item,), present = items, cluster.node.accelerator
    name = item.partition("=")[2].strip()
    if name == present.name:
        raise ParameterError(
            f"--scenario item {item!r}", f"another accelerator than cluster {cluster.name!r} has", name
        )
    accelerator = find_accelerator(name)
    if accelerator.kind != present.kind:
        rule = f"used where the cluster has devices of kind {accelerator.kind}: a {present.kind} tells nothing of it"
        raise ParameterError(f"--scenario item {item!r}", rule, f"{present.name} of cluster {cluster.name!r}")
    return accelerator


def _known_name(name: str, what: str, names: tuple[str, ...], item: str) -> str:
    if name.strip() not in names:
        raise UnknownNameError(f"{what} of --scenario item {item!r}", name.strip(), names)
    return name.strip()
