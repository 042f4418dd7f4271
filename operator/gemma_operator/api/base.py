"""What every API type is made of: the base model, its rules, and small shared types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gemma_operator.api.values import Schema

ShortText = Annotated[str, Field(min_length=1, max_length=512)]
Name = Annotated[str, Field(min_length=1, max_length=253)]
Labels = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Schema({"maxProperties": 64})]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule over several fields of a type, said once for the API server (CEL) and for us."""

    id: str
    """Stable name, for docs and tests."""
    cel: str
    """CEL expression over `self`, true where the rule is kept."""
    holds: Callable[..., Any]
    """The same over the parsed model."""
    message: str
    """What is allowed, and what to do."""
    shows: tuple[str, ...] = ()
    """Paths of the fields whose values the message begins with, in the spelling of the API (a.b.c)."""
    source: str = ""
    """Where the rule comes from."""

    def validation(self) -> dict[str, str]:
        """The rule as an entry of x-kubernetes-validations."""
        said = {"rule": self.cel, "message": self.message}
        if self.shows:
            text = f"{', '.join(f'{path} is %s' for path in self.shows)}: {_quoted(self.message)}"
            said["messageExpression"] = f"'{text}'.format([{', '.join(map(_spelled, self.shows))}])"
        return said

    def kept(self, model: Any) -> bool:
        """True where `model` keeps the rule."""
        return bool(self.holds(model))

    def sentence(self, model: Any) -> str:
        """What is wrong with `model`, for people."""
        shown = ", ".join(f"{path} is {_value(model, path)}" for path in self.shows)
        return f"{shown}: {self.message}" if shown else self.message


@dataclass(frozen=True, slots=True)
class EachPool(Rule):
    """A rule that every pool of `spec.pools` keeps: `cel` speaks of `self.pools[n]`, `holds` takes the spec and the name."""

    def validation(self) -> dict[str, str]:
        """The rule over all pools, naming those that break it."""
        broken = f"self.pools.filter(n, !({self.cel}))"
        return {
            "rule": f"!has(self.pools) || self.pools.all(n, {self.cel})",
            "message": self.message,
            # CEL's cost estimate bears no other way to put strings together.
            "messageExpression": f"'pools %s: {_quoted(self.message)}'.format([{broken}])",
        }

    def sentence(self, model: Any) -> str:
        """What is wrong, and with which pools."""
        return f"pools {', '.join(name for name in model.pools if not self.holds(model, name))}: {self.message}"

    def kept(self, model: Any) -> bool:
        """True where every pool keeps the rule."""
        return all(self.holds(model, name) for name in model.pools)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'").replace("%", "%%")


def _spelled(path: str) -> str:
    """CEL that spells the value at `path`, which may be absent."""
    parts = path.split(".")
    there = " && ".join(f"has(self.{'.'.join(parts[: end + 1])})" for end in range(len(parts)))
    return f"({there} ? string(self.{path}) : 'not set')"


def _value(model: Any, path: str) -> Any:
    for part in path.split("."):
        fields = {field.alias: name for name, field in type(model).model_fields.items()}
        model = getattr(model, fields[part])
        if model is None:
            return "not set"
    return model


class ApiModel(BaseModel):
    """Base of every API type: camelCase outside, frozen inside, unknown fields refused."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid", use_attribute_docstrings=True
    )
    RULES: ClassVar[tuple[Rule, ...]] = ()

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(reference := handler(core))
        if cls.RULES:
            schema["x-kubernetes-validations"] = [rule.validation() for rule in cls.RULES]
        return reference

    @model_validator(mode="after")
    def _keeps_its_rules(self) -> Self:
        if broken := [rule.sentence(self) for rule in type(self).RULES if not rule.kept(self)]:
            raise ValueError("; ".join(broken))
        return self


def distinct(items: list[Any]) -> list[Any]:
    """Kubernetes keeps such lists as maps by name and refuses a name that comes twice. Raises ValueError."""
    names = [getattr(item, "name", item) for item in items]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{twice!r} is there more than once; remove all but one")
    return items


class SecretKey(ApiModel):
    """One key of a Secret in the namespace of the GemmaServing."""

    name: Name
    """Name of the Secret."""
    key: Name = "token"
    """Key within the Secret."""


class Switch(ApiModel):
    """A feature that is on or off."""

    enabled: bool
    """true or false."""
