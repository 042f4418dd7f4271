"""What the plugin overrides is there, with the parameters it expects, in the sources of every supported vLLM at hand.

The installed version is always read; the others when `python -m tools.flag_table` has unpacked them into the cache.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from gemma_engine.plugin import NEWEST, OLDEST, UnsupportedVersion, check_version, wanted
from gemma_engine.refusals import GUARDED

from tests.plugin.conftest import SITE
from tools.images.recipes import CACHE

MODEL = "model_executor/models/gemma4_mm.py"
CLASS = "Gemma4ForConditionalGeneration"

OVERRIDDEN = [
    (MODEL, "Gemma4MultiModalProcessor", "_get_mm_fields_config", ["self", "hf_inputs", "hf_processor_mm_kwargs"]),
    ("multimodal/processing/processor.py", "BaseMultiModalProcessor", "apply", ["self", "inputs", "timing_ctx"]),
    (MODEL, CLASS, "_parse_and_validate_image_input", ["self"]),
    (MODEL, CLASS, "_parse_and_validate_video_input", ["self"]),
    (MODEL, CLASS, "_process_image_input", ["self", "image_input"]),
    (MODEL, CLASS, "_process_video_input", ["self", "video_input"]),
    (MODEL, CLASS, "_encoder_chunk", ["patches_per_item", "free_bytes", "total_bytes", "position_embedding_size"]),
    (MODEL, CLASS, "embed_input_ids", ["self", "input_ids", "multimodal_embeddings"]),
    ("multimodal/media/image.py", "ImageMediaIO", "load_bytes", ["self", "data"]),
    ("multimodal/media/connector.py", "MediaConnector", "_load_data_url", ["self", "url", "media_io"]),
    ("multimodal/media/connector.py", "MediaConnector", "_load_file_url", ["self", "url_spec", "media_io"]),
    ("v1/metrics/loggers.py", "AggregateStatLoggerBase", "__init__", ["self", "vllm_config", "engine_indexes"]),
    (
        "v1/metrics/loggers.py",
        "StatLoggerBase",
        "record",
        ["self", "scheduler_stats", "iteration_stats", "mm_cache_stats", "engine_idx"],
    ),
]
GRAPHS = [
    (MODEL, CLASS, "get_encoder_cudagraph_config", ["self"]),
    (MODEL, CLASS, "get_encoder_cudagraph_item_specs", ["self", "mm_kwargs"]),
    (MODEL, CLASS, "select_encoder_cudagraph_items", ["self", "mm_kwargs", "indices"]),
    (MODEL, CLASS, "prepare_encoder_cudagraph_replay_buffers", ["self", "mm_kwargs"]),
    (MODEL, CLASS, "encoder_cudagraph_forward", ["self", "inputs"]),
]
BUDGET = [
    ("v1/core/encoder_cache_manager.py", "EncoderCacheManager", "create_manager", ["cls"]),
    (
        "v1/core/encoder_cache_manager.py",
        "EncoderCacheManager",
        "can_allocate",
        ["self", "request", "input_id", "encoder_compute_budget", "num_embeds_to_schedule"],
    ),
]
ADMISSION = [
    ("v1/engine/async_llm.py", "AsyncLLM", "add_request", ["self", "request_id"]),
    ("v1/engine/async_llm.py", "AsyncLLM", "abort", ["self", "request_id", "internal"]),
    ("v1/engine/output_processor.py", "RequestOutputCollector", "__init__", ["self", "output_kind", "request_id"]),
]
SINCE = {id(OVERRIDDEN): (0, 26), id(GRAPHS): (0, 27), id(BUDGET): (0, 28), id(ADMISSION): (0, 26)}


def sources() -> dict[str, Path]:
    found = {
        path.name: path / "vllm"
        for path in sorted((CACHE / "wheels").glob("*.*.*"))
        if (path / "vllm" / MODEL).exists()
    }
    installed = next(SITE.glob("vllm*.dist-info")).name.split("-")[1]
    found[installed] = SITE / "vllm"
    return {version: path for version, path in found.items() if OLDEST <= numbers(version) <= NEWEST}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


@cache
def methods(path: Path, name: str) -> dict[str, list[str]]:
    """The parameters of a class's methods, by name."""
    (found,) = [
        node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef) and node.name == name
    ]
    functions = [node for node in found.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {node.name: [argument.arg for argument in node.args.args] for node in functions}


@pytest.mark.parametrize("version", sources())
def test_what_is_overridden_has_the_parameters_we_expect(version: str) -> None:
    for group in (OVERRIDDEN, GRAPHS, BUDGET, ADMISSION):
        if numbers(version) < SINCE[id(group)]:
            continue
        for file, name, method, parameters in group:
            known = methods(sources()[version] / file, name)
            assert method in known, f"vLLM {version} has no {name}.{method}"
            assert known[method][: len(parameters)] == parameters, f"{name}.{method} of vLLM {version}"


@pytest.mark.parametrize("version", sources())
def test_the_names_that_are_read_exist(version: str) -> None:
    """Fields and constants that the code reads by name."""
    text = (sources()[version] / MODEL).read_text()
    for name in (
        "pixel_position_ids_videos",
        "video_num_soft_tokens",
        "Gemma4ProcessingInfo",
        "Gemma4DummyInputsBuilder",
        "self.embed_vision",
    ):
        assert name in text, f"vLLM {version} has no {name}"
    stats = (sources()[version] / "v1/metrics/stats.py").read_text()
    for name in (
        "num_encoder_inputs",
        "num_encoder_output_tokens",
        "num_ctx_tokens",
        "elapsed_ms",
        "is_dummy",
        "num_waiting_reqs",
    ):
        assert name in stats, f"vLLM {version} has no {name}"


@pytest.mark.parametrize("version", sources())
def test_a_value_error_is_the_clients_and_a_video_is_read_as_we_expect(version: str) -> None:
    """What refusals.py relies on."""
    vllm = sources()[version]
    (answers,) = (vllm / "entrypoints/serve").rglob("error_response.py")
    assert "isinstance(exc, (ValueError, TypeError, OverflowError))" in answers.read_text()
    moved = vllm / "multimodal/video_decoders"
    reader = (moved / "opencv.py" if moved.exists() else vllm / "multimodal/video.py").read_text()
    assert "from io import BytesIO" in reader
    assert "cv2.VideoCapture(BytesIO(data), backend, [])" in reader


@pytest.mark.parametrize("version", sources())
def test_options_of_a_request_are_guarded_by_vllm_or_come_where_we_refuse_them(version: str) -> None:
    vllm = sources()[version]
    files = [path.read_text() for path in (vllm / "entrypoints").rglob("*.py")]
    assert any("trust_request_mm_kwargs" in text for text in files) is (numbers(version) >= GUARDED)
    media = vllm / "multimodal/media"
    assert methods(media / "base.py", "MediaIO")["merge_kwargs"] == ["cls", "default_kwargs", "runtime_kwargs"]
    assert "super().merge_kwargs(default_kwargs, runtime_kwargs)" in (media / "video.py").read_text()
    assert "hf_processor_mm_kwargs=mm_processor_kwargs or {}" in (vllm / "renderers/base.py").read_text()
    assert "hf_processor_mm_kwargs: Mapping" in (vllm / "multimodal/processing/inputs.py").read_text()
    # The server's own options are merged in below `apply`, where the processor is called, and nowhere before.
    assert "mm_config.merge_mm_processor_kwargs(" in (vllm / "multimodal/processing/context.py").read_text()
    before = [*files, *(path.read_text() for path in (vllm / "renderers").rglob("*.py"))]
    assert not [text for text in before if re.search(r"merge_mm_processor_kwargs|config\.mm_processor_kwargs", text)]


@pytest.mark.parametrize("version", [version for version in sources() if numbers(version) >= (0, 29)])
def test_a_refusal_bears_its_status(version: str) -> None:
    """What shedding.py knows one by: vLLM has admission limits since 0.29."""
    text = (sources()[version] / "exceptions.py").read_text()
    for name in ("QueueOverflowError", "MaxQueuedTokensError"):
        assert f"class {name}(GracefulHTTPError)" in text
    assert "self.http_status = http_status" in text


@pytest.mark.parametrize("version", ["0.26.0", "0.32.0+cpu", "0.33.1", "0.33.0rc1"])
def test_takes_the_versions_it_was_written_for(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.25.1", "0.34.0", "1.0.0", "dev"])
def test_any_other_version_stops_the_start_and_says_what_to_do(version: str) -> None:
    with pytest.raises(UnsupportedVersion, match=r"0\.26 to 0\.33.*GEMMA_ENGINE_ENCODER=off"):
        check_version(version)


def test_the_switch_has_two_values(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wanted()
    monkeypatch.setenv("GEMMA_ENGINE_ENCODER", "off")
    assert not wanted()
    monkeypatch.setenv("GEMMA_ENGINE_ENCODER", "false")
    with pytest.raises(ValueError, match=r"'on'.*'off'"):
        wanted()
