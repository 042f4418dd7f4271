"""Prints a software bill of materials (CycloneDX 1.6, JSON) of the Python packages that this interpreter sees."""

import hashlib
import importlib.metadata
import json
from typing import Any


def component(package: importlib.metadata.Distribution) -> dict[str, Any]:
    name, version = package.metadata["Name"], package.version
    about = package.metadata
    licence = next((about[field] for field in ("License-Expression", "License") if field in about), "")
    found: dict[str, Any] = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{version}",
    }
    record = package.read_text("RECORD")
    if record:
        # Of the list of the installed files with their hashes: two installations are alike when it is.
        found["hashes"] = [{"alg": "SHA-256", "content": hashlib.sha256(record.encode()).hexdigest()}]
    if licence and len(licence) < 100:
        found["licenses"] = [{"license": {"name": licence.strip()}}]
    return found


def bill() -> dict[str, Any]:
    packages = {package.metadata["Name"]: package for package in importlib.metadata.distributions()}
    components = [component(packages[name]) for name in sorted(packages, key=str.lower)]
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": components}


if __name__ == "__main__":
    print(json.dumps(bill(), indent=1))
