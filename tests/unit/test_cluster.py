"""What the API server's answers mean to the operator."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from gemma_operator.cluster import Cluster, Refused, as_yaml
from tests.unit.builders import body, serving, wanted


class Server:
    """Stands for one kind of the dynamic client: every call gives `answer` or raises it, and is kept."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.calls = answer, []  # type: ignore[var-annotated]

    def _call(self, **arguments: Any) -> Any:
        self.calls.append(arguments)
        if isinstance(self.answer, Exception):
            raise self.answer
        return SimpleNamespace(data=json.dumps(self.answer))

    get = create = delete = server_side_apply = _call

    @property
    def status(self) -> Server:
        return self


def cluster(answer: Any) -> tuple[Cluster, Server]:
    server, made = Server(answer), Cluster(client.ApiClient())
    made._resource = lambda kind: server  # type: ignore[method-assign]
    return made, server


def failure(status: int, message: str) -> ApiException:
    error = ApiException(status=status, reason="Reason")
    error.body = json.dumps({"message": message})
    return error


DEPLOYMENT = wanted(serving())[0]


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        ("2026-01-01T00:00:00Z hello\n", "2026-01-01T00:00:00Z hello\n"),
        (failure(400, "container is waiting to start"), ""),
        (failure(404, "gone"), ""),
    ],
    ids=["a log", "no container yet", "no Pod any more"],
)
async def test_the_start_of_an_engines_log_is_read_with_its_times(answer: Any, read: str) -> None:
    asked, calls = requesting(answer)
    assert await asked.log("ns", "p1") == read
    ((verb, path, options),) = calls
    query = dict(options["query_params"])
    assert (verb, path) == ("get", "/api/v1/namespaces/ns/pods/p1/log")
    assert (query["container"], query["timestamps"]) == ("engine", "true")
    assert query["limitBytes"] < 1 << 20


def requesting(answer: Any) -> tuple[Cluster, list[tuple[str, str, dict[str, Any]]]]:
    """A cluster that answers requests by path with this text, or this error, and the requests."""
    made, calls = Cluster(client.ApiClient()), list[tuple[str, str, dict[str, Any]]]()

    def request(verb: str, path: str, **options: Any) -> Any:
        calls.append((verb, path, options))
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(data=answer.encode())

    made._dynamic.request = request
    return made, calls


def test_the_clients_large_class_is_never_loaded() -> None:
    """80 MiB, at the first engine whose log was read."""
    code = """
import asyncio, contextlib, sys
from kubernetes import client
from gemma_operator import app
from gemma_operator.cluster import Cluster
async def main():
    cluster = Cluster(client.ApiClient(client.Configuration(host="http://127.0.0.1:9")))
    for call in (cluster.log("ns", "p"), cluster.last_words("ns", "p", True), cluster.evict("ns", "p", "uid")):
        with contextlib.suppress(Exception):
            await call
asyncio.run(main())
print("kubernetes.client.api.core_v1_api" in sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": "operator"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "False"


@given(st.text())
@example('gémma 🦒 \U0010ffff \x85\x7f\ufeff\u2028 \\ud83e "q"')
def test_what_is_applied_is_json_and_yaml_alike(text: str) -> None:
    """A4: seen on a real API server, which refuses an emoji that is escaped in two halves."""
    written = as_yaml({"text": text})
    assert json.loads(written) == yaml.safe_load(written) == {"text": text}
    assert not re.search(r"(?<!\\)(\\\\)*\\ud[89ab]", written)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (422, "Deployment is invalid: spec.template.spec.nodeSelector"),
        (400, "strict decoding error"),
        (403, "exceeded quota: gpus"),
        (
            500,
            "failed to create typed patch object (ns/a; apps/v1, Kind=Deployment): .spec.x: field not declared in schema",
        ),
    ],
)
async def test_a_refusal_is_told_in_the_servers_own_words(status: int, message: str) -> None:
    with pytest.raises(Refused) as refused:
        await cluster(failure(status, message))[0].apply(DEPLOYMENT)
    assert str(refused.value) == message


async def test_a_refusal_without_a_sentence_gives_its_status() -> None:
    with pytest.raises(Refused, match="422 Unprocessable"):
        await cluster(ApiException(status=422, reason="Unprocessable"))[0].apply(DEPLOYMENT)


@pytest.mark.parametrize("status", [0, 401, 409, 429, 500, 503, 504])
async def test_what_may_work_next_time_goes_up_to_be_tried_again(status: int) -> None:
    with pytest.raises(ApiException):
        await cluster(failure(status, "etcdserver: leader changed"))[0].apply(DEPLOYMENT)


async def test_a_crd_that_admission_does_not_know_yet_is_tried_again() -> None:
    """Right after the chart is installed, where OwnerReferencesPermissionEnforcement is on (as on OpenShift)."""
    said = 'deployments.apps "a" is forbidden: cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion'
    with pytest.raises(ApiException):
        await cluster(failure(403, said))[0].apply(DEPLOYMENT)


async def test_what_is_not_there_is_none_and_may_be_deleted() -> None:
    gone, _ = cluster(failure(404, "not found"))
    assert await gone.get("Deployment", "ns", "a") is None
    assert await gone.list("Deployment", "ns", "a=b") == []
    await gone.delete("Deployment", "ns", "a")
    await gone.put_status("ns", "a", {})


@pytest.mark.parametrize("status", [403, 404, 500])
async def test_an_event_is_a_courtesy(status: int) -> None:
    made, server = cluster(failure(status, "no"))
    await made.event(body(name="x" * 253), "Normal", "Ready", "m" * 5000, "operator-1")
    (sent,) = [call["body"] for call in server.calls]
    assert len(sent["message"]) <= 1024
    assert len(sent["metadata"]["generateName"]) < 253


async def test_every_item_of_a_list_knows_its_kind_and_version() -> None:
    """The API server says them of the list only; without them nothing is ever as wanted, and all is applied for ever."""
    made, _ = cluster({"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "a"}}]})
    assert await made.list("Pod", "ns", "a=b") == [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}]


async def test_writes_name_their_owner_and_are_strict() -> None:
    made, server = cluster({})
    await made.apply(DEPLOYMENT, dry_run=True)
    await made.apply(DEPLOYMENT)
    await made.scale("ns", "chat-interactive", 3)
    dry, real, scaled = server.calls
    assert [call["field_manager"] for call in server.calls] == [
        "gemma-operator",
        "gemma-operator",
        "gemma-operator-scaler",
    ]
    assert ("dryRun", "All") in dry["query_params"]
    assert ("dryRun", "All") not in real["query_params"]
    assert all(("fieldValidation", "Strict") in call["query_params"] for call in server.calls)
    assert json.loads(scaled["body"])["spec"] == {"replicas": 3}


async def test_every_request_has_a_time_limit() -> None:
    made, server = cluster({"apiVersion": "v1", "items": []})
    await made.get("Pod", "ns", "a")
    await made.list("Pod", "ns", "a=b")
    await made.apply(DEPLOYMENT)
    await made.delete("Pod", "ns", "a")
    await made.event(body(), "Normal", "Ready", "m", "operator-1")
    assert all(call["_request_timeout"] for call in server.calls)


LISTED = {
    "/apis": {"groups": [{"name": "gemmaserving.dev"}]},
    "/apis/gemmaserving.dev/v1alpha1": {"resources": [{"name": "gemmaservings"}]},
}


@pytest.mark.parametrize(
    ("answers", "listed"),
    [
        (LISTED, True),
        ({**LISTED, "/apis": {"groups": []}}, False),
        ({**LISTED, "/apis/gemmaserving.dev/v1alpha1": {"resources": []}}, False),
        ({**LISTED, "/apis/gemmaserving.dev/v1alpha1": failure(404, "not found")}, False),
    ],
)
async def test_a_kind_is_listed_by_its_group_and_in_it(answers: dict[str, Any], listed: bool) -> None:
    made = Cluster(client.ApiClient())

    def request(method: str, path: str, **_: Any) -> Any:
        if isinstance(answers[path], Exception):
            raise answers[path]
        return SimpleNamespace(data=json.dumps(answers[path]))

    made._dynamic.request = request  # type: ignore[method-assign]
    assert await made.is_listed("GemmaServing") is listed


@pytest.mark.parametrize(
    ("answer", "came"),
    [
        (None, True),
        (failure(404, "pods gone not found"), False),
        (failure(409, "the UID in the precondition is another"), ApiException),
        (failure(429, "Cannot evict pod as it would violate the pod's disruption budget."), ApiException),
        (failure(403, "no right to pods/eviction"), Refused),
    ],
    ids=["evicted", "gone already", "another Pod of its name", "kept by a budget", "no right"],
)
async def test_an_eviction_tells_done_from_gone(answer: Exception | None, came: bool | type[Exception]) -> None:
    asked, calls = requesting(answer or "{}")
    eviction = asked.evict("ns", "pod", "uid")
    if isinstance(came, bool):
        assert await eviction is came
    else:
        with pytest.raises(came):
            await eviction
    ((verb, path, options),) = calls
    assert (verb, path) == ("post", "/api/v1/namespaces/ns/pods/pod/eviction")
    assert options["body"]["deleteOptions"] == {"preconditions": {"uid": "uid"}}


async def test_what_was_created_or_reported_is_known_as_its_own_and_a_dry_run_is_not() -> None:
    answer = {"metadata": {"resourceVersion": "41", "generation": 3}}
    made, server = cluster(answer)
    await made.apply(DEPLOYMENT, dry_run=True, is_new=True)
    await made.apply(DEPLOYMENT)
    assert not made.wrote("41"), "what was there before may be as another wrote it"
    await made.put_status("ns", "chat", {"observedGeneration": 2})
    assert not made.wrote("41"), "of a spec that came meanwhile nothing was looked at"
    await made.apply(DEPLOYMENT, is_new=True)
    server.answer = {"metadata": {"resourceVersion": "42", "generation": 3}}
    await made.put_status("ns", "chat", {"observedGeneration": 3})
    assert made.wrote("41")
    assert made.wrote("42")
    server.answer = {"metadata": {}}
    await made.apply(DEPLOYMENT, is_new=True)
    assert not made.wrote("")
    server.answer = {"metadata": {"resourceVersion": "44", "generation": 4}}
    await made.put_status("ns", "chat", {"observedGeneration": 3})
    assert not made.wrote("44"), "the spec has changed since: this may be all that tells of it"
    server.answer = {"metadata": {"resourceVersion": "43"}}
    await made.scale("ns", "chat-batch", 3)
    assert not made.wrote("43"), "another manager's: what comes of it has to be looked at"


async def test_metadata_is_read_in_chunks_and_without_the_rest() -> None:
    made, server = cluster({"items": [{"metadata": {"name": "a"}}], "metadata": {"continue": "more"}})
    found = []
    async for meta in made.metadata("Pod", "", "a=b"):
        found.append(meta["name"])
        server.answer = {"items": [{"metadata": {"name": "b"}}], "metadata": {}}
    assert found == ["a", "b"]
    assert [call["_continue"] for call in server.calls] == [None, "more"]
    assert all("PartialObjectMetadataList" in call["header_params"]["Accept"] for call in server.calls)
    assert all(call["limit"] < 1000 for call in server.calls)
    server.answer = {"items": None, "metadata": {}}
    assert [meta async for meta in made.metadata("Pod", "", "")] == []
    server.answer = failure(404, "the server could not find the requested resource")
    assert [meta async for meta in made.metadata("HTTPRoute", "", "")] == []
