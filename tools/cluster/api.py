"""The few requests that starting a cluster makes to its API server, without any client library."""

import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from .console import ClusterError
from .pki import Certificate

FIELD_MANAGER = "tools-cluster"


class Api:
    def __init__(self, server: str, ca: Path, client: Certificate) -> None:
        self._server = server
        context = ssl.create_default_context(cafile=str(ca))
        context.load_cert_chain(client.cert, client.key)
        # An empty ProxyHandler: the cluster is on this machine, whatever the environment says of proxies
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context), urllib.request.ProxyHandler({})
        )

    def get(self, path: str) -> Any:
        return json.loads(self._call("GET", path))

    def apply(self, path: str, value: dict[str, Any]) -> None:
        """Server-side apply; JSON is YAML."""
        query = f"?fieldManager={FIELD_MANAGER}&force=true"
        self._call("PATCH", path + query, value, "application/apply-patch+yaml")

    def patch(self, path: str, value: Any) -> None:
        self._call("PATCH", path, value, "application/merge-patch+json")

    def delete(self, path: str) -> None:
        self._call("DELETE", path)

    def exists(self, path: str) -> bool:
        """False as well when the server doesn't answer yet."""
        try:
            self._call("GET", path)
        except (ClusterError, OSError):
            return False
        return True

    def _call(self, method: str, path: str, body: Any = None, content: str = "application/json") -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._server + path, data, {"Content-Type": content}, method=method)
        try:
            with self._opener.open(request, timeout=10) as answer:
                read: bytes = answer.read()
        except urllib.error.HTTPError as error:
            raise ClusterError(
                f"{method} {path} answered {error.code}: {error.read().decode(errors='replace')[:600]}"
            ) from error
        return read
