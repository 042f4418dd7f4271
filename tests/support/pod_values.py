"""Random values for the fields of a Pod, from Kubernetes' schema, mostly such that the API server takes them."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gemma_operator.api.kubernetes import TYPES, Node, keys_of, unions

QUANTITIES = ["1024Mi", "0.5", "1000m", "1e3", "2", 1, "0", "1.5Gi", "0.1", 1.5, "100M", "1Ti", "+3", "1E3"]
_NAMES = st.sampled_from(["alpha", "beta-2", "c3"])
_PATHS = st.sampled_from(["/data", "/data/a", "/opt/b"])
_LABEL_KEYS = st.sampled_from(["app", "example.com/tier", "gpu.type"])
_LABEL_VALUES = st.sampled_from(["", "a", "H200-141GB", "1"])
_PORTS = st.integers(1, 65535)
_SECONDS = st.integers(1, 600)
# Where any string or number would be refused. By field, or by type and field.
_LIKELY: dict[str, st.SearchStrategy[Any]] = {
    "name": _NAMES,
    "key": _LABEL_KEYS,
    "ConfigMapKeySelector.key": _NAMES,
    "SecretKeySelector.key": _NAMES,
    "KeyToPath.path": st.sampled_from(["a", "b/c"]),
    "DownwardAPIVolumeFile.path": st.sampled_from(["a", "b/c"]),
    "NodeSelectorRequirement.operator": st.just("In"),
    "LabelSelectorRequirement.operator": st.just("In"),
    "PodReadinessGate.conditionType": _LABEL_KEYS,
    "PodOS.name": st.just("linux"),
    "ContainerResizePolicy.restartPolicy": st.sampled_from(["NotRequired", "RestartContainer"]),
    "resourceName": st.sampled_from(["cpu", "memory"]),
    "ContainerRestartRule.action": st.just("Restart"),
    "ContainerRestartRuleOnExitCodes.operator": st.just("In"),
    "ContainerRestartRuleOnExitCodes.values": st.lists(st.integers(1, 255), min_size=1, max_size=3, unique=True),
    "namespaces": st.lists(_NAMES, max_size=2, unique=True),
    "overhead": st.fixed_dictionaries(
        {}, optional={"cpu": st.sampled_from(["0.1", "250m"]), "memory": st.just("1024Mi")}
    ),
    "values": st.lists(_LABEL_VALUES, min_size=1, max_size=3, unique=True),
    "mountPath": _PATHS,
    "devicePath": _PATHS,
    "workingDir": _PATHS,
    "terminationMessagePath": _PATHS,
    "subPath": st.sampled_from(["", "x", "x/y"]),
    "subPathExpr": st.just(""),
    "topologyKey": st.sampled_from(["kubernetes.io/hostname", "topology.kubernetes.io/zone"]),
    "maxSkew": st.integers(1, 5),
    "minDomains": st.just(None),
    "weight": st.integers(1, 100),
    "IntOrString": st.one_of(_PORTS, st.just("http")),
    "port": _PORTS,
    "containerPort": _PORTS,
    "hostPort": st.just(0),
    "int32": st.integers(0, 20),
    "int64": st.integers(1, 600),
    "successThreshold": st.integers(0, 1),
    "Probe.terminationGracePeriodSeconds": st.just(None),
    "mode": st.integers(0, 0o777),
    "defaultMode": st.integers(0, 0o777),
    "expirationSeconds": st.integers(600, 3600),
    "ip": st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1"]),
    "nameservers": st.lists(st.sampled_from(["10.0.0.1", "10.0.0.2"]), min_size=1, unique=True),
    "searches": st.lists(_NAMES, max_size=2),
    "hostnames": st.lists(_NAMES, min_size=1, max_size=2),
    "fieldPath": st.sampled_from(["metadata.name", "metadata.namespace"]),
    "resource": st.sampled_from(["limits.cpu", "requests.memory"]),
    "divisor": st.sampled_from(["1", 1, "0", "1000m"]),
    "apiVersion": st.just("v1"),
    "Container.image": _NAMES,
    "medium": st.sampled_from(["", "Memory"]),
    "restartPolicy": st.sampled_from([None, "Always"]),
    "preemptionPolicy": st.just(None),
    "dnsPolicy": st.sampled_from(["ClusterFirst", "Default"]),
    "labels": st.dictionaries(_LABEL_KEYS, _LABEL_VALUES, max_size=2),
    "annotations": st.dictionaries(_LABEL_KEYS, st.text("ab ü", max_size=4), max_size=2),
    "matchLabels": st.dictionaries(_LABEL_KEYS, _LABEL_VALUES, max_size=2),
    "nodeSelector": st.dictionaries(_LABEL_KEYS, _LABEL_VALUES, max_size=2),
    "matchLabelKeys": st.just([]),
    "mismatchLabelKeys": st.just([]),
    "limits": st.dictionaries(st.sampled_from(["cpu", "memory"]), st.sampled_from(["4000m", 8, "1024Gi", "16"])),
    "requests": st.dictionaries(st.sampled_from(["cpu", "memory"]), st.sampled_from(["0.5", "1000m", 1, "1"])),
    "type": st.sampled_from(["RuntimeDefault", "Unconfined"]),
    "HostPathVolumeSource.type": st.sampled_from(["", "Directory"]),
    "localhostProfile": st.just(None),
    "windowsOptions": st.just(None),
    "procMount": st.sampled_from([None, "Default"]),
    "sysctls": st.sampled_from([[], [{"name": "net.core.somaxconn", "value": "1024"}]]),
    "accessModes": st.just(["ReadWriteOnce"]),
    "storageClassName": st.sampled_from(["", "fast"]),
    "volumeAttributesClassName": st.sampled_from(["", "gold"]),
    "VolumeResourceRequirements.requests": st.fixed_dictionaries(
        {"storage": st.sampled_from(["1024Mi", "1Gi", "10G"])}
    ),
    "VolumeResourceRequirements.limits": st.just({}),
    "dataSource": st.just(None),
    "dataSourceRef": st.just(None),
    "mountPropagation": st.sampled_from([None, "None", "HostToContainer"]),
    "recursiveReadOnly": st.sampled_from([None, "Disabled"]),
    "command": st.lists(st.sampled_from(["sleep", "", "$(X)", "ü"]), min_size=1, max_size=3),
    "schedulerName": _NAMES,
    "serviceAccountName": st.sampled_from(["", "alpha"]),
}
# Types whose fields go together.
_WHOLE: dict[str, st.SearchStrategy[Any]] = {
    "Toleration": st.one_of(
        st.fixed_dictionaries(
            {"key": _LABEL_KEYS, "operator": st.sampled_from(["Equal", "", None]), "value": _LABEL_VALUES},
            optional={"effect": st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"])},
        ),
        st.fixed_dictionaries(
            {"operator": st.just("Exists")},
            optional={"key": st.one_of(st.just(""), _LABEL_KEYS), "effect": st.sampled_from(["NoSchedule", ""])},
        ),
        st.fixed_dictionaries(
            {"operator": st.just("Exists"), "effect": st.just("NoExecute"), "tolerationSeconds": st.integers(0, 3)}
        ),
    ),
}


def value(node: Node, owner: str = "", field: str = "") -> st.SearchStrategy[Any]:
    """A value of the node, which is the `field` of type `owner`; null, "" and 0 come up often."""
    if (likely := _LIKELY.get(f"{owner}.{field}", _LIKELY.get(field))) is not None:
        return likely
    match node.get("$ref"):
        case "Quantity":
            return st.sampled_from(QUANTITIES)
        case "IntOrString":
            return _LIKELY["IntOrString"]
        case str(name) if name in _WHOLE:
            return _WHOLE[name]
        case str(name):
            return st.deferred(lambda: struct(node, name))
    if "items" in node:
        item = value(node["items"], owner, field if keys_of(node) == () else "")
        first = keys_of(node)[:1]
        return st.lists(item, max_size=3, unique_by=(lambda entry: entry.get(first[0])) if first else None)
    if "additionalProperties" in node:
        return st.dictionaries(_NAMES, value(node["additionalProperties"]), max_size=2)
    if "enum" in node:
        return st.sampled_from(node["enum"])
    if node["type"] == "integer":
        return _LIKELY[node.get("format", "int32")]
    if node["type"] == "boolean":
        return st.booleans()
    return _NAMES if field in TYPES.get(owner, {}).get("required", ()) else st.one_of(st.just(""), _NAMES)


@st.composite
def struct(draw: st.DrawFn, node: Node, name: str) -> dict[str, Any]:
    """A value of a type: what is required, and a few other fields, at most one of those that exclude each other."""
    known = TYPES[name]["properties"]
    rivals = sorted(unions(node))
    # OpenAPI calls these optional, and the API server wants them.
    wanted = [field for field in ("name", "image") if field in known and field not in rivals]
    required = list(dict.fromkeys([*TYPES[name].get("required", []), *wanted]))
    optional = [field for field in known if field not in required and field not in rivals]
    chosen = draw(st.lists(st.sampled_from(optional), max_size=4, unique=True)) if optional else []
    if rivals:
        chosen.append(draw(st.sampled_from(rivals)))
    return {field: draw(value(known[field], name, field)) for field in [*required, *chosen]}


def samples(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """Values drawn from a strategy, the same ones on every run."""
    drawn: list[Any] = []

    @settings(max_examples=count, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None)
    @given(strategy)
    def draw(one: Any) -> None:
        drawn.append(one)

    draw()
    return drawn
