"""Dataclasses of plain values, and moments, to JSON and back, for records and for the memory in the status."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from gemma_operator.scaling.moment import Moment

T = TypeVar("T")
INFINITY = "Infinity"


def encode(value: Any) -> Any:
    """JSON for `value`; fields that have their default are left out."""
    if is_dataclass(value):
        return {f.name: encode(own) for f in fields(value) if (own := getattr(value, f.name)) != f.default}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): encode(own) for key, own in value.items()}
    if isinstance(value, Moment):
        return {"numbers": value.tolist(), "edges": encode(value.edges)}
    if isinstance(value, (frozenset, set)):
        return sorted(encode(own) for own in value)
    if isinstance(value, (list, tuple)):
        return [encode(own) for own in value]
    return INFINITY if isinstance(value, float) and math.isinf(value) else value


def decode(kind: type[T], data: Any) -> T:
    """The inverse of `encode`. Raises TypeError, ValueError or KeyError for what isn't a `kind`."""
    value: T = _decode(kind, data)
    return value


def _decode(kind: Any, data: Any) -> Any:
    if isinstance(kind, type) and is_dataclass(kind):
        return kind(**{name: _decode(_hints(kind)[name], own) for name, own in data.items()})
    if kind is Moment:
        return Moment(map(_number, data["numbers"]), _decode(tuple[float, ...], data["edges"]))
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _decode_union(arguments, data)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return tuple(_decode(one, own) for one, own in zip(arguments, data, strict=True))
    if origin in (tuple, frozenset):
        return origin(_decode(arguments[0], own) for own in data)
    if origin is not None:
        return {key: _decode(arguments[1], own) for key, own in data.items()}
    if kind is float:
        return _number(data)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
        raise TypeError(f"{data!r} is no {kind.__name__}")
    return data


def _decode_union(arguments: tuple[Any, ...], data: Any) -> Any:
    """None, a number, or one class of the two."""
    if data is None and type(None) in arguments:
        return None
    wanted = [kind for kind in arguments if is_dataclass(kind) == isinstance(data, Mapping) and kind is not type(None)]
    return _decode(wanted[0], data)


def _number(data: Any) -> float:
    if data == INFINITY:
        return math.inf
    if isinstance(data, bool) or not isinstance(data, (int, float)) or not math.isfinite(data):
        raise TypeError(f"{data!r} is no number")
    return float(data)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
