"""Write gemma_operator/engine/flag_table.py from the help text of one vLLM version.

    python3 -m vllm.entrypoints.openai.api_server --help=all > help.txt
    python3 -m tools.flag_table help.txt 0.32.0 > operator/gemma_operator/engine/flag_table.py

A help text shows one version; the gates below say which of its flags are younger than our oldest version,
and which older flags it no longer has.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

OLDEST, NEWEST = (0, 19, 0), (0, 33, 0)
# First version seen with the flag (research/vllm.md section 4.2, read from the wheels).
SINCE = {
    "--mm-encoder-attn-dtype": (0, 21, 0),
    "--fingerprint-mode": (0, 21, 0),
    "--fingerprint-value": (0, 21, 0),
    "--spec-method": (0, 22, 0),
    "--spec-model": (0, 22, 0),
    "--spec-tokens": (0, 22, 0),
    "--quantization-config": (0, 22, 0),
    "--prefill-schedule-interval": (0, 24, 0),
    "--device-ids": (0, 24, 0),
    "--model-class-overrides": (0, 25, 1),
    "--enable-per-request-metrics": (0, 25, 1),
    "--prefix-match-unit": (0, 26, 0),
    "--mm-hasher-algorithm": (0, 27, 1),
    "--ec-manager-config": (0, 28, 0),
    "--mm-processor-device": (0, 28, 0),
    "--max-num-queued-reqs": (0, 29, 0),
    "--max-num-queued-tokens": (0, 29, 0),
    "--sse-keep-alive-interval": (0, 29, 0),
    "--prefix-cache-retention-interval": (0, 29, 0),
    "--enable-scale-out": (0, 30, 0),
    "--max-num-active-seqs": (0, 31, 0),
    "--trust-request-mm-kwargs": (0, 31, 0),
    "--logging-config": (0, 31, 0),
    "--device-memory-utilization": (0, 31, 0),
    "--custom-histogram-buckets": (0, 32, 0),
    "--grpc-port": (0, 32, 0),
}
# Last version that takes a flag which the newest ones refuse (same source): (takes a value, last version).
GONE = {
    "--swap-space": (True, (0, 25, 1)),
    "--max-num-partial-prefills": (True, (0, 26, 0)),
    "--max-long-partial-prefills": (True, (0, 26, 0)),
    "--calculate-kv-scales": (False, (0, 27, 1)),
    "--override-attention-dtype": (True, (0, 27, 1)),
}
_ENTRY = re.compile(r"^  (-[^\n]*?)(?:\s{2,}.*)?$")
_WORD = re.compile(r"(--?[A-Za-z][\w.-]*)(?:[ =]([^,]+))?")


def flags(help_text: str) -> dict[str, bool]:
    """Positive spelling -> whether a value follows, from the option list of a help text."""
    found: dict[str, bool] = {}
    for line in help_text.splitlines():
        if not (match := _ENTRY.match(line)):
            continue
        words = _WORD.findall(re.sub(r"\{[^}]*\}?", "CHOICE", match.group(1)))
        for name, value in words:
            if not name.startswith("--no-"):
                found[name] = bool(value.strip())
    return found


def table(found: dict[str, bool]) -> list[tuple[str, bool, tuple[int, int, int], tuple[int, int, int]]]:
    """Rows of the table, sorted by name."""
    rows = [(name, value, SINCE.get(name, OLDEST), NEWEST) for name, value in found.items()]
    rows += [(name, value, OLDEST, last) for name, (value, last) in GONE.items()]
    return sorted(rows)


def main() -> int:
    """Print the module."""
    path, version = sys.argv[1:]
    print(
        f'"""Flags of vLLM\'s API server; written by tools/flag_table.py from the help text of vLLM {version}. Do not edit."""\n'
    )
    print("# (flag, takes a value, first version, last version)")
    print("FLAGS: tuple[tuple[str, bool, tuple[int, int, int], tuple[int, int, int]], ...] = (")
    for row in table(flags(Path(path).read_text())):
        print(f"    {row},".replace("'", '"'))
    print(")")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
