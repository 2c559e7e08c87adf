"""Long names of frameworks as letters, and the line that says what the letters stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_uppercase

from planner.domain.framework import framework_parts, label_of

__all__ = ["key_of", "letters_of"]


def letters_of(labels: Sequence[str]) -> dict[str, str]:
    """Return a letter for each label, in their order.

    >>> letters_of(["pytorch", "pytorch:compile", "pytorch"])
    {'pytorch': 'A', 'pytorch:compile': 'B'}
    """
    n = len(ascii_uppercase)
    each = enumerate(dict.fromkeys(labels))
    return {label: ascii_uppercase[at % n] * (at // n + 1) for at, label in each}


def key_of(letters: Mapping[str, str]) -> str:
    """Return what letters stand for; switches that all sets of one framework have are said once.

    >>> key_of(letters_of(["mxnet:graphs", "mxnet:graphs+horovod"]))
    'Framework mxnet:graphs with A: no other switch; B: horovod'
    >>> key_of(letters_of(["mxnet", "pytorch:compile"]))
    'Framework A: mxnet; B: pytorch:compile'
    """
    names = {label: framework_parts(label) for label in letters}
    if len({(name, version) for name, version, _ in names.values()}) > 1:
        return f"Framework {'; '.join(f'{letter}: {label}' for label, letter in letters.items())}"
    (name, version, first), *others = names.values()
    shared = tuple(one for one in first if all(one in switches for _, _, switches in others))
    words = {label: "+".join(one for one in parts[2] if one not in shared) for label, parts in names.items()}
    told = "; ".join(f"{letter}: {words[label] or 'no other switch'}" for label, letter in letters.items())
    if not shared:
        told = told.replace("no other switch", "no switch")
    return f"Framework {label_of(name, version, shared)} with {told}"
