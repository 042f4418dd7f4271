"""The engine's command line: our settings, then the user's arguments, and what is to be said about both."""

from __future__ import annotations

from dataclasses import dataclass

from gemma_operator.engine import arguments, checks
from gemma_operator.engine.findings import Finding, RefusedSpec
from gemma_operator.engine.flags import flag_name, known_flags
from gemma_operator.engine.settings import Setting, settings
from gemma_operator.engine.versions import spell
from gemma_operator.engine.view import PoolView

SERVER = ("python3", "-m", "vllm.entrypoints.openai.api_server")
# The module ignores --api-server-count; only this entry starts several (vLLM 0.19 to 0.33 entrypoints/cli/serve.py).
MULTI_SERVER = ("vllm", "serve")


@dataclass(frozen=True, slots=True)
class Command:
    """What an engine is started with, and why."""

    server: tuple[str, ...]
    """The program, before the arguments, where nobody chose another."""
    settings: tuple[Setting, ...]
    """Flags of ours, in their order."""
    extra: tuple[str, ...]
    """The user's arguments."""
    warnings: tuple[Finding, ...]

    @property
    def args(self) -> list[str]:
        """All arguments: ours first and then the user's, which win."""
        return [part for setting in self.settings for part in (setting.flag, *setting.values)] + list(self.extra)


def engine_command(view: PoolView) -> Command:
    """The command line of one pool's engine. Raises RefusedSpec where it can't be served by this engine."""
    known, ours = known_flags(view.version), settings(view)
    flags = {flag_name(setting.flag) for setting in ours}
    found = [
        *checks.findings(view),
        *arguments.findings(view, flags),
        *(_missing(view, setting) for setting in ours if setting.field and flag_name(setting.flag) not in known),
    ]
    if refused := tuple(finding for finding in found if finding.severity == "refuse"):
        raise RefusedSpec(refused)
    given = arguments.parse(view)[0]
    kept = (
        setting
        for setting in ours
        if flag_name(setting.flag) in known and not arguments.replaces(given, flag_name(setting.flag), setting.values)
    )
    several = (view.pool.api_servers or 1) > 1
    return Command(MULTI_SERVER if several else SERVER, tuple(kept), tuple(view.pool.extra_args), tuple(found))


def _missing(view: PoolView, setting: Setting) -> Finding:
    """A field of the user's that this version has no flag for."""
    text = (
        f"{setting.field}: vLLM {spell(view.version)} has no {setting.flag}: choose a version that has it in engine.image, "
        "or remove the field"
    )
    return Finding("NotInThisVersion", "refuse", text)
