"""What a container gets as an argument."""

from __future__ import annotations

from collections.abc import Mapping


def kubernetes_expands(text: str, environment: Mapping[str, str]) -> str:
    """The argument that a kubelet passes on: k8s.io/kubernetes/third_party/forked/golang/expansion, in our words.

    `$(NAME)` becomes the variable's value where it is known and stays where not; `$$` becomes `$`.
    """
    out, rest = "", text
    while rest:
        head, dollar, rest = rest.partition("$")
        out += head
        if dollar and rest.startswith("$"):
            out, rest = out + "$", rest[1:]
        elif dollar and rest.startswith("(") and ")" in rest:
            name, _, rest = rest[1:].partition(")")
            out += environment.get(name, f"$({name})")
        else:
            out += dollar
    return out
