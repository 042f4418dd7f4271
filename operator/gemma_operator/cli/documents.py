"""GemmaServings from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from gemma_operator.api.parse import InvalidServing
from gemma_operator.api.serving import KIND


def read_documents(file: Path, namespace: str) -> list[dict[str, Any]]:
    """The GemmaServings in a file; `namespace` is that of one which names none. Raises InvalidServing."""
    try:
        documents = [document for document in yaml.safe_load_all(file.read_text()) if document]
    except OSError as error:
        raise InvalidServing(f"{file}: can't be read: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidServing(f"{file}: is no YAML: {error}") from error
    if not documents or any(not isinstance(d, dict) or d.get("kind") != KIND for d in documents):
        raise InvalidServing(f"{file}: must hold GemmaServings, and nothing else")
    for document in documents:
        if isinstance(meta := document.get("metadata"), dict):
            meta.setdefault("namespace", namespace)
    return documents
