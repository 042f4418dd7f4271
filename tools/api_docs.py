"""Write docs/api.md (every field of a GemmaServing) and docs/rules.md (what is refused or warned of) from the code."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gemma_operator.api.base import ApiModel, Rule
from gemma_operator.api.kubernetes import Kubernetes
from gemma_operator.api.pool import ONE_ARGUMENT, Argument
from gemma_operator.api.serving import API_VERSION, KIND, Spec
from gemma_operator.api.values import Duration, Quantity
from gemma_operator.engine.arguments import RESERVED
from gemma_operator.engine.checks import CHECKS

DOCS = Path(__file__).parents[1] / "docs"
GENERATED = "Written by `make generate` from the code; don't edit.\n\n"


def types_of(model: type[BaseModel], path: str = "spec") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every type below `model` with the path at which it stands, depth first, each once."""
    yield path, model
    for name, field in model.model_fields.items():
        child = f"{path}.{field.alias or name}"
        for kind in _models(field.annotation):
            yield from types_of(
                kind, child + (".NAME" if _is_map(field.annotation) else "[]" if _is_list(field.annotation) else "")
            )


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _is_map(annotation: Any) -> bool:
    return get_origin(_plain(annotation)) is dict


def _is_list(annotation: Any) -> bool:
    return get_origin(_plain(annotation)) is list


def _plain(annotation: Any) -> Any:
    """The annotation without Annotated and without None."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return _plain(next(argument for argument in get_args(annotation) if argument is not type(None)))
    return annotation


def _metadata(annotation: Any) -> list[Any]:
    found = list(getattr(annotation, "__metadata__", ()))
    for argument in get_args(annotation):
        found += _metadata(argument) if argument is not type(None) else []
    return found


def type_text(field: FieldInfo) -> str:
    """A field's type in words, with its bounds."""
    annotation, meta = field.annotation, [*field.metadata, *_metadata(field.annotation)]
    if kubernetes := next((m for m in meta if isinstance(m, Kubernetes)), None):
        return f"as `{kubernetes.path}` of Kubernetes"
    return _words(annotation, meta)


def _words(annotation: Any, meta: list[Any]) -> str:
    if annotation in (Quantity, Duration, Argument):
        return {Quantity: "quantity", Duration: "duration", Argument: "string"}[annotation]
    plain = _plain(annotation)
    origin, arguments = get_origin(plain), get_args(plain)
    if origin is Literal:
        return " \\| ".join(f"`{value}`" for value in arguments)
    if origin is list:
        return f"list of {_words(arguments[0], _metadata(arguments[0]))}"
    if origin is dict:
        return f"map of {_words(arguments[1], _metadata(arguments[1]))}"
    if isinstance(plain, type) and issubclass(plain, BaseModel):
        return f"[{plain.__name__}](#{plain.__name__.lower()})"
    if plain in (int, float):
        low = next((getattr(m, key) for m in meta for key in ("ge", "gt") if getattr(m, key, None) is not None), None)
        high = next((m.le for m in meta if getattr(m, "le", None) is not None), None)
        bounds = f" {low} to {high}" if low is not None and high is not None else ""
        return ("whole number" if plain is int else "number") + bounds
    return {str: "string", bool: "true or false"}.get(plain, "any")


def default_text(field: FieldInfo) -> str:
    """The default that stands in the type; others are in the description."""
    default = field.default
    if field.is_required():
        return "required"
    if isinstance(default, BaseModel) or default is None or default in ({}, []) or isinstance(default, dict):
        return ""
    return f"`{default}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def api_page() -> str:
    """The reference of all fields."""
    parts = [f"# API reference: {KIND} {API_VERSION}\n\n", GENERATED]
    parts.append(
        "`kubectl explain gemmaserving.spec --recursive` says the same. A flag in brackets is what the field becomes.\n"
    )
    seen: set[type[BaseModel]] = set()
    for path, model in types_of(Spec):
        if model in seen:
            continue
        seen.add(model)
        parts.append(f"\n## {model.__name__}\n\n`{path}`: {_cell(model.__doc__ or '')}\n\n")
        parts.append("| field | type | default | meaning |\n|---|---|---|---|\n")
        for name, field in model.model_fields.items():
            row = (f"`{field.alias or name}`", type_text(field), default_text(field), _cell(field.description or ""))
            parts.append(f"| {' | '.join(row)} |\n")
    return "".join(parts)


def rules_page() -> str:
    """The table of what is refused or warned of."""
    parts = ["# What is refused, and what is warned of\n\n", GENERATED]
    parts.append("## At `kubectl apply`\n\nEach is a CEL rule of the CRD and is checked again by the operator.\n\n")
    parts.append("| rule | of | message | source |\n|---|---|---|---|\n")
    for model, rule in api_rules():
        parts.append(f"| {rule.id} | {model} | {_cell(rule.message)} | {_cell(rule.source)} |\n")
    parts.append("\n## For the engine's version, the model and the GPU\n\n")
    parts.append("Refused: conditions `Valid` False and `Stalled` True, and what served before goes on serving. ")
    parts.append(
        "Warned: condition `SettingsSound` False.\n\n| reason | does | looks for | source |\n|---|---|---|---|\n"
    )
    for check in CHECKS:
        does = "refuses" if check.severity == "refuse" else "warns"
        parts.append(f"| {check.id} | {does} | {_cell(check.what)} | {_cell(check.source)} |\n")
    parts.append(
        "\n## Arguments of your own\n\n`extraArgs` win over ours, and `SettingsSound` says so. "
        "Refused are arguments that the engine would exit on, and these:\n\n"
    )
    parts.append("| flag | instead |\n|---|---|\n")
    parts += [f"| `{flag}` | {instead} |\n" for flag, instead in RESERVED.items()]
    return "".join(parts)


def api_rules() -> Iterator[tuple[str, Rule]]:
    """Every rule of the API with the type that keeps it."""
    seen: set[str] = set()
    for _, model in types_of(Spec):
        for rule in model.RULES if issubclass(model, ApiModel) else ():
            if rule.id not in seen:
                seen.add(rule.id)
                yield model.__name__, rule
    yield "Argument", ONE_ARGUMENT


def main() -> None:
    """Write both pages."""
    (DOCS / "api.md").write_text(api_page())
    (DOCS / "rules.md").write_text(rules_page())


if __name__ == "__main__":
    main()
