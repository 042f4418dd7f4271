"""What we know of GPUs, found by the node labels that a pool selects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

# Labels that name a GPU: NVIDIA's GPU feature discovery, GKE, Karpenter on AWS.
PRODUCT_LABELS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "karpenter.k8s.aws/instance-gpu-name")


class Architecture(IntEnum):
    """NVIDIA's generations, oldest first."""

    VOLTA = 6
    TURING = 7
    AMPERE = 8
    ADA = 9
    HOPPER = 10
    BLACKWELL = 11


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One kind of GPU: memory in GiB, dense bf16 peak in TFLOP/s (NVIDIA's data sheets)."""

    name: str
    architecture: Architecture
    memory_gib: int
    bf16_tflops: float


# Longest name first where one is part of another: the first that is found in the label wins.
ACCELERATORS = (
    Accelerator("gb200", Architecture.BLACKWELL, 186, 2500),
    Accelerator("b200", Architecture.BLACKWELL, 180, 2250),
    Accelerator("rtx-pro-6000", Architecture.BLACKWELL, 96, 504),
    Accelerator("rtx-5090", Architecture.BLACKWELL, 32, 210),
    Accelerator("gh200", Architecture.HOPPER, 96, 990),
    Accelerator("h200", Architecture.HOPPER, 141, 990),
    Accelerator("h100", Architecture.HOPPER, 80, 990),
    Accelerator("l40s", Architecture.ADA, 48, 362),
    Accelerator("l40", Architecture.ADA, 48, 181),
    Accelerator("l4", Architecture.ADA, 24, 121),
    Accelerator("rtx-4090", Architecture.ADA, 24, 165),
    Accelerator("a100-sxm4-80gb", Architecture.AMPERE, 80, 312),
    Accelerator("a100-80gb", Architecture.AMPERE, 80, 312),
    Accelerator("a100", Architecture.AMPERE, 40, 312),
    Accelerator("a10g", Architecture.AMPERE, 24, 70),
    Accelerator("a10", Architecture.AMPERE, 24, 125),
    Accelerator("t4", Architecture.TURING, 16, 0),
    Accelerator("v100", Architecture.VOLTA, 16, 0),
)


def selected(node_selector: Mapping[str, str], affinity: Mapping[str, Any] | None) -> Accelerator | None:
    """The GPU that a Pod's node selector or required node affinity asks for; None where neither names a known one."""
    names = [node_selector[label] for label in PRODUCT_LABELS if label in node_selector]
    names += [value for label, values in _required(affinity or {}) if label in PRODUCT_LABELS for value in values]
    found = {accelerator for name in names if (accelerator := named(name))}
    return found.pop() if len(found) == 1 else None


def named(product: str) -> Accelerator | None:
    """The GPU of a product label such as NVIDIA-H100-80GB-HBM3, or of a plain name; None where it isn't known, or a slice."""
    name = product.lower().replace(" ", "-").replace("_", "-")
    if "-mig-" in name:  # a slice of a GPU, with a share of its memory and speed
        return None
    return next((accelerator for accelerator in ACCELERATORS if _names(accelerator.name, name)), None)


def _names(known: str, product: str) -> bool:
    """True where `known` stands in the label as words of their own: l4 is not in nvidia-l40s."""
    return f"-{known}-" in f"-{product}-"


def _required(affinity: Mapping[str, Any]) -> Iterable[tuple[str, list[str]]]:
    node = affinity.get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = node.get("nodeSelectorTerms", [])
    if len(terms) != 1:
        return
    for expression in terms[0].get("matchExpressions", []):
        if expression.get("operator") == "In":
            yield expression["key"], list(expression.get("values", []))
