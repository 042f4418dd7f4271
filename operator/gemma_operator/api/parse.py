"""From an object of the API server to a GemmaServing, or to a sentence that says what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from gemma_operator.api.scaling import CapacityProfile
from gemma_operator.api.serving import GemmaServing

MOST_CHARACTERS = 64 * 1024
"""Of a capacity profile."""


class InvalidServing(ValueError):
    """The object breaks a rule of the API; the text names field, value and what is allowed."""


def parse(body: Mapping[str, Any]) -> GemmaServing:
    """Parse a live object. Raises InvalidServing."""
    meta = body.get("metadata")
    meta = meta if isinstance(meta, Mapping) else {}
    if not meta.get("name"):
        raise InvalidServing("metadata.name: required")
    spec = _without_nulls(body.get("spec")) or {}
    try:
        # The API server drops a field in Python's spelling (max_num_seqs); we must not know it either.
        return GemmaServing.model_validate(
            {
                "namespace": meta.get("namespace") or "default",
                "name": meta["name"],
                "uid": meta.get("uid") or "",
                "generation": meta.get("generation") or 0,
                "spec": spec,
                "written": spec if isinstance(spec, dict) else {},
            },
            by_alias=True,
            by_name=False,
        )
    except ValidationError as error:
        raise InvalidServing("; ".join(_sentence(problem) for problem in error.errors()[:5])) from error


def stored_profile(text: str) -> CapacityProfile:
    """The capacity profile that a ConfigMap's key holds. Raises ValueError, which says what is wrong."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"it is {len(text)} characters long; at most {MOST_CHARACTERS} are read")
    try:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise ValueError("it has YAML aliases (*name): write the values out")
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"it is no YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(found, dict):
        raise ValueError("it must be a map with costs and points")
    try:
        return CapacityProfile.model_validate(_without_nulls(found), by_alias=True, by_name=False)
    except ValidationError as error:
        raise ValueError("; ".join(_sentence(problem) for problem in error.errors()[:5])) from error


def _without_nulls(value: Any, keep: bool = False) -> Any:
    """Absent and null are the same to us, save for the body of a pool (`batch:` alone)."""
    if isinstance(value, dict):
        return {k: _without_nulls(v, k == "pools") for k, v in value.items() if v is not None or keep}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


# Values under these fields may be secrets: they are never repeated.
_PRIVATE = {"env", "tokenSecretRef", "apiKeySecretRef"}
_NAMES_A_SECRET = re.compile(r"api.?key|token", re.IGNORECASE)


_WANTED = {
    "model_type": "must be a map",
    "dict_type": "must be a map",
    "list_type": "must be a list, one item per line with a hyphen",
    "string_type": "must be a string: put it in quotes",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
}


def _sentence(problem: Any) -> str:
    # A field's name and a value may hold line breaks.
    return " ".join(_said(problem).split())


def _said(problem: Any) -> str:
    path = ".".join(str(part) for part in problem["loc"] if part not in ("function-after", "[key]"))
    text = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return f"{path}: unknown field"
    if problem["type"] == "missing":
        return f"{path}: required"
    text = _WANTED.get(problem["type"], text)
    value = problem.get("input")
    plain = isinstance(value, (str, int, float, bool)) and _PRIVATE.isdisjoint(problem["loc"])
    plain = plain and not _NAMES_A_SECRET.search(str(value))
    shown = f" (value {value!r:.80})" if plain else ""
    # What api/kubernetes.py says begins with the rest of the path.
    return f"{path}{text}" if text[:1] in ("[", ".", ":") else f"{path}: {text}{shown}"
