"""Which GPU a pool asks for, by the labels that real nodes bear."""

from __future__ import annotations

from typing import Any

import pytest

from gemma_operator.engine.accelerators import ACCELERATORS, PRODUCT_LABELS, Architecture, selected

GFD, GKE, KARPENTER = PRODUCT_LABELS


# GPU feature discovery writes the product name of NVIDIA's driver with blanks as hyphens, and "-SHARED" or "-MIG-..." after it.
@pytest.mark.parametrize(
    ("label", "value", "name", "memory_gib"),
    [
        (GFD, "NVIDIA-H100-80GB-HBM3", "h100", 80),
        (GFD, "NVIDIA-H100-PCIe", "h100", 80),
        (GFD, "NVIDIA-H100-80GB-HBM3-SHARED", "h100", 80),
        (GFD, "NVIDIA-H200", "h200", 141),
        (GFD, "NVIDIA-GH200-480GB", "gh200", 96),
        (GFD, "NVIDIA-B200", "b200", 180),
        (GFD, "NVIDIA-GB200", "gb200", 186),
        (GFD, "NVIDIA-L4", "l4", 24),
        (GFD, "NVIDIA-L40", "l40", 48),
        (GFD, "NVIDIA-L40S", "l40s", 48),
        (GFD, "NVIDIA-A10", "a10", 24),
        (GFD, "NVIDIA-A10G", "a10g", 24),
        (GFD, "NVIDIA-A100-SXM4-40GB", "a100", 40),
        (GFD, "NVIDIA-A100-SXM4-80GB", "a100-sxm4-80gb", 80),
        (GFD, "NVIDIA-A100-80GB-PCIe", "a100-80gb", 80),
        (GFD, "NVIDIA-GeForce-RTX-4090", "rtx-4090", 24),
        (GFD, "NVIDIA-GeForce-RTX-5090", "rtx-5090", 32),
        (GFD, "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "rtx-pro-6000", 96),
        (GFD, "Tesla-T4", "t4", 16),
        (GKE, "nvidia-l4", "l4", 24),
        (GKE, "nvidia-tesla-t4", "t4", 16),
        (GKE, "nvidia-tesla-a100", "a100", 40),
        (GKE, "nvidia-a100-80gb", "a100-80gb", 80),
        (GKE, "nvidia-h100-80gb", "h100", 80),
        (GKE, "nvidia-h100-mega-80gb", "h100", 80),
        (GKE, "nvidia-h200-141gb", "h200", 141),
        (GKE, "nvidia-b200", "b200", 180),
        (GKE, "nvidia-gb200", "gb200", 186),
        (GKE, "nvidia-rtx-pro-6000", "rtx-pro-6000", 96),
        (KARPENTER, "l4", "l4", 24),
        (KARPENTER, "l40s", "l40s", 48),
        (KARPENTER, "a10g", "a10g", 24),
        (KARPENTER, "a100", "a100", 40),
        (KARPENTER, "h100", "h100", 80),
        (KARPENTER, "h200", "h200", 141),
        (KARPENTER, "t4", "t4", 16),
    ],
)
def test_a_label_of_a_real_node_names_its_gpu(label: str, value: str, name: str, memory_gib: int) -> None:
    found = selected({label: value}, None)
    assert found is not None
    assert (found.name, found.memory_gib) == (name, memory_gib)


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {GFD: ""},
        {GFD: "AMD-Instinct-MI300X"},
        {GKE: "nvidia-tesla-p100"},
        {GFD: "NVIDIA-L40S2"},
        {GFD: "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"},
        {"accelerator": "nvidia-h100-80gb"},
        {GFD: "NVIDIA-H100-80GB-HBM3", GKE: "nvidia-l4"},
    ],
    ids=[
        "no label",
        "empty",
        "of another maker",
        "not in the table",
        "a longer name",
        "a slice",
        "a label of their own",
        "two GPUs",
    ],
)
def test_what_names_no_gpu_or_two_is_not_guessed(labels: dict[str, str]) -> None:
    assert selected(labels, None) is None


def affinity(*terms: list[dict[str, Any]], preferred: bool = False) -> dict[str, Any]:
    selectors = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    if preferred:
        preferences = [{"weight": 1, "preference": term} for term in selectors["nodeSelectorTerms"]]
        return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferences}}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selectors}}


def expression(*values: str, key: str = GFD, operator: str = "In") -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (affinity([expression("NVIDIA-L4")]), "l4"),
        (affinity([expression("a", key="zone"), expression("NVIDIA-L4")]), "l4"),
        (affinity([expression("NVIDIA-H100-PCIe", "NVIDIA-H100-80GB-HBM3")]), "h100"),
        (affinity([expression("NVIDIA-L4", "NVIDIA-L40S")]), None),
        (affinity([expression("NVIDIA-L4")], [expression("NVIDIA-L40S")]), None),
        (affinity([expression("NVIDIA-L4", operator="NotIn")]), None),
        (affinity([{"key": GFD, "operator": "Exists"}]), None),
        (affinity([expression("NVIDIA-L4")], preferred=True), None),
        (affinity(), None),
        ({"podAntiAffinity": {}}, None),
        ({}, None),
    ],
    ids=["one", "among others", "two names of one kind", "two kinds", "two terms", "not in", "exists", "preferred", "no term",
         "of Pods", "empty"],
)  # fmt: skip
def test_a_required_node_affinity_names_a_gpu_where_it_leaves_but_one(asked: dict[str, Any], name: str | None) -> None:
    found = selected({}, asked)
    assert (found.name if found else None) == name


def test_every_gpu_is_found_by_its_own_name() -> None:
    for accelerator in ACCELERATORS:
        assert selected({GFD: f"NVIDIA-{accelerator.name}"}, None) == accelerator


def test_generations_are_in_their_order() -> None:
    order = ["v100", "t4", "a100", "l4", "h100", "b200"]
    by_name = {accelerator.name: accelerator for accelerator in ACCELERATORS}
    assert [by_name[name].architecture for name in order] == sorted(Architecture)
