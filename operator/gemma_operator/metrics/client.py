"""A Prometheus server, or what speaks its query API, as one call: a PromQL text in, its result out."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3
from prometheus_api_client import PrometheusApiClientException, PrometheusConnect
from pydantic_core import from_json
from urllib3.exceptions import HTTPError, InsecureRequestWarning
from urllib3.util import Retry

from gemma_operator.scaling.counters import Missing, MissingReason

MAX_ERROR_CHARACTERS = 300
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""What reading JSON of an unexpected form raises."""
LEAST_SECONDS = 0.05


class SourceFailed(Exception):
    """There is no answer; `missing` says why, for people."""

    def __init__(self, missing: Missing) -> None:
        super().__init__(missing.message)
        self.missing = missing


class QueryRefused(SourceFailed):
    """The server answers, but not to this query: the query is at fault."""


@dataclass(frozen=True, slots=True)
class Access:
    """How a Prometheus is spoken to."""

    url: str
    token_file: Path | None = None
    """File with a bearer token, read again for each tick: the kubelet rotates service account tokens."""
    ca_file: str = ""
    """Certificates that its certificate is checked against; the system's where empty."""
    skip_tls_verify: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further HTTP headers, such as a tenant's X-Scope-OrgID."""


class PrometheusClient:
    """Asks with one deadline for all queries of a tick, and never twice: the next tick asks again."""

    def __init__(self, access: Access, timeout_seconds: float = 5) -> None:
        self.name = f"Prometheus at {_without_credentials(access.url)}"
        self._access = access
        self._timeout = timeout_seconds
        self._until = 0.0
        if access.skip_tls_verify:
            urllib3.disable_warnings(InsecureRequestWarning)  # asked for; a warning per tick says nothing more
        session = requests.Session()
        session.verify = False if access.skip_tls_verify else (access.ca_file or True)
        session.hooks["response"] += [_raise_for_refusal, _read_fast]
        self._connection = PrometheusConnect(url=access.url.rstrip("/"), session=session, retry=Retry(total=0))

    def begin(self) -> None:
        """Start a tick: its deadline, and the token as it is now. Raises SourceFailed."""
        self._until = time.monotonic() + self._timeout
        self._connection.headers = dict(self._access.headers)
        if self._access.token_file:
            try:
                token = self._access.token_file.read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise self._failed(MissingReason.UNAUTHORIZED, f"needs a token: {explain(error)}") from error
            if not (token.isascii() and token.isprintable() and token):
                said = f"needs a token: {self._access.token_file} holds none (one line of ASCII)"
                raise self._failed(MissingReason.UNAUTHORIZED, said)
            self._connection.headers["Authorization"] = f"Bearer {token}"

    def query(self, promql: str) -> Any:
        """The `result` of an instant query. Raises SourceFailed, or QueryRefused where the query is at fault."""
        left = max(LEAST_SECONDS, self._until - time.monotonic())
        try:
            return self._connection.custom_query(promql, params={"timeout": f"{left * 1000:.0f}ms"}, timeout=left)
        except _Unauthorized as error:
            message = (
                f"refuses the operator's credentials: {error}; see metrics.prometheusTokenFile in the chart's values"
            )
            raise self._failed(MissingReason.UNAUTHORIZED, message) from error
        except _Refused as error:
            missing = Missing(MissingReason.QUERY_FAILED, f"{self.name} refuses the query: {explain(error)}")
            raise QueryRefused(missing) from error
        except (PrometheusApiClientException, HTTPError, OSError, *MALFORMED) as error:
            raise self._failed(MissingReason.QUERY_FAILED, f"could not be read: {explain(error)}") from error

    def malformed(self, error: Exception) -> SourceFailed:
        """An answer whose form is another than a query's result has."""
        return self._failed(MissingReason.QUERY_FAILED, f"answered something else than a vector: {explain(error)}")

    def _failed(self, reason: MissingReason, what: str) -> SourceFailed:
        return SourceFailed(Missing(reason, f"{self.name} {what}"))


class _Unauthorized(Exception):
    pass


class _Refused(Exception):
    pass


def _raise_for_refusal(response: requests.Response, *_: Any, **__: Any) -> None:
    """The API client knows only "not 200"; who has to act depends on which."""
    if response.status_code in (401, 403):
        raise _Unauthorized(f"HTTP {response.status_code}")
    if response.status_code in (400, 422):
        try:
            said = str(response.json()["error"])
        except MALFORMED:
            said = response.text
        raise _Refused(f"HTTP {response.status_code} {said}")


class _Answer(requests.Response):
    """Of 2,000 engines it is 20 MB: this reader takes half the time, and keeps each label once."""

    def json(self, **_: Any) -> Any:
        return from_json(self.content)


def _read_fast(response: requests.Response, *_: Any, **__: Any) -> None:
    # A method of its own would keep the answer alive with itself, until the collector comes.
    response.__class__ = _Answer


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def explain(error: Exception) -> str:
    """An exception in one short line without what could be a secret."""
    text = re.sub(r" with url: \S+", "", " ".join(str(error).split()))
    text = re.sub(r"//[^/@\s]*@", "//", text)
    if cause := re.search(r"\[Errno -?\d+\] ([^'\")]+)", text):
        text = cause[1]  # of the pools and adapters that it came through, nobody has heard
    shown = text if len(text) <= MAX_ERROR_CHARACTERS else text[:MAX_ERROR_CHARACTERS] + "…"
    kind = "" if isinstance(error, _Refused) else f"{type(error).__name__}: "
    return kind + shown
