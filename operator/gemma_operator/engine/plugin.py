"""What we know of our vLLM plugin, gemma_engine (images/engine): what it works with, and what an engine with it is given."""

from __future__ import annotations

from typing import Any

from gemma_operator.engine.versions import spell
from gemma_operator.engine.view import PoolView

# images/engine/gemma_engine/plugin.py; a test holds them equal.
OLDEST, NEWEST = (0, 26), (0, 33)
# Its entry points in vLLM's groups general_plugins and stat_logger_plugins (images/engine/pyproject.toml).
NAMES = ("gemma_engine", "gemma_engine_stats")
# Where images/engine/*Dockerfile puts it.
CHAT_TEMPLATE = "/opt/gemma-serving/chat_template_gemma4.jinja"
# Counts requests that no step of the engine has told of yet (images/engine/gemma_engine/arrivals.py).
MIDDLEWARE = "gemma_engine.arrivals.Arrivals"
# Refusals by the admission limits as 503 with Retry-After, of streams too (images/engine/gemma_engine/shedding.py).
SHEDDING = "gemma_engine.shedding.Shedding"
# Command that fills the caches with the server's arguments, and ends.
WARM_UP = ["python3", "-m", "gemma_engine.warm", "--"]


def probe(name: str) -> list[str]:
    """Command of the probe that passes once a model is served under `name`, and the encoder is checked."""
    return ["python3", "-m", "gemma_engine.probe", "ready", f"--model={name}"]


def encoder_limit(tokens: int) -> dict[str, Any]:
    """vLLM's --ec-manager-config for a limit on the soft tokens that one step encodes (vLLM 0.28)."""
    manager = "gemma_engine.budget.StepLimitedEncoderCacheManager"
    return {"encoder_cache_manager_cls": manager, "manager_config": {"encoder_tokens_per_step": tokens}}


def wrong_version(view: PoolView) -> str | None:
    """The plugin ends the start of a vLLM that it doesn't know."""
    if not view.plugin or OLDEST <= view.version[:2] <= NEWEST:
        return None
    known = " to ".join(f"{major}.{minor}" for major, minor in (OLDEST, NEWEST))
    return (
        f"engine.plugin is true: gemma_engine works with vLLM {known}, and ends the start of {spell(view.version)}: "
        "use an engine.image with one of these, or set engine.plugin to false"
    )


def switched_off(view: PoolView) -> str | None:
    """VLLM_PLUGINS is vLLM's list of allowed plugins; vLLM says nothing of one that isn't in it (0.32, tried)."""
    given = next((v.value or "" for v in view.pool.env if v.name == "VLLM_PLUGINS" and v.value_from is None), None)
    if not view.plugin or given is None or set(NAMES) <= {name.strip() for name in given.split(",")}:
        return None
    return (
        f"{view.path}.env: VLLM_PLUGINS is {given!r}, which switches our plugin off, and its readiness probe will not pass: "
        f"name {' and '.join(NAMES)} in it, or set engine.plugin to false"
    )


def options_of_requests(view: PoolView) -> str | None:
    """vLLM 0.31 asks for --trust-request-mm-kwargs; before, only our plugin refuses a request's own mm_processor_kwargs."""
    if view.plugin or view.version >= (0, 31, 0) or view.pool.modalities.text_only:
        return None
    return (
        f"{view.path}.modalities: vLLM {spell(view.version)} lets any request say how its media are processed, and mm_processor_kwargs "
        "with patch_size 1 ends the engine: raise engine.image to vLLM 0.31.0, or use our image with engine.plugin set to true"
    )


def encoder_limit_without(view: PoolView) -> str | None:
    """The limit on a step's encoding is a class of the plugin."""
    if view.plugin or view.pool.encoder.tokens_per_step is None or view.pool.modalities.text_only:
        return None
    return (
        f"{view.path}.encoder.tokensPerStep: only an engine with our plugin has this limit: set engine.plugin to true for an image "
        "that has it (docs/engine-image.md), or remove it and lower maxNumBatchedTokens"
    )
