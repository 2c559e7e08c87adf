"""``planner show``: what is bundled, and everything about one thing."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from planner import catalog
from planner.cli import output
from planner.cli.parsing import NOTHING, choice
from planner.costs.terms import TERMS
from planner.errors import ParameterError
from planner.formats.calibration import write_calibration
from planner.formats.cluster import write_cluster
from planner.formats.names import LISTED, names_document
from planner.formats.network import write_network
from planner.networks.zoo import arguments_of, zoo_names
from planner.report.blocks import Block
from planner.report.show import (
    calibration_view,
    calibrations_view,
    cluster_view,
    clusters_view,
    network_view,
    networks_view,
)
from planner.workload.totals import layer_work, totals

__all__ = ["run"]


@dataclass(frozen=True, slots=True)
class Shelf:
    """How one kind of thing is found, listed, shown and printed as a document."""

    find: Callable[[str], Any]
    listing: Callable[[Iterable[Any]], Iterable[Block]]
    view: Callable[[str, Any], Iterable[Block]]
    document: Callable[[Any], Mapping[str, Any]]


def run(arguments: Mapping[str, Any]) -> None:
    """Show a list, or one thing, as tables or as one document."""
    shelves = dict(zip(LISTED, (_networks, _clusters, _calibrations), strict=True))
    if "what" not in arguments:
        raise ParameterError("what to show", "one of " + ", ".join(shelves), NOTHING)
    what = str(choice(*shelves)("what to show", arguments["what"]))
    shelf, as_json = shelves[what](), "json" in arguments
    if "item" in arguments:
        _show_one(shelf, arguments["item"], as_json=as_json)
    else:
        _show_list(shelf, what, as_json=as_json)


def _show_one(shelf: Shelf, name: str, *, as_json: bool) -> None:
    found = shelf.find(name)
    if as_json:
        output.write_document(shelf.document(found))
    else:
        output.write_view(shelf.view(name, found))


def _show_list(shelf: Shelf, what: str, *, as_json: bool) -> None:
    names = catalog.names(what)
    if as_json:
        output.write_document(names_document(what, names))
    else:
        output.write_view(shelf.listing(shelf.find(name) for name in names))


def _networks() -> Shelf:
    def view(name: str, network: Any) -> Iterable[Block]:
        family = name.partition(":")[0]
        arguments = arguments_of(family) if family in zoo_names() else {}
        return network_view(network, layer_work(network), totals(network), arguments)

    def listing(networks: Iterable[Any]) -> Iterable[Block]:
        return networks_view((network, totals(network)) for network in networks)

    return Shelf(catalog.find_network, listing, view, lambda network: tomllib.loads(write_network(network)))


def _clusters() -> Shelf:
    return Shelf(
        catalog.find_cluster,
        clusters_view,
        lambda _, cluster: cluster_view(cluster),
        lambda cluster: tomllib.loads(write_cluster(cluster)),
    )


def _calibrations() -> Shelf:
    formulas = {name: term.doc for name, term in TERMS.items()}

    def view(_name: str, calibration: Any) -> Iterable[Block]:
        return calibration_view(calibration, formulas)

    return Shelf(catalog.find_calibration, calibrations_view, view, lambda one: json.loads(write_calibration(one)))
