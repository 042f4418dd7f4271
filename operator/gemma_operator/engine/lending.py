"""Whether engines of one pool can answer the requests of another."""

from __future__ import annotations

from collections.abc import Iterator

from gemma_operator.engine import arguments
from gemma_operator.engine.findings import Finding
from gemma_operator.engine.view import PoolView

# Flags by which an answer differs, as far as fields don't say so. Model, served names, parsers and chat template are the serving's.
_ANSWER = (
    "--chat-template", "--chat-template-content-format", "--reasoning-parser", "--tool-call-parser", "--default-chat-template-kwargs",
    "--override-generation-config", "--generation-config", "--logits-processors", "--max-model-len",
)  # fmt: skip


def lending_findings(lender: PoolView, borrower: PoolView) -> tuple[Finding, ...]:
    """Why a pool with `scaling.lend` doesn't lend after all; empty where it does."""
    lacks = "; ".join(_lacks(lender, borrower))
    if not lacks:
        return ()
    text = f"{lender.path}.scaling.lend has no effect: its engines can't answer all requests of pool {borrower.name}: {lacks}"
    return (Finding("LendingUnfit", "warn", text),)


def _lacks(lender: PoolView, borrower: PoolView) -> Iterator[str]:
    if lender.max_model_len < borrower.max_model_len:
        yield f"maxModelLen is {lender.max_model_len} and {borrower.max_model_len} is needed"
    own, asked = lender.pool.modalities, borrower.pool.modalities
    for kind in ("image", "video", "audio"):
        have, need = getattr(own, kind).count, getattr(asked, kind).count
        if have < need:
            yield f"modalities.{kind}.count is {have} and {need} is needed"
    if asked.image.count and own.image.soft_tokens != asked.image.soft_tokens:
        yield "modalities.image.softTokens differs"
    if asked.video.count and (own.video.frames, own.video.fps) != (asked.video.frames, asked.video.fps):
        yield "modalities.video differs"
    if missing := sorted({lora.name for lora in borrower.pool.loras} - {lora.name for lora in lender.pool.loras}):
        yield f"loras lacks {', '.join(missing)}"
    mine, theirs = _said(lender), _said(borrower)
    if differing := sorted(flag for flag in mine.keys() | theirs.keys() if mine.get(flag) != theirs.get(flag)):
        yield f"extraArgs differs in {', '.join(differing)}"


def _said(view: PoolView) -> dict[str, tuple[str, ...]]:
    return {found.flag: found.values for found in arguments.parse(view)[0] if found.flag in _ANSWER}
