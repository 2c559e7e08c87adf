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

from planner.domain.cluster import LOCAL, Accelerator, Cluster, Link, Node, Storage
from planner.domain.node_groups import MixedCluster, NodeGroup
from planner.domain.precision import PRECISIONS
from planner.domain.scenario import Scenario
from planner.errors import NOTHING, InputFileError, ParameterError, UnknownNameError
from planner.formats.documents import STANDARD_INPUT, Kind, place_of
from planner.formats.fields import Field, Flag, ListOf, MapOf, Name, Number, Table, Text, Whole, refuse
from planner.units import parse_quantity

__all__ = [
    "ACCELERATOR", "CLUSTER", "EDR_BYTES_PER_S", "LINK_KEYS", "TERM_NAMES", "accelerator_fields", "parse_scenarios",
    "read_cluster", "write_cluster",
]  # fmt: skip


def accelerator_fields(name: Field) -> tuple[Field, ...]:
    """Return the keys that describe a device; ``name`` is required or not by where they stand."""
    return (
        name,
        Field("kind", Text(("gpu", "cpu")), "what it is", "gpu"),
        Field("memory_GiB", Number("GiB", above=True), "device memory", into="memory_bytes"),
        Field("memory_bandwidth_GBps", Number("GBps", above=True), "peak rate", into="memory_bytes_per_s"),
        Field(
            "peak_TFLOPps",
            MapOf(Number("TFLOPps", above=True), choices=tuple(PRECISIONS)),
            "dense peak rate by precision; one that is absent is one the device does not have",
            into="peak_flop_per_s",
        ),
        Field("multiprocessors", Whole(), "streaming multiprocessors, or cores", None),
        Field("source", Text(), "where the figures come from", ""),
        Field("vendor", Name(), "who made it", ""),
        Field("architecture", Name(), "its generation", ""),
        Field("chip", Name(), "its die, which it shares with sibling devices", ""),
    )


ACCELERATOR = Kind(
    "accelerator", "toml", Table(*accelerator_fields(Field("name", Name(), "name to refer to it")), make=Accelerator)
)
INLINE_ACCELERATOR = Table(
    *accelerator_fields(Field("name", Name(), "name to refer to it; the node's gpu unless given", None)),
    doc="the device of the nodes, where it is not a bundled one",
)

_NODE_FIELDS = (
    Field("gpus", Whole(most=4096), "devices of a node"),
    Field("gpu", Name(), "name of an accelerator or CPU; one that is not bundled is described in [accelerator]"),
    Field("host_memory_GiB", Number("GiB", above=True), "memory of the host", None, "host_memory_bytes"),
    Field("cpu_threads", Whole(), "hardware threads of the host", None),
)


_BETWEEN = (
    Field("nics_per_node", Whole(most=1024), "network adapters of a node", 1),
    Field(
        "flow_GBps",
        Number("GBps", above=True),
        "what one stream of messages gets at most, such as one TCP connection; absent: all",
        None,
        "flow_bytes_per_s",
    ),
    Field(
        "pair_GBps",
        Number("GBps", above=True),
        "what two nodes exchange at most, both directions together; absent: the bandwidth each way",
        None,
        "pair_bytes_per_s",
    ),
)


def _link(bandwidth: str, latency: Any, *, nics: bool = False) -> Table[Link]:
    return Table(
        Field("kind", Name(), "free text; known: nvlink, nvswitch, xgmi, pcie, pcie3, infiniband, ethernet, ..."),
        Field("bandwidth_GBps", Number("GBps", above=True), bandwidth, into="bytes_per_s"),
        Field("latency_us", Number("us"), "of one message", into="latency_s", **latency),
        *(_BETWEEN if nics else ()),
        make=Link,
    )


_LINKS = Table(
    Field("intra_node", _link("per GPU, one direction", {}), "between the GPUs of a node", None),
    Field("inter_node", _link("per NIC, one direction", {}, nics=True), "between nodes", None),
    Field("host", _link("host to device, per GPU", {"default": 0.0}), "between host and GPU", None),
    doc="what joins GPUs, nodes and hosts",
)
_GROUP_FIELDS = (
    Field("name", Name(), "name of the group"),
    Field("count", Whole(most=1_000_000), "nodes of the group"),
    *_NODE_FIELDS,
    Field("links", _LINKS, "those of its nodes; one that is absent: that of the cluster", None),
)
_LINK_NAMES = ("intra_node", "inter_node", "host")
_STORAGE = Table(
    Field("read_GBps", Number("GBps", above=True), "read rate", into="read_bytes_per_s"),
    Field(
        "shared", Flag(), "true: the whole server, divided by the nodes that read; false: of each node", default=False
    ),
    Field("cache_GiB", Number("GiB"), "cache of a node", 0.0, "cache_bytes"),
    make=Storage,
    doc="where samples are read from",
)
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


CLUSTER = Kind(
    "cluster",
    "toml",
    Table(
        Field("name", _ClusterName(), "name to refer to it; neither 'local' nor a path"),
        Field("nodes", Whole(most=1_000_000), "nodes of the cluster; required beside [node]", None),
        Field("node", Table(*_NODE_FIELDS), "short for one group of nodes", None),
        Field("node_groups", ListOf(Table(*_GROUP_FIELDS), least=1), "groups of equal nodes", None),
        Field("accelerator", INLINE_ACCELERATOR, "the device of the nodes, where it is not a bundled one", None),
        Field("links", _LINKS, "what joins GPUs, nodes and hosts", None),
        Field("storage", _STORAGE, "where samples are read from", None),
        Field("price", _PRICE, "optional; never guessed", None),
        Field("sources", MapOf(Text()), "key -> where its figure comes from", None),
    ),
)


def read_cluster(path: Path | str, find_accelerator: Callable[[str], Accelerator]) -> Cluster | MixedCluster:
    """Return the cluster of a file: a mixed one where it has several groups of nodes.

    Parameters
    ----------
    path : path
    find_accelerator : callable
        Name -> bundled accelerator, or UnknownNameError; asked only where the file describes none.
    """
    keys = CLUSTER.read(path)
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
    """Return the groups of nodes of a file."""
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
    """Return the cluster as if it had one group's nodes alone; ``several``: whether it has others.

    ``place``: of the file, and who finds accelerators.
    """
    own_links, (path, find) = group["links"] or {}, place
    links = keys["links"]
    if own_links:
        links = {**(links or {}), **{name: one for name, one in own_links.items() if one is not None}}
    links = _links(links, group["count"] + several, group["gpus"], place_of(path))
    accelerator = _accelerator(keys["accelerator"], group["gpu"], find, several=several)
    return Cluster(
        name=f"{keys['name']}, group {group['name']}" if several else keys["name"],
        nodes=group["count"],
        node=Node(group["gpus"], accelerator, group["host_memory_bytes"], group["cpu_threads"]),
        **{name: links.get(name) for name in _LINK_NAMES},
        storage=keys["storage"],
        usd_per_gpu_hour=(keys["price"] or {}).get("usd_per_gpu_hour"),
        sources=keys["sources"] or {},
    )


def _links(links: Mapping[str, Any] | None, nodes: int, gpus: int, path: str) -> Mapping[str, Any]:
    """Return the links; a GPU that is alone needs none."""
    if links is None and nodes * gpus > 1:
        remedy = "copy those of a like cluster, as 'planner show clusters NAME --toml' prints them"
        problem = f"table must be given ({_LINKS.doc}), got nothing for {nodes} x {gpus} GPUs; {remedy}"
        raise InputFileError(path, problem, "links")
    return links or {}


def _accelerator(
    inline: Mapping[str, Any] | None, gpu: str, find: Callable[[str], Accelerator], *, several: bool
) -> Accelerator:
    """Return the device of nodes; of ``several`` groups those are described inline whose device has that name."""
    if inline is None or (several and inline["name"] not in (None, gpu)):
        return find(gpu)
    if several and inline["name"] is None:
        raise ParameterError("accelerator.name", "given where there are several node groups", NOTHING)
    if inline["name"] not in (None, gpu):
        raise ParameterError("accelerator.name", f"that of node.gpu, {gpu!r}", inline["name"])
    return Accelerator(**{**inline, "name": gpu})


def write_cluster(cluster: Cluster) -> str:
    """Return the text of a cluster's file; the accelerator is described in it, so that it needs no other file."""
    links = {name: getattr(cluster, name) for name in _LINK_NAMES}
    return CLUSTER.dump(
        {
            "name": cluster.name,
            "nodes": cluster.nodes,
            "node": _node_keys(cluster.node),
            "node_groups": None,
            "accelerator": cluster.node.accelerator,
            "links": links if any(links.values()) else None,
            "storage": cluster.storage,
            "price": None if cluster.usd_per_gpu_hour is None else {"usd_per_gpu_hour": cluster.usd_per_gpu_hour},
            "sources": cluster.sources or None,
        }
    )


def _node_keys(node: Node) -> dict[str, Any]:
    return {
        "gpus": node.gpus,
        "gpu": node.accelerator.name,
        "host_memory_bytes": node.host_memory_bytes,
        "cpu_threads": node.cpu_threads,
    }


EDR_BYTES_PER_S = 12.5e9
TERM_NAMES = (
    "load_input", "host_to_device", "forward", "backward", "all_reduce", "update", "update_gradient", "sum_gradient",
    "update_weights",
)  # fmt: skip
LINK_KEYS = {"bandwidth": ("bytes_per_s", "bandwidth"), "latency": ("latency_s", "latency")}
"""Key as typed -> field of the record, and dimension of the quantity."""
LARGEST_FACTOR = 1e6
GPU = "gpu"
_FORM_WORDS = (
    "fp16, edr, TERM*=FACTOR such as all_reduce*=0.5, LINK.KEY=VALUE such as inter_node.bandwidth=12.5GB/s, or gpu=NAME"
)
FindAccelerator = Callable[[str], Accelerator]


def _no_accelerator(name: str) -> Accelerator:
    raise UnknownNameError("accelerator", name, ())


def parse_scenarios(
    text: str, cluster: Cluster, find_accelerator: FindAccelerator = _no_accelerator
) -> tuple[Scenario, ...]:
    """Return the alternatives of a text, in its order, each once.

    Parameters
    ----------
    text : str
    cluster : Cluster
        As it is.
    find_accelerator : callable, optional
        Name -> bundled accelerator, or UnknownNameError; none is known unless given.

    Raises
    ------
    ParameterError, UnknownNameError
        An item is unknown, impossible on this cluster, or contradicts another; the item is named.
    """
    parts = dict.fromkeys(part.strip() for part in text.split(","))
    return tuple(_alternative(one, cluster, find_accelerator) for one in parts)


def _alternative(text: str, cluster: Cluster, find_accelerator: FindAccelerator) -> Scenario:
    multipliers: dict[str, float] = {}
    link_values: dict[tuple[str, str], float] = {}
    items = [item.strip() for item in text.split("+")]
    for at, item in enumerate(items):
        if item in items[:at]:
            raise ParameterError("--scenario", "made of different items", item)
        if _is_gpu(item):
            continue
        factors, values = _item(item, cluster)
        for name, factor in factors.items():
            multipliers[name] = multipliers.get(name, 1.0) * factor
        if values.keys() & link_values.keys():
            raise ParameterError("--scenario", "without two values for one key of a link", item)
        link_values |= values
    if "edr" in items and ("inter_node", "bytes_per_s") in link_values:
        raise ParameterError("--scenario", "either edr or inter_node.bandwidth, which it stands for", text)
    return Scenario(
        text,
        multipliers,
        link_values,
        2 if "fp16" in items else 1,
        {"forward": 0.5, "backward": 0.5} if "fp16" in items else {},
        {"all_reduce": _edr_factor(cluster)} if "edr" in items else {},
        _scenario_accelerator([item for item in items if _is_gpu(item)], cluster, find_accelerator),
    )


def _is_gpu(item: str) -> bool:
    return item.partition("=")[0].strip() == GPU


def _scenario_accelerator(items: list[str], cluster: Cluster, find_accelerator: FindAccelerator) -> Accelerator | None:
    """Return the accelerator of the one item that names it, if any."""
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


def _item(item: str, cluster: Cluster) -> tuple[dict[str, float], dict[tuple[str, str], float]]:
    """Return the multipliers and the link values of one item; fp16 and edr act by rules of their own."""
    if item in ("fp16", "edr"):
        return {}, {}
    if "*=" in item:
        name, _, factor = item.partition("*=")
        return {_known_name(name, "term", TERM_NAMES, item): _factor(factor, item)}, {}
    if "=" in item:
        name, _, value = item.partition("=")
        return {}, _link_value(name, value, item, cluster)
    raise ParameterError("--scenario item", _FORM_WORDS, item)


def _known_name(name: str, what: str, names: tuple[str, ...], item: str) -> str:
    if name.strip() not in names:
        raise UnknownNameError(f"{what} of --scenario item {item!r}", name.strip(), names)
    return name.strip()


def _factor(text: str, item: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1 / LARGEST_FACTOR <= value <= LARGEST_FACTOR:
        rule = f"a number from {1 / LARGEST_FACTOR:g} to {LARGEST_FACTOR:g}"
        raise ParameterError(f"factor of --scenario item {item!r}", rule, text)
    return value


def _edr_factor(cluster: Cluster) -> float:
    link = cluster.inter_node
    if link is None:
        raise ParameterError("--scenario item 'edr'", "used where nodes are linked", f"cluster {cluster.name!r}")
    if link.bytes_per_s >= EDR_BYTES_PER_S:
        rule = "used where the inter_node link has less than 12.5 GB/s"
        raise ParameterError("--scenario item 'edr'", rule, f"{link.bytes_per_s / 1e9:g} GB/s on {cluster.name}")
    return link.bytes_per_s / EDR_BYTES_PER_S


def _link_value(name: str, value: str, item: str, cluster: Cluster) -> dict[tuple[str, str], float]:
    link_name, _, key = name.partition(".")
    link = _known_name(link_name, "link", _LINK_NAMES, item)
    into, dimension = LINK_KEYS[_known_name(key, "key", tuple(LINK_KEYS), item)]
    if getattr(cluster, link) is None:
        raise ParameterError(f"link of --scenario item {item!r}", f"one that cluster {cluster.name!r} has", link)
    return {(link, into): parse_quantity(value.strip(), dimension, f"value of --scenario item {item!r}")}
