"""The zoo: bundled networks by name; a family is a dictionary of name to entry in the module of its kind."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from planner.domain.network import Network
from planner.errors import ParameterError, UnknownNameError, named
from planner.networks.builder import ZooEntry
from planner.networks.zoo import images, inception, llama, transformers

_FAMILIES = (
    images.ALEXNET, images.CONVNEXT, inception.DENSENET, images.EFFICIENTNET, inception.GOOGLENET,
    inception.INCEPTION_V3, inception.INCEPTION_BN, images.MLP, images.MOBILENET, images.OVERFEAT, images.PRERESNET,
    images.RESNET, images.SPRINT, images.SWIN, transformers.GPT, llama.LLAMA, llama.MPT, llama.NEOX, llama.T5,
    inception.UNET, images.VGG, transformers.VIT, images.YOLO,
)  # fmt: skip
_ENTRIES: Mapping[str, ZooEntry] = {name: entry for family in _FAMILIES for name, entry in family.items()}
_made = lru_cache(maxsize=128)(lambda entry, name, *values: _ENTRIES[entry].make(name, dict(values)))


def zoo_names() -> tuple[str, ...]:
    """Return the names of all bundled networks."""
    return tuple(_ENTRIES)


def arguments_of(name: str) -> Mapping[str, str]:
    """Return the arguments of a network, each with one line of documentation that ends in its values."""
    return {
        key: f"{argument.doc} ({argument.rule if argument.counts or argument.factor else ', '.join(argument.values)}; "
        f"default {argument.values[0]})"
        for key, argument in zoo_entry(name).arguments.items()
    }


def build(name: str, arguments: Mapping[str, str]) -> Network:
    """Return a bundled network, with the default of every argument (value by name, as typed) that is absent.

    Its name holds the arguments that were given, in alphabetical order: ``resnet50:stride=1x1``. UnknownNameError where
    there is no such network or argument of it, ParameterError where an argument does not take its value.
    """
    entry = zoo_entry(name)
    for key, value in arguments.items():
        if key not in entry.arguments:
            raise UnknownNameError(f"argument of network {name}", key, entry.arguments)
        if not entry.arguments[key].takes(value):
            raise ParameterError(f"argument {key} of network {name}", entry.arguments[key].rule, value)
    typed = ",".join(f"{key}={arguments[key]}" for key in sorted(arguments))
    filled = ((key, arguments.get(key, argument.values[0])) for key, argument in entry.arguments.items())
    return _made(name, f"{name}:{typed}" if typed else name, *filled)


def zoo_entry(name: str) -> ZooEntry:
    """Return a network's declaration; UnknownNameError where there is none."""
    return named("network", name, _ENTRIES)
