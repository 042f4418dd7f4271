"""The stand-in as a program: its arguments, its exit codes, its signals."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import ClientConnectionError, ClientSession

from tests.unit.test_standin import chat, events, program


@pytest.mark.slow
class TestProgram:
    async def test_unknown_flag_ends_it_with_2(self) -> None:
        async with program("--foo") as standin:
            await standin.log_until("api_server.py: error: unrecognized arguments: --foo")
            assert await standin.exit_code() == 2

    async def test_bad_environment_is_named(self) -> None:
        async with program(STANDIN_SPEED="fast") as standin:
            await standin.log_until("STANDIN_SPEED is 'fast', allowed are numbers from 0.001")
            assert await standin.exit_code() == 1

    async def test_port_opens_after_the_start(self) -> None:
        async with program() as standin, ClientSession() as session:
            await standin.log_until("Starting to load model")
            with pytest.raises(ClientConnectionError):
                await session.get(f"{standin.url}/health")
            await standin.log_until("Application startup complete")
            assert (await session.get(f"{standin.url}/health")).status == 200

    async def test_stop_during_the_start(self) -> None:
        async with program(STANDIN_STARTUP_SECONDS="600") as standin:
            await standin.log_until("Starting")
            standin.process.terminate()
            assert await standin.exit_code() == 0

    async def test_drain_finishes_running_streams_and_refuses_new_requests(self) -> None:
        async with program("--shutdown-timeout", "30") as standin, ClientSession(standin.url) as session:
            await standin.log_until("startup complete")
            body = chat(stream=True, max_tokens=300, ignore_eos=True)
            running = await session.post("/v1/chat/completions", json=body)
            await running.content.readline()
            standin.process.terminate()
            await standin.log_until("mode=drain timeout=30s requests=1")
            assert (await session.get("/health")).status == 200
            refused = await (await session.post("/v1/chat/completions", json=chat())).json()
            assert refused["choices"][0]["finish_reason"] == "abort"
            # As in vLLM a refused stream shows the role and no finish reason at all.
            refused_stream = await events(await session.post("/v1/chat/completions", json=chat(stream=True)))
            assert [event and event["choices"][0]["finish_reason"] for event in refused_stream] == [None, None]
            *chunks, last, done = await events(running)
            assert (len(chunks) + 1, last["choices"][0]["finish_reason"], done) == (300, "length", None)
            assert await standin.exit_code() == 0

    async def test_it_hangs_behind_a_healthy_server_while_a_file_is_there(self, tmp_path: Path) -> None:
        hang = tmp_path / "hang"
        async with (
            program(STANDIN_STARTUP_SECONDS="0", STANDIN_HANG_FILE=str(hang)) as standin,
            ClientSession(standin.url) as session,
        ):
            await standin.log_until("startup complete")
            body = chat(stream=True, max_tokens=50, ignore_eos=True)
            running = await session.post("/v1/chat/completions", json=body)
            await running.content.readline()
            hang.touch()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(running.content.read(-1), 1)
            assert (await session.get("/health")).status == 200
            assert "vllm:num_requests_running" in await (await session.get("/metrics")).text()
            hang.unlink()
            assert b"[DONE]" in await running.content.read(-1)

    @pytest.mark.parametrize("timeout", ["0", "1"])
    async def test_requests_past_the_timeout_are_aborted(self, timeout: str) -> None:
        async with program("--shutdown-timeout", timeout) as standin, ClientSession(standin.url) as session:
            await standin.log_until("startup complete")
            body = chat(stream=True, max_tokens=100_000, ignore_eos=True)
            running = await session.post("/v1/chat/completions", json=body)
            await running.content.readline()
            standin.process.terminate()
            *_, last, _done = await events(running)
            assert last["choices"][0]["finish_reason"] == "abort"
            assert await standin.exit_code() == 0
