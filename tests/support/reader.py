"""Objects read over HTTP by the names that kubectl takes: a kubectl process for each look of a wait costs more than what it waits for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import urllib3
from kubernetes import config

DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def reader(kubeconfig: Path) -> Reader:
    """The reader of a kubeconfig: one, as it keeps its connection, for as long as the cluster is not made anew."""
    return _reader(kubeconfig, kubeconfig.stat().st_mtime_ns)


@cache
def _reader(kubeconfig: Path, written_at: int) -> Reader:
    return Reader(kubeconfig)


class Reader:
    """The API server of a kubeconfig. Raises AssertionError, with what the server said, where kubectl would fail."""

    def __init__(self, kubeconfig: Path) -> None:
        self._api = config.new_client_from_config(str(kubeconfig))
        self._kinds: dict[str, tuple[str, str, bool]] = {}

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """One object, or None."""
        return self._read(f"{self._path(kind, namespace)}/{quote(name)}")

    def list(self, kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """Objects of a kind, as kubectl shows them: with their kind, without managed fields."""
        found = self._read(f"{self._path(kind, namespace)}?labelSelector={quote(selector)}")
        assert found is not None, f"{kind}: not served"
        named = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
        for item in found["items"]:
            item["metadata"].pop("managedFields", None)
        return [named | item for item in found["items"]]

    def _path(self, kind: str, namespace: str) -> str:
        if kind not in self._kinds:
            self._kinds = dict(reversed([*self._served()]))  # the first of a name wins
        assert kind in self._kinds, f"the server has no resource type {kind!r}"
        version, plural, is_namespaced = self._kinds[kind]
        return f"{version}/namespaces/{namespace}/{plural}" if is_namespaced else f"{version}/{plural}"

    def _served(self) -> Iterator[tuple[str, tuple[str, str, bool]]]:
        """Each name of a resource, and where it is: the core group first, of each group its preferred version."""
        for root in ("/api", "/apis"):
            groups = self._read(root, DISCOVERY)
            assert groups is not None
            for group in groups["items"]:
                name = group["metadata"].get("name")
                for version in group["versions"]:
                    path = f"{root}/{name}/{version['version']}" if name else f"{root}/{version['version']}"
                    for resource in version["resources"]:
                        plural = resource["resource"]
                        where = (path, plural, resource["scope"] == "Namespaced")
                        for word in (
                            plural,
                            resource["singularResource"],
                            f"{plural}.{name}",
                            *resource.get("shortNames", ()),
                        ):
                            yield word, where

    def _read(self, path: str, accept: str = "application/json") -> dict[str, Any] | None:
        request = self._api.param_serialize(
            "GET", path, header_params={"Accept": accept}, auth_settings=["BearerToken"]
        )
        try:
            answer = self._api.call_api(*request, _request_timeout=30)
        except urllib3.exceptions.HTTPError as error:
            raise AssertionError(f"GET {path} failed: {error}") from error
        text = answer.read()
        if answer.status == 404:
            return None
        assert answer.status == 200, f"GET {path} answered {answer.status}: {text[:600]!r}"
        return dict(json.loads(text))
