# SPDX-License-Identifier: Apache-2.0
"""Options for some of the parameters, given by patterns of their names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor

from octavo.parameters import plain_name

_OF_WRAPPERS = "module."  # what the names of a wrapped model begin with


def groups_by_name(
    owner: str, params: Iterable[Any], overrides: Mapping[str, Mapping[str, Any]], options: Collection[str]
) -> list[dict[str, Any]]:
    """Returns parameter groups in which each parameter has the options of all patterns that match its name; where
    several give the same option, the last one counts.

    - ``params``: pairs of a name and a parameter, or groups of such pairs, which stay apart. Each of them becomes one
      group for all parameters that the same patterns match.
    - ``overrides``: by pattern, the options that it gives.
    - ``options``: the names of all options that exist.

    Raises ValueError for parameters without names, for an option that does not exist, and for a pattern that matches
    nothing; TypeError for overrides of another form.
    """
    if not isinstance(overrides, Mapping) or not all(isinstance(values, Mapping) for values in overrides.values()):
        raise TypeError(
            f"[optim.{owner}] expected overrides as a mapping from patterns to mappings of options, such as "
            f"{{'*.norm.*': {{'weight_decay': 0.0}}}}, got {overrides!r}"
        )
    for pattern, values in overrides.items():
        if unknown := values.keys() - set(options):
            raise ValueError(
                f"[optim.{owner}] overrides of '{pattern}' have no option {', '.join(sorted(unknown))}; there are "
                f"{', '.join(sorted(options))}"
            )
    params = list(params)
    given = params if params and isinstance(params[0], dict) else [{"params": params}]
    unmatched = set(overrides)
    groups: list[dict[str, Any]] = []
    for group in given:
        parts: dict[tuple[str, ...], dict[str, Any]] = {}
        for name, parameter in _named(owner, group["params"]):
            patterns = tuple(pattern for pattern in overrides if fnmatchcase(plain_name(name), pattern))
            unmatched -= set(patterns)
            part = parts.setdefault(patterns, _merged(group, [overrides[pattern] for pattern in patterns]))
            part["params"].append((name, parameter))
        groups += parts.values()
    if unmatched:
        raise ValueError(
            f"[optim.{owner}] overrides of '{sorted(unmatched)[0]}' match no parameter: patterns are those of a shell, "
            f"of whole names, such as '*.norm.weight' or 'embed*'"
        )
    return groups


def names_of_groups(groups: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Returns the names of the parameters of each group as they are in the model itself; none where a group has none.
    DistributedDataParallel begins those of all parameters with ``module.``, as other wrappers do; a model that itself
    begins all of its names so has them without it here, too, since nothing tells the two apart."""
    names = [[plain_name(name) for name in group.get("param_names", ())] for group in groups]
    while any(names) and all(name.startswith(_OF_WRAPPERS) for of_one in names for name in of_one):
        names = [[name.removeprefix(_OF_WRAPPERS) for name in of_one] for of_one in names]
    return names


def _named(owner: str, params: Any) -> list[tuple[str, Tensor]]:
    pairs = [params] if isinstance(params, Tensor) else list(params)
    if not all(isinstance(pair, tuple) and isinstance(pair[0], str) for pair in pairs):
        raise ValueError(f"[optim.{owner}] overrides are by name: give model.named_parameters(), not its parameters()")
    return pairs


def _merged(group: dict[str, Any], overrides: list[Mapping[str, Any]]) -> dict[str, Any]:
    merged = {**group, "params": []}
    for options in overrides:
        merged |= options
    return merged
