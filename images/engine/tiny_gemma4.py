"""Writes a tiny Gemma 4 with random weights, and its MTP assistant, as checkpoint folders that vLLM loads like any other.

The answers are noise; everything around them (tokenizer, chat template, image and video processors, vision tower,
drafter) has the shape of the real model, so a CPU can serve text, images and videos with the flags of production.

    python3 tiny_gemma4.py FOLDER      writes FOLDER/gemma-4-tiny and FOLDER/gemma-4-tiny-assistant
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4AudioFeatureExtractor,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4ImageProcessor,
    Gemma4Processor,
    Gemma4TextConfig,
    Gemma4VideoProcessor,
    Gemma4VisionConfig,
    GenerationConfig,
    PreTrainedTokenizerFast,
)

VOCABULARY = 1024
HIDDEN = 256
CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>"]
CHAT = ["<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think>", "<|video|>"]
MEDIA = {
    "boi_token": "<|image>",
    "eoi_token": "<image|>",
    "image_token": "<|image|>",
    "boa_token": "<|audio>",
    "eoa_token": "<audio|>",
    "audio_token": "<|audio|>",
}
CORPUS = """
Serving a language model means answering many people at once, and no one likes to wait for the first word.
Interactive requests go to a pool that answers quickly; batch requests go to a pool that answers a lot.
When the share of late answers grows, the operator adds an engine, and when the night is quiet, it takes one away.
What do you see in this picture? What happens in this video, frame by frame? Explain it in two short sentences.
0 1 2 3 4 5 6 7 8 9 10 12 16 20 24 32 48 64 100 128 250 256 300 480 500 512 640 1000 1024 2048 4096
"""
CHAT_TEMPLATE = """{{ bos_token }}
{%- for message in messages -%}
<|turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}
{% if message['content'] is string -%}
{{ message['content'] }}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'text' -%}{{ part['text'] }}{%- else -%}<|{{ part['type'] }}|>{%- endif -%}
{%- endfor -%}
{%- endif -%}<turn|>
{% endfor -%}
{%- if add_generation_prompt -%}<|turn>model
{% endif -%}"""


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*CONTROL, *CHAT, *MEDIA.values()],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS.splitlines() * 3, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        unk_token="<unk>",
        extra_special_tokens=MEDIA,
        chat_template=CHAT_TEMPLATE,
    )


def text_config(layers: int, hidden: int, **rest: object) -> Gemma4TextConfig:
    """Five sliding layers to one full one, as in the real model; heads are small and all of one size."""
    return Gemma4TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=64,
        global_head_dim=64,
        sliding_window=512,
        max_position_embeddings=8192,
        **rest,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> Gemma4ForConditionalGeneration:
    heads = 3
    vision = Gemma4VisionConfig(
        hidden_size=64 * heads,
        intermediate_size=256 * heads,
        num_hidden_layers=4,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=64,
    )
    vision.default_output_length = 280
    token = {name: tokenizer.convert_tokens_to_ids(text) for name, text in MEDIA.items()}
    config = Gemma4Config(
        text_config=text_config(6, HIDDEN, vocab_size_per_layer_input=VOCABULARY, hidden_size_per_layer_input=32),
        vision_config=vision,
        boi_token_id=token["boi_token"],
        eoi_token_id=token["eoi_token"],
        image_token_id=token["image_token"],
        video_token_id=tokenizer.convert_tokens_to_ids("<|video|>"),
        boa_token_id=token["boa_token"],
        eoa_token_index=token["eoa_token"],
        audio_token_id=token["audio_token"],
    )
    return Gemma4ForConditionalGeneration(config)


def make_assistant() -> Gemma4AssistantForCausalLM:
    """A drafter with one sliding and one full layer, which read the keys and values of the model's last layers."""
    text = text_config(
        2,
        HIDDEN // 2,
        layer_types=["sliding_attention", "full_attention"],
        vocab_size_per_layer_input=0,
        hidden_size_per_layer_input=0,
        num_kv_shared_layers=2,
    )
    return Gemma4AssistantForCausalLM(Gemma4AssistantConfig(text_config=text, backbone_hidden_size=HIDDEN))


def main(folder: Path) -> None:
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    processor = Gemma4Processor(
        feature_extractor=Gemma4AudioFeatureExtractor(),
        image_processor=Gemma4ImageProcessor(),
        video_processor=Gemma4VideoProcessor(),
        tokenizer=tokenizer,
        chat_template=CHAT_TEMPLATE,
    )
    for name, model in {"gemma-4-tiny": make_model(tokenizer), "gemma-4-tiny-assistant": make_assistant()}.items():
        model.to(torch.bfloat16).save_pretrained(folder / name)
        processor.save_pretrained(folder / name)
        for path in (folder / name).iterdir():
            path.chmod(0o644)  # the server runs as another user
        size = sum(path.stat().st_size for path in (folder / name).iterdir())
        print(f"{folder / name}: {model.num_parameters() / 1e6:.1f} million parameters, {size / 1e6:.0f} MB")
    GenerationConfig(do_sample=True, temperature=1.0, eos_token_id=[tokenizer.eos_token_id]).save_pretrained(
        folder / "gemma-4-tiny"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
