"""The API server over one connection that is kept, as admin: for tests that ask much."""

from __future__ import annotations

import json
from typing import Any

import requests
import yaml

from tools.cluster.control_plane import ControlPlane


class Session:
    """For one thread. Raises requests.HTTPError where the API server refuses."""

    def __init__(self, plane: ControlPlane) -> None:
        config = yaml.safe_load(plane.kubeconfig.read_text())
        self._server = config["clusters"][0]["cluster"]["server"]
        self._http = requests.Session()
        self._http.trust_env = False
        self._http.verify = str(plane.state.pki / "ca.crt")
        self._http.cert = (str(plane.state.pki / "admin.crt"), str(plane.state.pki / "admin.key"))

    def get(self, path: str) -> dict[str, Any]:
        """An object, or a list."""
        answer = self._http.get(self._server + path, timeout=30)
        answer.raise_for_status()
        return dict(answer.json())

    def apply(self, path: str, body: dict[str, Any]) -> None:
        """Server-side apply."""
        self._patch(f"{path}?fieldManager=test&force=true", body, "apply-patch+yaml")

    def merge(self, path: str, body: dict[str, Any]) -> None:
        """A merge patch; an object that is gone is no error."""
        self._patch(path, body, "merge-patch+json", is_missed=False)

    def delete(self, path: str) -> None:
        """Delete an object."""
        self._http.delete(self._server + path, timeout=30).raise_for_status()

    def _patch(self, path: str, body: dict[str, Any], kind: str, is_missed: bool = True) -> None:
        headers = {"Content-Type": f"application/{kind}"}
        answer = self._http.patch(self._server + path, json.dumps(body), headers=headers, timeout=30)
        if is_missed or answer.status_code != requests.codes.not_found:
            answer.raise_for_status()
