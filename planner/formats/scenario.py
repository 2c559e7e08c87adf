"""Scenarios as typed: items joined by ``+``, alternatives by ``,``.

``fp16`` halves computation and doubles the largest sub-batch of fp32 plans; ``edr`` multiplies all-reduce by the
bandwidth of the inter-node link over 12.5 GB/s (4X EDR InfiniBand), latency included, in plans of several nodes (Oyama
et al., SPRINT slides, 2016); ``term*=x`` multiplies a term everywhere; ``link.key=value`` replaces a value of a link.
"""

from __future__ import annotations

import math

from planner.domain.cluster import Cluster
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
LINK_KEYS = {"bandwidth": ("bytes_per_s", "bandwidth"), "latency": ("latency_s", "time")}
"""Key as typed -> field of the record, and dimension of the quantity."""
LARGEST_FACTOR = 1e6
_FORMS = "fp16, edr, TERM*=FACTOR such as all_reduce*=0.5, or LINK.KEY=VALUE such as inter_node.bandwidth=12.5GB/s"


def parse_scenarios(text: str, cluster: Cluster) -> tuple[Scenario, ...]:
    """Return the alternatives of a text, in its order, each once.

    Raises
    ------
    ParameterError, UnknownNameError
        An item is unknown, impossible on this cluster, or contradicts another; the item is named.
    """
    return tuple(_alternative(one, cluster) for one in dict.fromkeys(part.strip() for part in text.split(",")))


def _alternative(text: str, cluster: Cluster) -> Scenario:
    multipliers: dict[str, float] = {}
    link_values: dict[tuple[str, str], float] = {}
    items = [item.strip() for item in text.split("+")]
    for at, item in enumerate(items):
        if item in items[:at]:
            raise ParameterError("--scenario", "made of different items", item)
        factors, replaced = _item(item, cluster)
        for name, factor in factors.items():
            multipliers[name] = multipliers.get(name, 1.0) * factor
        if replaced.keys() & link_values.keys():
            raise ParameterError("--scenario", "without two values for one key of a link", item)
        link_values |= replaced
    if "edr" in items and ("inter_node", "bytes_per_s") in link_values:
        raise ParameterError("--scenario", "either edr or inter_node.bandwidth, which it stands for", text)
    return Scenario(
        text,
        multipliers,
        link_values,
        2 if "fp16" in items else 1,
        {"forward": 0.5, "backward": 0.5} if "fp16" in items else {},
        {"all_reduce": _edr_factor(cluster)} if "edr" in items else {},
    )


def _item(item: str, cluster: Cluster) -> tuple[dict[str, float], dict[tuple[str, str], float]]:
    """Return the multipliers and the link values of one item; fp16 and edr act by rules of their own."""
    if item in ("fp16", "edr"):
        return {}, {}
    if "*=" in item:
        name, _, factor = item.partition("*=")
        return {_known(name, "term", TERM_NAMES, item): _factor(factor, item)}, {}
    if "=" in item:
        name, _, value = item.partition("=")
        return {}, _link_value(name, value, item, cluster)
    raise ParameterError("--scenario item", _FORMS, item)


def _known(name: str, what: str, known: tuple[str, ...], item: str) -> str:
    if name.strip() not in known:
        raise UnknownNameError(f"{what} of --scenario item {item!r}", name.strip(), known)
    return name.strip()


def _factor(text: str, item: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= LARGEST_FACTOR:
        rule = f"a number above 0, at most {LARGEST_FACTOR:g}"
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
    link = _known(link_name, "link", LINK_NAMES, item)
    into, dimension = LINK_KEYS[_known(key, "key", tuple(LINK_KEYS), item)]
    if getattr(cluster, link) is None:
        raise ParameterError(f"link of --scenario item {item!r}", f"one that cluster {cluster.name!r} has", link)
    return {(link, into): parse_quantity(value.strip(), dimension, f"value of --scenario item {item!r}")}
