"""What an engine says as it dies, in the words of the programs that say it, and what a person is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_operator.engine.failures import diagnose, telling_line

HUB = "https://huggingface.co/google/gemma-4-E4B-it/resolve/main/config.json"
CORE = (Path(__file__).parent / "data/vllm-0.32-engine-core-failed.log").read_text()
FAREWELL = "\n".join(CORE.splitlines()[-3:])
# What the kubelet keeps of a log as termination message (FallbackToLogsOnError): 2048 bytes or 80 lines, whichever is less.
KEPT_BYTES = 2048


# huggingface_hub 2.4.0 hf_raise_for_status, called with an answer of each kind.
GATED = f"""huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: Root=1-68aa)

Cannot access gated repo for url {HUB}.
Access to model google/gemma-4-E4B-it is restricted and you are not in the authorized list. Visit https://huggingface.co to ask for access."""
GATED_WITHOUT_TOKEN = f"""huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-68aa)

Cannot access gated repo for url {HUB}.
Access to model google/gemma-4-E4B-it is restricted. You must have access to it and be authenticated to access it. Please log in."""
NO_REPOSITORY = f"""huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. (Request ID: Root=1-68aa)

Repository Not Found for url: {HUB}.
Please make sure you specified the correct `repo_id` and `repo_type`.
If you are trying to access a private or gated repo, make sure you are authenticated and your token has the required permissions.
For more details, see https://huggingface.co/docs/huggingface_hub/authentication
Invalid username or password."""
NO_REVISION = f"""huggingface_hub.errors.RevisionNotFoundError: 404 Client Error. (Request ID: Root=1-68aa)

Revision Not Found for url: {HUB}.
Invalid rev id: nope"""
NO_ENTRY = f"""huggingface_hub.errors.RemoteEntryNotFoundError: 404 Client Error. (Request ID: Root=1-68aa)

Entry Not Found for url: {HUB}."""
BAD_TOKEN = """huggingface_hub.errors.HfHubHTTPError: Client error '401 Unauthorized' for url 'https://huggingface.co/api/whoami-v2'
For more information check: https://developer.mozilla.org/en-US/docs/Web/HTTP/Status/401

Invalid credentials in Authorization header"""
FORBIDDEN = f"""huggingface_hub.errors.HfHubHTTPError: (Request ID: Root=1-68aa)

403 Forbidden: Forbidden.
Cannot access content at: {HUB}.
Make sure your token has the correct permissions."""
BUSY = f"""huggingface_hub.errors.HfHubHTTPError: (Request ID: Root=1-68aa)

429 Too Many Requests for url: {HUB}."""
# vLLM 0.32 on CPU with --middleware gemma_engine.arrivals.Arrivals and without the plugin; it ends once the engine has started.
NO_PLUGIN = """  File "<frozen importlib._bootstrap>", line 1140, in _find_and_load_unlocked
ModuleNotFoundError: No module named 'gemma_engine'
multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked semaphore objects to clean up
  warnings.warn('resource_tracker: There appear to be %d '"""
# vLLM 0.32 on CPU with HF_HUB_OFFLINE=1 and a model that isn't there; with HF_ENDPOINT at a closed port.
OFFLINE = (
    "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for the specified revision on the local disk "
    "and outgoing traffic has been disabled. To enable repo look-ups and downloads online, pass 'local_files_only=False' as input."
)
UNREACHABLE = """OSError: We couldn't connect to 'http://127.0.0.1:9' to load the files, and couldn't find them in the cached files.
Check your internet connection or see how to run the library in offline mode at 'https://huggingface.co/docs/transformers/installation#offline-mode'."""
# transformers utils/hub.py cached_files.
NOT_A_MODEL = """OSError: google/nope is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'
If this is a private repository, make sure to pass a token having permission to this repo either by logging in with `hf auth login`"""
GATED_TRANSFORMERS = "OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/google/gemma-4-E4B-it."
NO_GIT_REVISION = (
    "OSError: nope is not a valid git identifier (branch name, tag name or commit id) that exists for this model name."
)
NO_CONFIG = (
    "OSError: /models does not appear to have a file named config.json. "
    "Checkout 'https://huggingface.co//models/tree/main' for available files."
)
# vLLM: transformers_utils/config.py, argparse, config/model.py (run on CPU), v1/core/kv_cache_utils.py, v1/core/encoder_cache_manager.py.
NO_FOLDER = "ValueError: Invalid repository ID or local directory specified: '/models'.\nPlease verify the following requirements:"
UNRECOGNIZED = (
    "usage: api_server.py [-h] [--headless]\n\napi_server.py: error: unrecognized arguments: --disable-log-requests"
)
BAD_VALUE = "api_server.py: error: argument --max-model-len: Invalid value: 1x"
TOO_LONG = (
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, User-specified max_model_len (1048576) "
    "is greater than the derived max_model_len (max_position_embeddings=8192.0 or model_max_length=None in model's config.json)."
)
KV_SHORT = (
    "ValueError: To serve at least one request with the model's max seq len (262144), (2.45 GiB KV cache is needed, which is larger than the "
    "available KV cache memory (1.9 GiB). Based on the available memory, the estimated maximum model length is 203264. Try increasing "
    "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
)
KV_NONE = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."
BUDGET = (
    "ValueError: Chunked MM input disabled but max_tokens_per_mm_item (2496) is larger than max_num_batched_tokens (2048). "
    "Please increase max_num_batched_tokens."
)
TAKEN = (
    "ValueError: Free memory on device cuda:0 (12.31/79.11 GiB) on startup is less than desired GPU memory utilization (0.92, 72.78 GiB). "
    "Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
TAKEN_CPU = (
    "ValueError: Available memory on node 0 (19.58/23.54 GiB) on startup is less than desired CPU memory utilization (0.99, 23.31 GiB). "
    "On the CPU backend, the `--gpu-memory-utilization` flag controls the fraction of CPU memory reserved (despite its name)."
)
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.02 GiB is free. "
    "Including non-PyTorch memory, this process has 78.08 GiB memory in use."
)


@pytest.mark.parametrize(
    ("said", "reason", "advice"),
    [
        pytest.param(GATED, "ModelAccessDenied", "accept the model's licence", id="G7 gated, 403"),
        pytest.param(GATED_WITHOUT_TOKEN, "ModelAccessDenied", "model.tokenSecretRef", id="G7 gated, no token"),
        pytest.param(GATED_TRANSFORMERS, "ModelAccessDenied", "accept the model's licence", id="G8 gated, by transformers"),
        pytest.param(NO_REPOSITORY, "ModelAccessDenied", "check model.id, and the token", id="G7 no repository, or private"),
        pytest.param(NOT_A_MODEL, "ModelAccessDenied", "check model.id, and the token", id="G8 no repository, by transformers"),
        pytest.param(BAD_TOKEN, "ModelAccessDenied", "check model.id, and the token", id="G7 a wrong token"),
        pytest.param(FORBIDDEN, "ModelAccessDenied", "model.tokenSecretRef", id="G8 forbidden"),
        (NO_REVISION, "ModelNotFound", "model.revision"),
        (NO_GIT_REVISION, "ModelNotFound", "model.revision"),
        (NO_ENTRY, "ModelNotFound", "model.checkpoint"),
        (NO_CONFIG, "ModelNotFound", "model.source"),
        (NO_FOLDER, "ModelNotFound", "model.source"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/models/a/config.json'", "ModelNotFound", "model.source"),
        (OFFLINE, "ModelSourceUnreachable", "model.source"),
        (UNREACHABLE, "ModelSourceUnreachable", "network policies"),
        ("httpx2.ConnectError: [Errno -2] Name or service not known", "ModelSourceUnreachable", "the hub's address"),
        (BUSY, "ModelSourceUnreachable", "can't reach its model"),
        pytest.param(UNRECOGNIZED, "ArgumentRefused", "correct extraArgs", id="A8 a flag that is gone"),
        (BAD_VALUE, "ArgumentRefused", "engine.version"),
        (NO_PLUGIN, "PluginMissing", "set engine.plugin to false"),
        ("ModuleNotFoundError: No module named 'gemma_engine.arrivals'", "PluginMissing", "an older one: build it anew"),
        ("ModuleNotFoundError: No module named 'gemma_engine.shedding'", "PluginMissing", "an older one: build it anew"),
        (TOO_LONG, "ContextTooLong", "lower maxModelLen"),
        pytest.param(KV_SHORT, "KvCacheTooSmall", "lower maxModelLen, or raise gpuMemoryUtilization", id="A11"),
        (KV_NONE, "KvCacheTooSmall", "raise gpuMemoryUtilization"),
        pytest.param(BUDGET, "BudgetTooSmall", "raise maxNumBatchedTokens to at least the number named", id="A10"),
        (TAKEN, "OutOfGpuMemory", "lower gpuMemoryUtilization"),
        (TAKEN_CPU, "OutOfGpuMemory", "lower gpuMemoryUtilization"),
        (OUT_OF_MEMORY, "OutOfGpuMemory", "raise tensorParallel"),
        ("OSError: [Errno 28] No space left on device", "DiskFull", "give model.cache a larger volume"),
    ],
)  # fmt: skip
def test_a_known_failure_has_a_reason_and_advice(said: str, reason: str, advice: str) -> None:
    found = diagnose(said)
    assert found is not None
    assert found.reason == reason
    assert advice in found.advice
    assert telling_line(said) in said
    assert diagnose(telling_line(said)) == found


@pytest.mark.parametrize(
    "said", ["", "ValueError: no", "INFO: Application startup complete.", "Killed", CORE[-KEPT_BYTES:]]
)
def test_what_is_not_known_is_not_guessed(said: str) -> None:
    assert diagnose(said) is None


def test_only_what_another_start_may_mend_passes() -> None:
    assert [said for said in (OFFLINE, UNREACHABLE, BUSY) if not getattr(diagnose(said), "passing", None)] == []
    assert [
        said
        for said in (GATED, NO_REVISION, UNRECOGNIZED, KV_SHORT, BUDGET)
        if getattr(diagnose(said), "passing", None)
    ] == []


def test_the_cause_of_a_dead_core_stands_above_what_the_kubelet_keeps() -> None:
    """vLLM 0.32 on CPU with hardly any memory: its API server's traceback alone is longer than the termination message."""
    found = diagnose(CORE)
    assert found is not None
    assert found.reason == "KvCacheTooSmall"
    assert "less than requested memory for kv" in telling_line(CORE)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("", "it printed nothing"),
        ("\n  \n", "it printed nothing"),
        ("one", "one"),
        ("one\ntwo\nthree\n", "two | three"),
        ("Traceback (most recent call last):\nValueError: no\nbye\nbye", "ValueError: no"),
        ("a.b.CustomError: x\nRuntimeError: y\n", "RuntimeError: y"),
        (f"2026-11-30T00:30:49.123456789Z (EngineCore pid=7) ERROR 11-30 00:30:49 [core.py:1510] {BUDGET}", BUDGET),
        ("(EngineCore pid=7) ERROR 11-30 00:30:49 [core.py:1510] ZeroDivisionError: division by zero\n" + CORE[-KEPT_BYTES:],
         "ZeroDivisionError: division by zero"),
        (FAREWELL, "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"),
    ],
    ids=["nothing", "blanks", "one line", "the last two", "an exception", "the last exception", "prefixes", "above a dead core", "farewells"],
)  # fmt: skip
def test_the_line_that_says_why_is_found(said: str, line: str) -> None:
    assert telling_line(said) == line


@given(st.text(max_size=300))
def test_one_line_is_told_whatever_was_printed(said: str) -> None:
    assert telling_line(said)
    assert len(telling_line(said).splitlines()) == 1
