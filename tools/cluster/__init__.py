"""A real Kubernetes on this machine: `python3 -m tools.cluster --help`. Standard library only."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - it runs with whatever python3 there is
    sys.exit(f"tools.cluster needs Python 3.11 or newer, this is {sys.version.split()[0]}: run it with a newer python3")
