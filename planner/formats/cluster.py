"""Cluster and accelerator files (TOML).

History, newest first
---------------------
cluster 1, accelerator 1 : first versions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.domain.cluster import LOCAL, Accelerator, Cluster, Link, Node, Storage
from planner.domain.node_groups import MixedCluster, NodeGroup
from planner.domain.precision import PRECISIONS
from planner.errors import NOTHING, InputFileError, ParameterError, UnknownNameError
from planner.formats.documents import STANDARD_INPUT, place_of
from planner.formats.fields import Field, ListOf, MapOf, Table
from planner.formats.kinds import Kind
from planner.formats.values import Flag, Name, Number, Text, Whole, refuse

__all__ = [
    "ACCELERATOR",
    "CLUSTER",
    "accelerator_fields",
    "read_accelerator",
    "read_cluster",
    "write_cluster",
]


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
    "accelerator", 1, "toml", Table(accelerator_fields(Field("name", Name(), "name to refer to it")), Accelerator)
)
INLINE_ACCELERATOR = Table(
    accelerator_fields(Field("name", Name(), "name to refer to it; the node's gpu unless given", None)),
    dict[str, Any],
    "the device of the nodes, where it is not a bundled one",
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
        (
            Field("kind", Name(), "free text; known: nvlink, nvswitch, xgmi, pcie, pcie3, infiniband, ethernet, ..."),
            Field("bandwidth_GBps", Number("GBps", above=True), bandwidth, into="bytes_per_s"),
            Field("latency_us", Number("us"), "of one message", into="latency_s", **latency),
            *(_BETWEEN if nics else ()),
        ),
        Link,
    )


_LINKS = Table(
    (
        Field("intra_node", _link("per GPU, one direction", {}), "between the GPUs of a node", None),
        Field("inter_node", _link("per NIC, one direction", {}, nics=True), "between nodes", None),
        Field("host", _link("host to device, per GPU", {"default": 0.0}), "between host and GPU", None),
    ),
    dict[str, Any],
    "what joins GPUs, nodes and hosts",
)
_GROUP_FIELDS = (
    Field("name", Name(), "name of the group"),
    Field("count", Whole(most=1_000_000), "nodes of the group"),
    *_NODE_FIELDS,
    Field("links", _LINKS, "those of its nodes; one that is absent: that of the cluster", None),
)
_LINK_NAMES = ("intra_node", "inter_node", "host")
_STORAGE = Table(
    (
        Field("read_GBps", Number("GBps", above=True), "read rate", into="read_bytes_per_s"),
        Field(
            "shared",
            Flag(),
            "true: the whole server, divided by the nodes that read; false: of each node",
            default=False,
        ),
        Field("cache_GiB", Number("GiB"), "cache of a node", 0.0, "cache_bytes"),
    ),
    Storage,
    "where samples are read from",
)
_PRICE = Table(
    (Field("usd_per_gpu_hour", Number("price"), "price of one GPU", None),), dict[str, Any], "optional; never guessed"
)


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
    1,
    "toml",
    Table(
        (
            Field("name", _ClusterName(), "name to refer to it; neither 'local' nor a path"),
            Field("nodes", Whole(most=1_000_000), "nodes of the cluster; required beside [node]", None),
            Field("node", Table(_NODE_FIELDS, dict[str, Any]), "short for one group of nodes", None),
            Field(
                "node_groups",
                ListOf(Table(_GROUP_FIELDS, dict[str, Any]), least=1),
                "groups of equal nodes",
                None,
            ),
            Field("accelerator", INLINE_ACCELERATOR, "the device of the nodes, where it is not a bundled one", None),
            Field("links", _LINKS, "what joins GPUs, nodes and hosts", None),
            Field("storage", _STORAGE, "where samples are read from", None),
            Field("price", _PRICE, "optional; never guessed", None),
            Field("sources", MapOf(Text()), "key -> where its figure comes from", None),
        ),
        dict[str, Any],
    ),
)


def read_accelerator(path: Path | str) -> Accelerator:
    """Return the accelerator of a file."""
    return ACCELERATOR.read(path)


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
