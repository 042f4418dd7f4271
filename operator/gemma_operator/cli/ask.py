"""Questions to the API server from the command line: whatever goes wrong is one clear line."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from gemma_operator.api.serving import KIND
from gemma_operator.settings import BadSetting

if TYPE_CHECKING:
    from gemma_operator.cluster import Cluster

T = TypeVar("T")


def ask(question: Callable[[Cluster], Awaitable[T]], what: str, who: str) -> T:
    """The answer to a question about `what`; the audit log tells `who` asks. Raises BadSetting with a sentence for people."""
    from kubernetes.client.exceptions import ApiException  # takes 0.5 s that other commands don't need
    from kubernetes.dynamic.exceptions import DynamicApiError, ResourceNotFoundError
    from urllib3.exceptions import HTTPError

    from gemma_operator.cluster import Cluster, Refused
    from gemma_operator.connection import NoCluster, connect

    logging.getLogger("urllib3").setLevel(logging.ERROR)  # its retries are no news for who gets one clear line
    try:
        return asyncio.run(_answer(question, Cluster(connect(who))))
    except NoCluster as error:
        raise BadSetting(str(error)) from error
    except Refused as error:
        raise BadSetting(f"{what} can't be read: {error}") from error
    except ResourceNotFoundError as error:
        raise BadSetting(f"this cluster knows no {KIND}: is the chart installed?") from error
    except (ApiException, DynamicApiError, HTTPError, OSError) as error:
        said = " ".join(str(getattr(error, "reason", "") or error).split())
        raise BadSetting(f"the API server can't be asked: {said[:200]}") from error


async def _answer(question: Callable[[Cluster], Awaitable[T]], cluster: Cluster) -> T:
    return await question(cluster)


def namespace() -> str:
    """The kubeconfig's namespace."""
    from kubernetes import config

    from gemma_operator.connection import UNUSABLE

    try:
        _, active = config.list_kube_config_contexts()
        return str(active.get("context", {}).get("namespace", "default"))
    except UNUSABLE:
        return "default"  # in a Pod, or nowhere: connecting says which
