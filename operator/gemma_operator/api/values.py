"""Small value types of the API: quantities and durations, in one canonical spelling."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

from pydantic import BeforeValidator, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

_BINARY = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60}
_DECIMAL = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal("1e3"), "M": Decimal("1e6"), "G": Decimal("1e9"), "T": Decimal("1e12"), "P": Decimal("1e15"), "E": Decimal("1e18"),
}  # fmt: skip
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
        }


def quantity_value(text: str) -> Decimal:
    """The number that a Kubernetes quantity stands for (bytes, cores or pieces).

    Raises ValueError where `text` is no quantity.
    """
    match = _QUANTITY.match(text)
    if not match:
        raise ValueError(f"{text!r} is not a Kubernetes quantity such as 500m, 2, 16Gi or 1e3")
    number, suffix = match.group(1), match.group(2) or ""
    try:
        if suffix[:1] in ("e", "E") and len(suffix) > 1:
            return Decimal(number) * (Decimal(10) ** int(suffix[1:]))
        return Decimal(number) * (_BINARY.get(suffix) or _DECIMAL[suffix])
    except (InvalidOperation, OverflowError) as error:
        raise ValueError(f"{text!r} is not a Kubernetes quantity: {error}") from error


def canonical_quantity(value: Any) -> str:
    """Spell a quantity as the API server stores it ("0.5" becomes "500m", "1000m" becomes "1").

    A stored object then equals what we asked for. Suffix families are kept, as in
    k8s.io/apimachinery/pkg/api/resource (binary stays binary, decimal exponents stay decimal).
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{value!r} is not a Kubernetes quantity such as 500m, 2, 16Gi or 1e3")
    text = str(value).strip()
    number = quantity_value(text)
    if number < 0:
        raise ValueError(f"{text!r} is negative; a resource quantity is zero or more")
    if number == 0:
        return "0"
    suffix = (_QUANTITY.match(text) or [None, None, ""])[2] or ""
    if suffix in _BINARY and number == number.to_integral_value():
        return _spell_binary(int(number))
    if suffix[:1] in ("e", "E") and len(suffix) > 1:
        return _spell_exponent(number)
    return _spell_decimal(number)


def _spell_binary(number: int) -> str:
    for suffix, factor in reversed(_BINARY.items()):
        if number % factor == 0:
            return f"{number // factor}{suffix}"
    return str(number)


def _spell_decimal(number: Decimal) -> str:
    for suffix, factor in reversed(_DECIMAL.items()):
        scaled = number / factor
        if scaled == scaled.to_integral_value() and scaled >= 1:
            return f"{int(scaled)}{suffix}"
    return f"{max(1, int((number / _DECIMAL['n']).to_integral_value(rounding='ROUND_UP')))}n"


def _spell_exponent(number: Decimal) -> str:
    exponent = 18
    while exponent > -9 and number % (Decimal(10) ** exponent) != 0:
        exponent -= 3
    scaled = int(number / (Decimal(10) ** exponent))
    return f"{scaled}e{exponent}" if exponent else str(scaled)


def duration_seconds(text: str) -> float:
    """Seconds of a duration such as 300ms, 2s, 5m or 1h. Raises ValueError where `text` is none."""
    match = _DURATION.match(text)
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
