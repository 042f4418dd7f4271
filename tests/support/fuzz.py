"""Specs against the real judges: our models, the API server, and the engine's own argument parser."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kubernetes import config

from gemma_operator.api.parse import InvalidServing, parse
from gemma_operator.api.serving import API_VERSION, KIND, PLURAL
from gemma_operator.cluster import as_yaml
from gemma_operator.desired import Defaults, desired
from gemma_operator.engine.findings import RefusedSpec
from gemma_operator.engine.versions import UnknownVersion
from tests.support.engine_parser import INSTALLED, EngineParser
from tools.cluster.control_plane import ControlPlane

VERSION = (0, 32, 0)
DEFAULTS = Defaults("vllm/vllm-openai:v0.32.0")
_PATHS = {
    "Deployment": "apis/apps/v1", "PodDisruptionBudget": "apis/policy/v1", "Service": "api/v1", "PersistentVolumeClaim": "api/v1",
}  # fmt: skip
_PLURALS = {kind: f"{kind.lower()}s" for kind in _PATHS}


@dataclass
class Judges:
    """Judges specs one by one and counts the outcomes. Nothing is stored: every write is a dry run."""

    plane: ControlPlane
    parser: EngineParser
    outcomes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        api = config.new_client_from_config(str(self.plane.kubeconfig))
        self._http, self._server = api.rest_client.pool_manager, api.configuration.host

    def judge(self, spec: Any) -> str:
        """What becomes of a spec, in a word; AssertionError where it is neither refused with words nor served rightly."""
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": "fuzz", "namespace": "default"},
            "spec": spec,
        }
        at_apply = self._write(
            "POST", f"apis/{API_VERSION}/namespaces/default/{PLURAL}?fieldValidation=Strict&dryRun=All", body
        )
        outcome = self._outcome(body, at_apply)
        self.outcomes[outcome] += 1
        return outcome

    def _outcome(self, body: dict[str, Any], at_apply: str | None) -> str:
        try:
            want = desired(parse({**body, "metadata": {**body["metadata"], "uid": ""}}), DEFAULTS)
        except (InvalidServing, UnknownVersion, RefusedSpec) as error:
            text = str(error)
            assert text
            assert "\n" not in text, f"no sentence: {text!r}"
            return "refused at apply" if at_apply else "refused in a condition"
        if at_apply:
            # The API server refuses what we would take: nobody is harmed, but the two sets of rules should be one.
            return "refused at apply only"
        for engine in want.engines.values():
            if engine.view.version != INSTALLED or engine.view.custom_command:
                continue
            refused = self.parser.accepts(engine.command.args)
            assert refused is None, f"the engine's parser refuses {engine.command.args}: {refused}"
        for child in (found for found in want.objects if found["kind"] in _PATHS):
            kind, name = child["kind"], child["metadata"]["name"]
            path = f"{_PATHS[kind]}/namespaces/default/{_PLURALS[kind]}/{name}"
            query = "?fieldManager=fuzz&force=true&dryRun=All&fieldValidation=Strict"
            if refused := self._write("PATCH", path + query, child):
                assert refused, "the API server refuses without a word"
                return f"child refused: {refused}"
        return "served"

    def _write(self, verb: str, path: str, body: Any) -> str | None:
        """What the API server says against a write; None where it takes it."""
        kind = "application/apply-patch+yaml" if verb == "PATCH" else "application/json"
        answer = self._http.request(verb, f"{self._server}/{path}", body=as_yaml(body), headers={"Content-Type": kind})
        return None if answer.status < 300 else str(json.loads(answer.data).get("message", answer.data))

    def summary(self) -> str:
        """The outcomes with their counts; what was said about children in groups."""
        groups: Counter[str] = Counter()
        for outcome, count in self.outcomes.items():
            groups[outcome.partition(":")[0]] += count
        return ", ".join(f"{count} {outcome}" for outcome, count in groups.most_common())
