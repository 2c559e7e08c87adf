"""Clusters of several kinds of nodes, and what each kind does in a plan across them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from planner.domain.arrays import check_count
from planner.domain.cluster import Accelerator, Cluster
from planner.errors import ParameterError, UnknownNameError

__all__ = ["GroupPart", "MixedCluster", "NodeGroup"]

_NAME = re.compile(r"[^\s:=,+]+")


@dataclass(frozen=True, slots=True)
class GroupPart:
    """What the nodes of one group do in a plan: each of their devices takes sub-batch x accumulation samples a step."""

    name: str
    nodes: int
    gpus_per_node: int
    sub_batch: int
    accumulation_steps: int = 1

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

    Attributes
    ----------
    cluster : the cluster as if it had these nodes alone, with the links that they have
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
