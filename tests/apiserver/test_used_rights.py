"""Every right that the chart grants was used by some test of the tier. Sorted last, as it looks back at all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.apiserver.conftest import OPERATOR_USER
from tests.support.kube import Kube, audit
from tools.cluster.control_plane import ControlPlane

Right = tuple[str, str, str]
# Needed without a request of that verb
INDIRECT: dict[Right, str] = {
    (
        "gemmaserving.dev",
        "gemmaservings/finalizers",
        "update",
    ): "admission asks for it where a child gets an owner reference "
    "that blocks deletion: all of the tier were made with OwnerReferencesPermissionEnforcement on",
}


def needed(group: str, resource: str, verb: str) -> set[Right]:
    """Rights that a request needs: server-side apply is a patch that may create."""
    return {(group, resource, verb), *({(group, resource, "create")} if verb == "patch" else ())}


@pytest.mark.gitops("A14", "A15")
def test_every_right_is_needed(admin: Kube, plane: ControlPlane, request: pytest.FixtureRequest) -> None:
    here = Path(__file__)
    ran = {item.path.name for item in request.session.items}
    if missing := sorted({path.name for path in here.parent.glob("test_*.py")} - ran):
        pytest.skip(f"says nothing without the whole tier: {', '.join(missing)} did not run")
    role = admin.get("clusterrole", "gemma-operator")
    assert role
    granted = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    used: set[Right] = set()
    for entry in audit(plane.audit_log, OPERATOR_USER):
        ref = entry.get("objectRef", {})
        resource = "/".join(part for part in (ref.get("resource", ""), ref.get("subresource", "")) if part)
        used |= needed(ref.get("apiGroup", ""), resource, entry["verb"])
    unused = granted - used - INDIRECT.keys()
    assert unused == set(), f"drop them from the chart, or test what needs them: {yaml.safe_dump(sorted(unused))}"
