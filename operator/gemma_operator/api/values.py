"""Small value types of the API: quantities and durations, in one canonical spelling."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

_BINARY = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60}
# Steps of a thousand, from a billionth up.
_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_NANOS = 10**9
# k8s.io/apimachinery/pkg/api/resource: no quantity may be larger.
_LARGEST = (1 << 63) - 1
_QUANTITY = re.compile(r"^([+-]?[0-9]*\.?[0-9]+|[+-]?[0-9]+\.)(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?[0-9]+)?$")
_DURATION = re.compile(r"^([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)$")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Schema:
    """`Annotated[T, Schema({...})]` adds keys (for instance x-kubernetes-*) to the schema of one field."""

    def __init__(self, keys: dict[str, Any]) -> None:
        self.keys = keys

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(core), **self.keys}


class IntOrString:
    """Schema of a Kubernetes int-or-string field."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": _QUANTITY.pattern.replace("[+-]?", r"\+?", 1),
            "maxLength": 64,
        }


def quantity_value(text: str) -> Decimal:
    """The number that a Kubernetes quantity stands for (bytes, cores or pieces).

    Raises ValueError where `text` is no quantity.
    """
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a Kubernetes quantity such as 500m, 2, 16Gi or 1e3")
    number, suffix = Decimal(match.group(1)), match.group(2) or ""
    try:
        if suffix in _BINARY:
            return number * _BINARY[suffix]
        if suffix in _DECIMAL:
            return number.scaleb(3 * _DECIMAL.index(suffix) - 9)
        return number.scaleb(int(suffix[1:]))
    except ArithmeticError as error:
        raise ValueError(f"{text!r} is not a Kubernetes quantity: its exponent is out of range") from error


def canonical_quantity(value: Any) -> str:
    """Spell a quantity as the API server stores it ("0.5" becomes "500m", "1000m" becomes "1").

    A stored object then equals what we asked for. As in k8s.io/apimachinery/pkg/api/resource, suffix families are
    kept (binary stays binary where that is exact, exponents stay exponents), and a billionth is the smallest step.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{value!r} is not a Kubernetes quantity such as 500m, 2, 16Gi or 1e3")
    text = str(value).strip()
    number = quantity_value(text)
    if number < 0:
        raise ValueError(f"{text!r} is negative; a resource quantity is zero or more")
    if number > _LARGEST:
        raise ValueError(f"{text!r} is too large; the largest quantity is {_LARGEST}")
    nanos = int((number * _NANOS).to_integral_value(rounding="ROUND_CEILING"))
    return _spell(nanos, text.lstrip("+-.0123456789")) if nanos else "0"


def _spell(nanos: int, suffix: str) -> str:
    if suffix in _BINARY:
        for unit, factor in reversed(_BINARY.items()):
            if nanos % (factor * _NANOS) == 0:
                return f"{nanos // (factor * _NANOS)}{unit}"
    step = max(step for step in range(len(_DECIMAL)) if nanos % 1000**step == 0)
    number = nanos // 1000**step
    if suffix[:1] in ("e", "E") and suffix not in ("E", "Ei"):
        return f"{number}e{3 * step - 9}" if step != _DECIMAL.index("") else str(number)
    return f"{number}{_DECIMAL[step]}"


def duration_seconds(text: str) -> float:
    """Seconds of a duration such as 300ms, 2s, 5m or 1h. Raises ValueError where `text` is none."""
    match = _DURATION.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a duration such as 300ms, 2s, 5m or 1h")
    return round(float(match.group(1)) * _SECONDS[match.group(2)], 6)


def _duration(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a duration such as 300ms, 2s, 5m or 1h")
    duration_seconds(value)
    return value


Quantity = Annotated[str, BeforeValidator(canonical_quantity), IntOrString()]
Duration = Annotated[
    str, BeforeValidator(_duration), Schema({"pattern": _DURATION.pattern.replace("(?:", "("), "maxLength": 16})
]
FreeForm = Annotated[dict[str, Any], Schema({"x-kubernetes-preserve-unknown-fields": True})]
