"""Run test tiers one after the other and print what each took: `python -m tools.tiers unit chart apiserver node argocd engine plugin demo`."""

from __future__ import annotations

import subprocess
import sys
import time

from tools.cluster import binaries
from tools.cluster.console import ClusterError, duration, say

# Programs that a tier needs, compiled in one go before the first tier, so that they share their work.
PROGRAMS = {
    "unit": ("prometheus",),
    "chart": (*binaries.CONTROL_PLANE, "kubectl", "helm", "helm3", "flux-ssa", "promtool"),
    "monitoring": ("prometheus", "promtool"),
    "apiserver": (*binaries.CONTROL_PLANE, "kubectl", "helm"),
    "node": (*binaries.NODE, "kubectl", "helm", "prometheus"),
    "argocd": (*binaries.NODE, "kubectl", "helm", "argocd"),
    "engine": (*binaries.CONTROL_PLANE, "kubectl"),
    "demo": (*binaries.NODE, "kubectl", "helm", "prometheus"),
}
NOTHING_RAN = 5  # pytest's exit code for "no test was collected"


def main() -> int:
    """Run the tiers named on the command line; stops at none of them, fails if one failed."""
    tiers = sys.argv[1:]
    try:
        binaries.ensure(program for tier in tiers for program in PROGRAMS.get(tier, ()))
    except ClusterError as error:
        say(f"error: {error}")
        return 1
    results = []
    for tier in tiers:
        print(f"\n=== {tier} ===", flush=True)
        started = time.monotonic()
        code = subprocess.run([sys.executable, "-m", "pytest", "-q", f"tests/{tier}"], check=False).returncode
        results.append((tier, code, time.monotonic() - started))
    print("\ntier        result   time")
    for tier, code, seconds in results:
        print(
            f"{tier:<11} {'ok' if code == 0 else 'NO TESTS' if code == NOTHING_RAN else 'FAILED':<8} {duration(seconds)}"
        )
    return int(any(code for _, code, _ in results))


if __name__ == "__main__":
    sys.exit(main())
