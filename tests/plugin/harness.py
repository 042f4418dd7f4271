"""A real vLLM Gemma 4 on the CPU inside this process, media through its real processor, and counts of what an encoding does."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "2",
    "OMP_WAIT_POLICY": "passive",
}
os.environ.update(QUIET)

# glibc gives large blocks back to the system and faults them in again at every operation, which takes longer than the work.
KEEP = {-3: 1 << 30, -1: 1 << 30}
"""mallopt's M_MMAP_THRESHOLD and M_TRIM_THRESHOLD, in bytes."""
for option, value in KEEP.items():
    ctypes.CDLL(None).mallopt(option, value)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from gemma_engine import plugin  # noqa: E402
from PIL import Image  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.distributed import init_distributed_environment, initialize_model_parallel  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.model_executor.model_loader import get_model  # noqa: E402
from vllm.multimodal import MULTIMODAL_REGISTRY  # noqa: E402
from vllm.multimodal.utils import group_and_batch_mm_kwargs  # noqa: E402

GIB = 1 << 30
SIZES = [(640, 480), (1280, 720), (480, 640), (720, 1280), (512, 512), (100, 2000), (2000, 100), (840, 480), (300, 200)]
FULL = (960, 672)
"""20 x 14 soft tokens: an image of this size fills a budget of 280 without padding."""


@dataclass
class Memory:
    """What the faked card says of itself, in bytes."""

    free: int = 60 * GIB
    total: int = 80 * GIB


MEMORY = Memory()
torch.accelerator.get_memory_info = lambda *_: (MEMORY.free, MEMORY.total)


class Real:
    """vLLM's model with our class, and its processor."""

    def __init__(self, folder: str, dtype: str, **arguments: Any) -> None:
        plugin.register()
        self.config = EngineArgs(
            model=folder, dtype=dtype, enforce_eager=True, max_model_len=4096, **arguments
        ).create_engine_config()
        with set_current_vllm_config(self.config):
            if not torch.distributed.is_initialized():
                store = tempfile.mkdtemp(prefix="gemma-engine-test-")
                init_distributed_environment(1, 0, f"file://{store}/store", 0, "gloo")
                initialize_model_parallel(1, 1)
            self.model: Any = get_model(vllm_config=self.config)
        self.processor: Any = MULTIMODAL_REGISTRY.create_processor(self.config.model_config)

    def image(self, width: int, height: int, seed: int) -> tuple[str, Any]:
        return self._item("image", Image.fromarray(noise(seed, height, width)))

    def video(self, frames: int, width: int, height: int, seed: int) -> tuple[str, Any]:
        pictures = np.stack([noise(seed + frame, height, width) for frame in range(frames)])
        about = {"fps": 2.0, "duration": frames / 2, "total_num_frames": frames, "frames_indices": list(range(frames))}
        return self._item("video", (pictures, {**about, "video_backend": "opencv", "do_sample_frames": False}))

    def _item(self, modality: str, medium: Any) -> tuple[str, Any]:
        """One medium as the scheduler hands it to a worker."""
        token = {"image": "<|image|>", "video": "<|video|>"}[modality]
        items = self.processor.info.parse_mm_data({modality: [medium]})
        prompt = self.processor.info.get_tokenizer().encode(token, add_special_tokens=False)
        done = self.processor(prompt, items, hf_processor_mm_kwargs={})
        return modality, done["mm_kwargs"][modality][0]

    def batches(self, items: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
        """The arguments of the calls that vLLM's runner makes for a step with these items."""
        for modality, _, arguments in group_and_batch_mm_kwargs(list(items), device=torch.device("cpu")):
            yield modality, arguments

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        with torch.inference_mode(), set_current_vllm_config(self.config):
            yield

    def ours(self, arguments: dict[str, Any]) -> list[torch.Tensor]:
        return list(self.model.embed_multimodal(**arguments))

    def stocks(self, modality: str, arguments: dict[str, Any]) -> list[torch.Tensor]:
        """vLLM's own class, with the chunks that it chooses for the memory it is told."""
        return list(own_path(self.model, modality)(parsed(self.model, modality, arguments)))

    def stocks_in_chunks(self, modality: str, arguments: dict[str, Any], sizes: Sequence[int]) -> list[torch.Tensor]:
        """vLLM's own class, one call for each chunk of these sizes."""
        media = parsed(self.model, modality, arguments)
        parts, start = [], 0
        for size in sizes:
            part = slice(start, start + size)
            with self.model.chunks_of(size):
                if modality == "image":
                    chunk = {key: media[key][part] for key in ("pixel_values", "pixel_position_ids")}
                    parts += self.model.stock_images(chunk)
                else:
                    chunk = {key: media[key][part] for key in ("pixel_values_videos", "pixel_position_ids_videos")}
                    parts += self.model.stock_videos({**chunk, "video_frame_counts": [size]})
            start += size
        if modality == "image":
            return parts
        whole = torch.cat(parts)
        return list(whole.split([sum(map(int, video)) for video in arguments["video_num_soft_tokens"]]))


def noise(seed: int, height: int, width: int) -> Any:
    """A picture with large and small structure, the same for a seed."""
    random_ = np.random.default_rng(seed)
    coarse = Image.fromarray(random_.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((width, height))
    return np.asarray(coarse) ^ random_.integers(0, 32, (height, width, 3), dtype=np.uint8)


def parsed(model: Any, modality: str, arguments: dict[str, Any]) -> Any:
    parse = {"image": model._parse_and_validate_image_input, "video": model._parse_and_validate_video_input}
    return parse[modality](**arguments)


def own_path(model: Any, modality: str) -> Any:
    from vllm.model_executor.models.gemma4_mm import Gemma4ForConditionalGeneration as Stock

    path = {"image": Stock._process_image_input, "video": Stock._process_video_input}[modality]
    return lambda media: path(model, media)


def random_items(
    random_: random.Random, images: Sequence[Any], videos: Sequence[Any], most_images: int = 6, most_videos: int = 2
) -> list[Any]:
    """A step's media in the order of arrival: images, videos, both mixed, one alone, or none."""
    kind = random_.choices(["images", "videos", "mixed", "single", "none"], [8, 8, 4, 3, 1])[0]
    if kind == "none":
        return []
    if kind == "single":
        return [random_.choice([*images, *videos])]
    items = []
    if kind != "videos":
        items += [random_.choice(images) for _ in range(random_.randint(1, most_images))]
    if kind != "images":
        items += [random_.choice(videos) for _ in range(random_.randint(1, most_videos))]
    random_.shuffle(items)
    return items


@dataclass
class Work:
    """What one encoding did."""

    encoder_calls: int = 0
    pooler_calls: int = 0
    waits: int = 0
    """Reads of a tensor's value, or lookups by a boolean mask: on CUDA the CPU waits there until the GPU has done all before."""
    operations: int = 0
    """ATen operations that are not views: about as many kernel launches."""
    peak_bytes: int = 0


WAITS = {"_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "equal", "unique_consecutive", "_unique2"}


class Counting(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()
        self.suspended = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.suspended and not func.is_view:
            self.names[func.overloadpacket.__name__] += 1
            if func.overloadpacket.__name__ == "index":
                masks = [index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)]
                self.names["nonzero"] += len(masks)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def counted(model: Any, work: Work) -> Iterator[None]:
    """Counts into `work` what happens inside. transformers' one_hot reads values on the CPU only: not counted."""
    tower = model.vision_tower

    def count(name: str) -> Any:
        return lambda *_: setattr(work, name, getattr(work, name) + 1)

    hooks = [
        tower.encoder.register_forward_hook(count("encoder_calls")),
        tower.pooler.register_forward_hook(count("pooler_calls")),
    ]
    mode = Counting()
    one_hot = torch.nn.functional.one_hot

    def quiet_one_hot(*args: Any) -> Any:
        mode.suspended = True
        try:
            return one_hot(*args)
        finally:
            mode.suspended = False
            mode.names["one_hot"] += 1

    torch.nn.functional.one_hot = quiet_one_hot
    try:
        with mode:
            yield
    finally:
        torch.nn.functional.one_hot = one_hot
        for hook in hooks:
            hook.remove()
    work.waits += sum(mode.names[name] for name in WAITS)
    work.operations += sum(mode.names.values())


def peak_bytes(run: Any) -> int:
    """The most memory that `run` held at a time beyond what there was before, from PyTorch's own allocation events."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    held = most = 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def write_model(tiny: Path, folder: Path, hidden: int, intermediate: int, heads: int, layers: int, **rest: Any) -> str:
    """The tiny Gemma 4 with another vision tower, with random weights at the usual scale."""
    from transformers.models.gemma4 import Gemma4Config, Gemma4ForConditionalGeneration, Gemma4VisionConfig

    config = Gemma4Config.from_pretrained(tiny)
    config.vision_config = Gemma4VisionConfig(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        **rest,
    )
    config.vision_config.default_output_length = 280
    torch.manual_seed(0)
    model = Gemma4ForConditionalGeneration(config)
    if config.vision_config.standardize:
        model.model.vision_tower.std_bias.normal_()
        model.model.vision_tower.std_scale.uniform_(0.5, 2.0)
    model.to(torch.bfloat16).save_pretrained(folder)
    for path in tiny.iterdir():
        if not (folder / path.name).exists():
            (folder / path.name).write_bytes(path.read_bytes())
    return str(folder)
