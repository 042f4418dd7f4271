"""gemma-operator explain: the sum behind the last scaling decisions of a GemmaServing, from its status."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from gemma_operator.api.serving import KIND
from gemma_operator.cli.ask import ask
from gemma_operator.cli.ask import namespace as kubeconfig_namespace
from gemma_operator.scaling import codec
from gemma_operator.scaling.decision import Decision
from gemma_operator.scaling.explain import explain as sum_of
from gemma_operator.settings import BadSetting


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser: ArgumentParser = commands.add_parser(
        "explain", help="say why the pools of a GemmaServing have the size they have"
    )
    parser.add_argument("name", help="name of the GemmaServing")
    parser.add_argument("-n", "--namespace", help="its namespace; the kubeconfig's where absent")
    parser.add_argument("--pool", help="only this pool")
    parser.set_defaults(command=explain)


def explain(arguments: Namespace) -> int:
    """Print each pool's sum; returns the exit code."""
    namespace = arguments.namespace or kubeconfig_namespace()
    where = f"GemmaServing {arguments.name} in namespace {namespace}"
    found = ask(lambda cluster: cluster.get(KIND, namespace, arguments.name), where, "explain")
    if found is None:
        raise BadSetting(f"there is no {where}")
    pools = (found.get("status") or {}).get("pools") or {}
    if arguments.pool and arguments.pool not in pools:
        shown = f"it has {', '.join(sorted(pools))}" if pools else "its status shows none yet"
        raise BadSetting(f"{where} has no pool {arguments.pool}: {shown}")
    if not pools:
        raise BadSetting(f"{where} has no status yet: does an operator watch this namespace?")
    for name, pool in pools.items():
        if arguments.pool in (None, name):
            print(text_of(name, pool))
    return 0


def text_of(name: str, pool: Mapping[str, Any]) -> str:
    """One pool's explanation, from its part of the status."""
    last = pool.get("lastDecision")
    if last is None:
        return f"pool {name}: no decision has been made yet"
    try:
        return f"pool {name}: {sum_of(codec.decode(Decision, last['record']))}"
    except (KeyError, TypeError, ValueError):
        # Written by another version of the operator.
        return f"pool {name}: {last.get('message', 'no reason is known')} ({last.get('reason', 'Unknown')})"
