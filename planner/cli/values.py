"""Which value an option has, and where that comes from: option, ``planner.toml``, default request, default.

Earlier sources win. The merge is the only place that knows their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.cli.options import COMMANDS, OPTIONS, Option
from planner.domain.request import DEFAULT, Sourced
from planner.errors import InputFileError, ParameterError

__all__ = ["DEFAULT", "DEFAULT_REQUEST", "OPTION", "SETTINGS_FILE", "Values", "from_options", "from_settings", "merge"]

OPTION, SETTINGS_FILE, DEFAULT_REQUEST = "option", "planner.toml", "default request"
Values = Mapping[str, Sourced[Any]]


def from_options(arguments: Mapping[str, Any]) -> Values:
    """Return what the command line gives, parsed."""
    return {
        name: Sourced(_parsed(OPTIONS[name], OPTIONS[name].flag, value), OPTION) for name, value in arguments.items()
    }


def from_settings(settings: Mapping[str, Any], source: str, command: str) -> Values:
    """Return the values of a settings table that ``command`` has, parsed with the rules of the options.

    ``settings`` maps option names to text, numbers or lists; a value against its rule is InputFileError naming
    ``source``.
    """
    used = next(known.options for known in COMMANDS if known.name == command)
    try:
        return {
            key: Sourced(_parsed(OPTIONS[key], key, _texts(OPTIONS[key], value)), source)
            for key, value in settings.items()
            if key in used
        }
    except ParameterError as error:
        raise InputFileError(source, str(error)) from error


def merge(*layers: Values) -> Values:
    """Return one value each; an earlier layer wins."""
    return {name: value for layer in reversed(layers) for name, value in layer.items()}


def _parsed(option: Option, what: str, value: Any) -> Any:
    if option.switch:
        return value
    if option.repeatable:
        return tuple(option.parse(what, one) for one in value)
    return option.parse(what, value)


def _texts(option: Option, value: Any) -> Any:
    """Return a value of a settings file as it would be typed."""
    items = value if isinstance(value, list) else [value]
    return [str(item) for item in items] if option.repeatable else ",".join(str(item) for item in items)
