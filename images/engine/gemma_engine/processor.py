"""vLLM's input processor for Gemma 4, which also tells each image's count of soft tokens, and takes no orders of a request."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from vllm.model_executor.models.gemma4_mm import Gemma4MultiModalProcessor
from vllm.multimodal.inputs import MultiModalFieldConfig

from . import plugin
from .chunks import POOLED_PATCHES
from .refusals import GUARDED, refuse_options

IMAGE_COUNTS = "image_num_soft_tokens"


@functools.cache
def untrusted() -> bool:
    """Whether this vLLM lets anyone say how media are processed."""
    return plugin.numbers(plugin.vllm_version()) < GUARDED


class CountingProcessor(Gemma4MultiModalProcessor):
    """Counts while the positions are still on the CPU: asking the GPU for a count later would stall it.

    The count is added where the fields are declared, because this method alone is there in every supported version,
    and because transformers' own counts don't come through its processor.
    """

    def apply(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Refuses before anything is computed: patches of 512 pixels would be GiB. The server's own options come in later."""
        if untrusted():
            refuse_options(inputs.hf_processor_mm_kwargs, "mm_processor_kwargs")
        return super().apply(inputs, *args, **kwargs)

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Mapping[str, object]) -> dict[str, Any]:
        fields = dict(super()._get_mm_fields_config(hf_inputs, hf_processor_mm_kwargs))
        positions = hf_inputs.get("pixel_position_ids")
        if positions is not None:
            hf_inputs[IMAGE_COUNTS] = [int((item[:, 0] >= 0).sum()) // POOLED_PATCHES for item in positions]
            fields[IMAGE_COUNTS] = MultiModalFieldConfig.batched("image", keep_on_cpu=True)
        return fields
