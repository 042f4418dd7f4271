"""Which vLLM build serves."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from gemma_operator.api.base import ApiModel, Name, SecretKey, ShortText, distinct
from gemma_operator.api.values import Schema


class Engine(ApiModel):
    """Which vLLM build serves, for all pools."""

    image: ShortText | None = None
    """Image of the engine; the operator's default where absent."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """As in a Pod."""
    image_pull_secrets: Annotated[
        list[Name], Field(max_length=16), AfterValidator(distinct), Schema({"x-kubernetes-list-type": "set"})
    ] = []
    """Names of Secrets for pulling the image."""
    version: Annotated[str, Field(pattern=r"^v?[0-9]+\.[0-9]+(\.[0-9]+)?.*$", max_length=64)] | None = None
    """vLLM version in the image (for instance 0.32.0), where its tag doesn't say so. Flags are rendered for it."""
    command: Annotated[list[ShortText], Field(max_length=32)] = []
    """Command that starts the engine before our arguments; vLLM's API server module where absent."""
    plugin: bool | None = None
    """Whether the image has our vLLM plugin gemma_engine (docs/engine-image.md), whose readiness probe, metrics and chat template
    are then used. Where absent: false for an image of your own, the installation's value for its default image."""
    batched_encoder: Literal["Auto", "Required", "Off"] | None = None
    """Vision encoder that takes many frames at once. Required refuses an engine that has none; Off runs vLLM's stock class; Auto where absent."""
    api_key_secret_ref: SecretKey | None = None
    """Secret with the key that clients must send, given to the engine as environment variable VLLM_API_KEY."""
