"""How objects are printed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml


class _Plain(yaml.SafeDumper):
    """Writes equal parts out in full, for people."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Plain, text: str) -> yaml.ScalarNode:
    """Lines as lines."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _text)


def dump(objects: Iterable[dict[str, Any]]) -> str:
    """Objects as YAML documents."""
    return str(yaml.dump_all(objects, Dumper=_Plain, sort_keys=False, width=120, allow_unicode=True))
