"""Scenarios as typed: items joined by ``+``, alternatives by ``,``.

``fp16`` halves computation and doubles the largest sub-batch of fp32 plans; ``edr`` multiplies all-reduce by the
bandwidth of the inter-node link over 12.5 GB/s (4X EDR InfiniBand), latency included, in plans of several nodes (Oyama
et al., SPRINT slides, 2016); ``term*=x`` multiplies a term everywhere; ``link.key=value`` replaces a value of a link;
``gpu=NAME`` puts another accelerator into the nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from planner.domain.cluster import Accelerator, Cluster
from planner.domain.scenario import Scenario
from planner.errors import ParameterError, UnknownNameError
from planner.units import parse_quantity

__all__ = ["EDR_BYTES_PER_S", "LINK_KEYS", "TERM_NAMES", "parse_scenarios"]

EDR_BYTES_PER_S = 12.5e9
TERM_NAMES = (
    "load_input", "host_to_device", "forward", "backward", "all_reduce", "update", "update_gradient", "sum_gradient",
    "update_weights",
)  # fmt: skip
LINK_NAMES = ("inter_node", "intra_node", "host")
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
        _accelerator([item for item in items if _is_gpu(item)], cluster, find_accelerator),
    )


def _is_gpu(item: str) -> bool:
    return item.partition("=")[0].strip() == GPU


def _accelerator(items: list[str], cluster: Cluster, find_accelerator: FindAccelerator) -> Accelerator | None:
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
    link = _known_name(link_name, "link", LINK_NAMES, item)
    into, dimension = LINK_KEYS[_known_name(key, "key", tuple(LINK_KEYS), item)]
    if getattr(cluster, link) is None:
        raise ParameterError(f"link of --scenario item {item!r}", f"one that cluster {cluster.name!r} has", link)
    return {(link, into): parse_quantity(value.strip(), dimension, f"value of --scenario item {item!r}")}
