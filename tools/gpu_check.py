"""What only a GPU can tell of the vision encoder: bits, launches, waits, memory and time. Needs torch and transformers, no vLLM.

    python3 tools/gpu_check.py --out gpu-check.json                 on a machine with a GPU, 3 to 5 minutes
    python3 tools/gpu_check.py --device cpu --layers 1 --most 4     tries the script itself

Gemma 4's vision tower from transformers, randomly initialised at E4B's size in bfloat16. Exits 1 when our way of encoding does
not have the bits of vLLM's at the same batch, or waits for the GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.models.gemma4 import Gemma4VisionConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4VisionModel

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "images" / "engine"))

from gemma_engine.chunks import FRAME_PATCHES, POOLED_PATCHES, item_bytes
from gemma_engine.encoder import batched_pool, encode_chunk, per_item_pool
from gemma_engine.selfcheck import grid, pattern

COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
SHAPES = {
    "frame": (FRAME_PATCHES, [(11, 6), (9, 7), (10, 7)]),
    "image": (280 * POOLED_PATCHES, [(22, 12), (19, 14), (20, 14)]),
}
"""Patches per item, and columns x rows of soft tokens: 16:9, 4:3, and one without padding."""
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


class Check:
    """A tower and media on one device."""

    def __init__(self, device: str, layers: int, hidden: int = 768, intermediate: int = 3072, heads: int = 12) -> None:
        self.device = torch.device(device)
        config = Gemma4VisionConfig(
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            head_dim=hidden // heads,
        )
        config._attn_implementation = "sdpa"
        torch.manual_seed(0)
        self.tower: Any = Gemma4VisionModel(config).to(self.device, torch.bfloat16).eval()
        self.cuda = self.device.type == "cuda"

    def media(self, kind: str, items: int, padded: bool = True) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        patches, shapes = SHAPES[kind]
        chosen = [shapes[index % 3] if padded else shapes[2] for index in range(items)]
        positions = torch.stack([grid(*shape, patches, self.device) for shape in chosen])
        pixels = pattern(items, patches, 3 * self.tower.config.patch_size**2, self.device, torch.bfloat16)
        return pixels, positions, [columns * rows for columns, rows in chosen]

    def stock(self, pixels: torch.Tensor, positions: torch.Tensor, counts: list[int]) -> list[torch.Tensor]:
        """What vLLM does with one chunk: transformers' own mask, then its pooler and a boolean index for each item."""
        padding = (positions == -1).all(dim=-1)
        embedded = self.tower.patch_embedder(pixels, positions, padding).to(torch.bfloat16)
        hidden = self.tower.encoder(
            inputs_embeds=embedded, attention_mask=~padding, pixel_position_ids=positions
        ).last_hidden_state
        pooled = []
        for item in range(len(counts)):
            tokens, valid = self.tower.pooler(
                hidden_states=hidden[item : item + 1],
                pixel_position_ids=positions[item : item + 1],
                padding_positions=padding[item : item + 1],
                output_length=hidden.shape[1] // POOLED_PATCHES,
            )
            pooled.append(tokens[valid])
        return pooled

    def serial(self, pixels: torch.Tensor, positions: torch.Tensor, counts: list[int]) -> list[torch.Tensor]:
        """The loop of seed 000: one blocking pass through the tower for every frame."""
        found = []
        for item in range(len(counts)):
            one = slice(item, item + 1)
            found += self.stock(pixels[one], positions[one], counts[one])
        return found

    def ours(self, pixels: Any, positions: Any, counts: list[int], pool: Any = batched_pool, lean: bool = True) -> Any:
        return encode_chunk(self.tower, pixels, positions, counts, torch.bfloat16, pool, lean)

    def settle(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> int:
    """How many of the items have the same bits."""
    return sum(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def bits(check: Check, most: int) -> list[dict[str, Any]]:
    """Items with equal bits: ours and vLLM's at the same batch, either pooling, batched and one by one."""
    rows = []
    for kind in SHAPES:
        limit = most if kind == "frame" else max(1, most // 8)
        for items in (count for count in COUNTS if count <= limit):
            for padded in (True, False):
                media = check.media(kind, items, padded)
                ours, stock = check.ours(*media), check.stock(*media)
                rows.append(
                    {
                        "kind": kind,
                        "items": items,
                        "padding": padded,
                        "ours_as_stock": same(ours, stock),
                        "ours_as_per_item_pooling": same(ours, check.ours(*media, pool=per_item_pool)),
                        "plain_as_stock": same(check.ours(*media, lean=False), stock),
                        "stock_as_one_by_one": same(stock, check.serial(*media)),
                    }
                )
    return rows


def operations(check: Check) -> list[dict[str, Any]]:
    """Which operations give an item other bits in a batch than alone, at the tower's sizes."""
    config, layer = check.tower.config, check.tower.encoder.layers[0]
    heads, width = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    rows = []
    for kind, (patches, _) in SHAPES.items():
        for items in (2, 3, 4, 8, 16):
            hidden = torch.randn(items, patches, config.hidden_size, device=check.device, dtype=torch.bfloat16)
            wide = torch.randn(items, patches, config.intermediate_size, device=check.device, dtype=torch.bfloat16)
            weights = torch.rand(items, patches // POOLED_PATCHES, patches, device=check.device)
            query = hidden.view(items, patches, heads, width).transpose(1, 2)
            mask = torch.ones(items, 1, 1, patches, device=check.device, dtype=torch.bool)
            mask[..., -POOLED_PATCHES:] = False
            attention = torch.nn.functional.scaled_dot_product_attention
            tried: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
                "linear up": (layer.mlp.gate_proj, (hidden,)),
                "linear down": (layer.mlp.down_proj, (wide,)),
                "linear query": (layer.self_attn.q_proj, (hidden,)),
                "norm": (layer.input_layernorm, (hidden,)),
                "pooling matmul": (torch.matmul, (weights, hidden.float())),
            }
            for name, backend in BACKENDS.items() if check.cuda else ():
                tried[f"attention {name}"] = (forced(attention, backend), (query,))
                tried[f"masked attention {name}"] = (forced(attention, backend), (query, mask))
            for name, (run, inputs) in tried.items():
                rows.append({"kind": kind, "items": items, "operation": name, "equal": alone_as_batched(run, inputs)})
    return rows


def forced(attention: Any, backend: Any) -> Callable[..., torch.Tensor]:
    def run(query: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        with sdpa_kernel([backend]):
            found: torch.Tensor = attention(query, query, query, attn_mask=mask, scale=1.0)
        return found

    return run


def alone_as_batched(run: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]) -> bool | None:
    """None where the device has no such kernel."""
    try:
        whole = run(*inputs)
        alone = [run(*(part[item : item + 1] for part in inputs)) for item in range(len(whole))]
    except RuntimeError:
        return None
    return bool(torch.equal(whole, torch.cat(alone)))


def masks(check: Check) -> dict[str, bool]:
    """Whether the form of the mask matters to the bits of the encoder's rows."""
    found = {}
    for kind in SHAPES:
        for padded in (True, False):
            pixels, positions, _ = check.media(kind, 3, padded)
            padding = (positions == -1).all(dim=-1)
            embedded = check.tower.patch_embedder(pixels, positions, padding)

            def encoded(mask: torch.Tensor | None, embedded: Any = embedded, positions: Any = positions) -> Any:
                return check.tower.encoder(
                    inputs_embeds=embedded, attention_mask=mask, pixel_position_ids=positions
                ).last_hidden_state

            name = f"{kind}, {'padded' if padded else 'full'}"
            lean = encoded(~padding[:, None, None, :])
            found[f"{name}: (B,1,1,N) as transformers' mask"] = torch.equal(lean, encoded(~padding))
            if not padded:
                found[f"{name}: (B,1,1,N) as none"] = torch.equal(lean, encoded(None))
    return found


def work(check: Check, most: int, rounds: int) -> list[dict[str, Any]]:
    """Time, launches, waits and memory of the three ways to encode, by load."""
    loads = [("frame", items) for items in (1, 6, 12, 48, 64) if items <= most]
    loads += [("image", items) for items in (1, 4, 8, 16) if items <= max(1, most // 4)]
    rows = []
    for kind, items in loads:
        media = check.media(kind, items)
        patches = SHAPES[kind][0]
        config = check.tower.config
        bound = items * item_bytes(patches, config.hidden_size, config.intermediate_size, 2)
        for name, encode in (("serial", check.serial), ("stock", check.stock), ("ours", check.ours)):
            run = partial(encode, *media)
            run()
            rows.append(
                {
                    "kind": kind,
                    "items": items,
                    "way": name,
                    "milliseconds": milliseconds(check, run, rounds),
                    "launches": launches(check, run),
                    "waits": waits(check, run),
                    "peak_bytes": peak(check, run),
                    "bound_bytes": bound,
                }
            )
    return rows


def milliseconds(check: Check, run: Callable[[], Any], rounds: int) -> float:
    """The median of `rounds` runs, each waited for."""
    found = []
    for _ in range(rounds):
        check.settle()
        started = time.perf_counter()
        run()
        check.settle()
        found.append((time.perf_counter() - started) * 1000)
    return round(statistics.median(found), 3)


def launches(check: Check, run: Callable[[], Any]) -> int:
    """Kernels that the GPU ran; on a CPU, operations."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if check.cuda else []
    with torch.profiler.profile(activities=kinds) as profile:
        run()
        check.settle()
    wanted = torch.autograd.DeviceType.CUDA if check.cuda else torch.autograd.DeviceType.CPU
    return sum(event.device_type == wanted for event in profile.events())


def waits(check: Check, run: Callable[[], Any]) -> int:
    """How often PyTorch itself says that the CPU waited for the GPU."""
    with counted_waits(check) as found:
        run()
    return len(found)


@contextlib.contextmanager
def counted_waits(check: Check) -> Iterator[list[str]]:
    found: list[str] = []
    if not check.cuda:
        yield found
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")
    found += [str(warning.message) for warning in caught if "synchroniz" in str(warning.message)]


def peak(check: Check, run: Callable[[], Any]) -> int:
    """The most memory beyond what there was before; 0 on a CPU."""
    if not check.cuda:
        return 0
    check.settle()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    check.settle()
    return int(torch.cuda.max_memory_allocated() - before)


def verdict(found: dict[str, Any]) -> list[str]:
    """What the plugin promises and this device does not keep, in words."""
    broken = [
        f"{row['items']} {row['kind']}s, {'padded' if row['padding'] else 'full'}: "
        f"{row['ours_as_stock']} of {row['items']} have vLLM's bits"
        for row in found["bits"]
        if row["ours_as_stock"] != row["items"]
    ]
    for row in found["work"]:
        if row["way"] == "ours" and row["waits"]:
            broken.append(f"{row['items']} {row['kind']}s: {row['waits']} waits for the GPU")
        if row["way"] == "ours" and row["items"] > 1 and row["peak_bytes"] > row["bound_bytes"]:
            broken.append(
                f"{row['items']} {row['kind']}s: {row['peak_bytes']} bytes, the bound is {row['bound_bytes']}"
            )
    return broken


def summary(found: dict[str, Any]) -> str:
    """A few lines for the terminal: each way's time, as a ratio to the serial loop's."""
    lines = [f"{found['device']}, torch {found['torch']}, transformers {found['transformers']}"]
    serial = {(row["kind"], row["items"]): row["milliseconds"] for row in found["work"] if row["way"] == "serial"}
    for row in found["work"]:
        ratio = serial[row["kind"], row["items"]] / max(row["milliseconds"], 1e-9)
        lines.append(
            f"{row['items']:>4} {row['kind']}s {row['way']:<7} {row['milliseconds']:>9.2f} ms  {ratio:>5.1f}x  "
            f"{row['launches']:>6} launches  {row['waits']:>4} waits  {row['peak_bytes'] / 1e6:>7.0f} MB"
        )
    changed = sorted({row["operation"] for row in found["operations"] if row["equal"] is False})
    lines.append(f"other bits in a batch than alone: {', '.join(changed) or 'nothing'}")
    return "\n".join([*lines, *(f"BROKEN: {line}" for line in found["broken"])])


def main() -> int:
    import transformers

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=16, help="E4B's tower has 16 (the default)")
    parser.add_argument("--most", type=int, default=256, help="frames in the largest batch (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="runs per time (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write all figures here as JSON")
    arguments = parser.parse_args()
    check = Check(arguments.device, arguments.layers)
    name = torch.cuda.get_device_name() if check.cuda else "CPU"
    found: dict[str, Any] = {"device": name, "torch": torch.__version__, "transformers": transformers.__version__}
    with torch.inference_mode():
        found["masks"] = masks(check)
        found["bits"] = bits(check, arguments.most)
        found["operations"] = operations(check)
        found["work"] = work(check, arguments.most, arguments.rounds)
    found["broken"] = verdict(found)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    print(summary(found))
    return int(bool(found["broken"]))


if __name__ == "__main__":
    sys.exit(main())
