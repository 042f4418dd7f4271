"""One vLLM engine as a sequence of iterations: who is computed in a step, and how long the step takes.

Pure: no clock, no I/O, no randomness. The caller owns time (seconds) and asks in turn for `Engine.plan_step(now)` and,
when that much time has passed, for `Engine.complete(step, now)`. The stand-in server does it in real time.

Sources. "seed": the published sweep of gemma-4-E4B on one GPU, every sweep of one kind of request (text of ~500 tokens, or
6 frames of 480p, ~500 tokens), constant rates. "vLLM": scheduler and front end of 0.32 as read. What neither gives is
marked "assumed". The fit against the seed (model / seed; the unit tests hold these figures):

    step of 5 decodes 5.0/5 ms; 1 text prefill + 4 decodes 25.0/25 ms
    unbatched encoder, n video prefills + 4 decodes: 217/225 ms (n=1), 429/550 ms (n=2, -22 %), 1,701/1,700 ms (n=8)
    TTFT alone: text 25/25 ms; video unbatched 259/225 ms (+15 %), batched 105/105 ms
    p95 TTFT of batched video: 110/120 ms at 15 QPS (-8 %), 197/<200 ms at 20 QPS; median ITL 4.6/5 ms at 10 QPS
    unbatched video: p95 TTFT within a minute 263 ms at 4 QPS, 6.3/>2 s at 5 QPS, there median ITL 1.7/2 s. At 20 QPS
    the queue grows without bound here, where the seed shows about 3 s: its load generator can't have kept the rate.

The seed's own numbers can't all hold at once: 225 ms is both its step and its TTFT, yet a step as long as the whole
TTFT of 105 ms could not be repeated 15 times a second. So 42 ms of a video's TTFT are preprocessing beside the GPU.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

_GOLDEN = 0.6180339887498949
VIDEO_SOFT_TOKENS = 70  # embeddings per video frame: the unit of encoder work (vLLM)


@dataclass(frozen=True, slots=True)
class Costs:
    """What one iteration and one request cost, in seconds."""

    step: float = 4.5e-3  # every iteration; with 5 sequences 5 ms (seed)
    sequence_token: float = 0.1e-3  # every token of a decoding sequence, and every prefilling sequence (fitted)
    prompt_token: float = 40e-6  # a text prefill of ~500 tokens adds 20 ms (seed)
    encoder_pass: float = 32e-3  # unbatched: each frame or image is a blocking pass of its own (fitted)
    encoder_batch: float = 30e-3  # batched: once per step with media (fitted)
    encoder_unit: float = 4e-3 / 3  # batched: per video frame, or 70 soft tokens of an image (fitted)
    draft: float = 0.5e-3  # multi-token prediction: each draft position, once per step (assumed)
    draft_acceptance: float = 0.7  # probability that a draft token is accepted after its predecessor (assumed)
    tokenize: float = 0.4e-3  # per request (fitted: the rest of the text TTFT)
    media_decode: float = 3e-3  # per frame, on a pool of threads (fitted: the sum with the next)
    media_process: float = 4e-3  # per frame, on the one processor thread of an API server (fitted)

    def scaled(self, factor: float) -> Costs:
        """The same engine on slower (> 1) or faster (< 1) hardware."""
        times = {f.name: getattr(self, f.name) * factor for f in fields(self) if f.name != "draft_acceptance"}
        return replace(self, **times)

    def encoder(self, passes: int, units: float, *, batched: bool) -> float:
        if not passes:
            return 0.0
        return self.encoder_batch + units * self.encoder_unit if batched else passes * self.encoder_pass


@dataclass(frozen=True, slots=True)
class Media:
    """One item of a prompt. An image is one frame of 280 soft tokens, a video is up to 32 frames of 70."""

    frames: int
    soft_tokens: int = VIDEO_SOFT_TOKENS
    overhead: int = 8  # prompt tokens around each frame: timestamp, begin, end (vLLM)

    @property
    def tokens(self) -> int:
        return self.frames * (self.soft_tokens + self.overhead)

    @property
    def units(self) -> float:
        return self.frames * self.soft_tokens / VIDEO_SOFT_TOKENS


@dataclass(slots=True, eq=False)
class Request:
    """A request and its progress. The order inside a prompt is simplified: what is cached, then media, then text.

    `media` are the items to encode; one that the prefix cache holds counts as text, and as cached.
    """

    arrival: float
    text_tokens: int
    output_tokens: int
    media: Sequence[Media] = ()
    priority: int = 0  # lower runs first, under priority scheduling
    cached_tokens: int = 0  # of the text, what the prefix cache holds

    prompt_tokens: int = field(init=False)
    computed: int = field(init=False, default=0)  # prompt tokens done
    generated: int = field(init=False, default=0)
    encoded: int = field(init=False, default=0)  # media items done
    queued_at: float = field(init=False, default=0.0)
    scheduled_at: float = field(init=False, default=0.0)
    first_token_at: float = field(init=False, default=0.0)
    last_token_at: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.prompt_tokens = self.text_tokens + sum(item.tokens for item in self.media)
        # The last prompt token is always computed: its output is the first token.
        self.cached_tokens = min(self.cached_tokens, self.text_tokens, self.prompt_tokens - 1)
        self.computed = self.cached_tokens


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The settings of an engine that decide what fits into a step."""

    max_num_batched_tokens: int = 8192  # vLLM's default on 80 GB cards
    max_num_seqs: int = 1024
    largest_item_tokens: int = 2496  # a video of 32 frames: the encoder budget is never smaller than that
    batched_encoder: bool = True
    priority: bool = False
    kv_cache_tokens: int = 1_000_000  # assumed; admission reserves prompt and output, so nothing is ever preempted
    draft_tokens: Sequence[tuple[int, int, int]] = ()  # (from batch, to batch, draft tokens)

    @property
    def encoder_budget(self) -> int:
        """Prompt tokens of media that may be encoded in one step; vLLM has no setting of its own for it."""
        return max(self.max_num_batched_tokens, self.largest_item_tokens)

    def drafts(self, batch: int) -> int:
        return next((n for low, high, n in self.draft_tokens if low <= batch <= high), 0)


@dataclass(slots=True)
class Step:
    """One iteration: `prefills` are (request, prompt tokens); `decodes` take a token and `drafts` draft tokens each."""

    prefills: list[tuple[Request, int]] = field(default_factory=list)
    decodes: list[Request] = field(default_factory=list)
    drafts: int = 0
    encoder_passes: int = 0
    encoder_units: float = 0.0
    duration: float = 0.0

    @property
    def prompt_tokens(self) -> int:
        return sum(tokens for _, tokens in self.prefills)


@dataclass(frozen=True, slots=True)
class Emission:
    """New tokens of a request at the end of a step."""

    request: Request
    tokens: int
    first: bool
    finished: bool
    interval: float  # seconds since the request's last token; 0 for the first
    accepted: int = 0  # draft tokens taken over


class Engine:
    """The scheduler: running requests first, then waiting ones, inside the budgets of tokens, media and sequences."""

    def __init__(self, config: EngineConfig, costs: Costs | None = None) -> None:
        self.config = config
        self.costs = costs or Costs()
        self.running: list[Request] = []
        self._waiting: list[tuple[int, int, Request]] = []
        self._sequence = 0
        self._reserved = 0
        self._drawn = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache in use, 0 to 1."""
        return sum(r.computed + r.generated for r in self.running) / self.config.kv_cache_tokens

    def add(self, request: Request, now: float) -> None:
        request.queued_at = now
        self._sequence += 1
        insort(self._waiting, (request.priority if self.config.priority else 0, self._sequence, request))

    def abort(self, request: Request) -> None:
        """Forget a request; a step that is under way still takes its time."""
        if request in self.running:
            self._leave([request])
        else:
            self._waiting = [entry for entry in self._waiting if entry[2] is not request]

    def plan_step(self, now: float) -> Step | None:
        """The next iteration, or None when nothing can be computed."""
        step = Step()
        tokens, media = self.config.max_num_batched_tokens, self.config.encoder_budget
        decoding = sum(r.computed == r.prompt_tokens for r in self.running)
        step.drafts = self.config.drafts(decoding)
        for request in self.running:
            if request.computed < request.prompt_tokens:
                used, encoded = self._prefill(step, request, tokens, media)
                tokens, media = tokens - used, media - encoded
            elif tokens > step.drafts:
                step.decodes.append(request)
                tokens -= 1 + step.drafts
        admitted = 0
        for _, _, request in self._waiting:
            if not self._fits(request):
                break
            used, encoded = self._prefill(step, request, tokens, media)
            if not used:
                break
            tokens, media = tokens - used, media - encoded
            request.scheduled_at = now
            self.running.append(request)
            self._reserved += request.prompt_tokens + request.output_tokens
            admitted += 1
        del self._waiting[:admitted]
        if not step.prefills and not step.decodes:
            return None
        step.duration = self._duration(step)
        return step

    def complete(self, step: Step, now: float) -> list[Emission]:
        """Account for a step that ended; requests aborted meanwhile emit nothing."""
        alive = set(self.running)
        emissions = []
        for request, tokens in step.prefills:
            if request in alive:
                request.computed += tokens
                if request.computed == request.prompt_tokens:
                    emissions.append(self._emit(request, 0, now))
        emissions += [self._emit(request, step.drafts, now) for request in step.decodes if request in alive]
        finished = [emission.request for emission in emissions if emission.finished]
        if finished:
            self._leave(finished)
        return emissions

    def _fits(self, request: Request) -> bool:
        needed = request.prompt_tokens + request.output_tokens
        return len(self.running) < self.config.max_num_seqs and (
            not self.running or self._reserved + needed <= self.config.kv_cache_tokens
        )

    def _prefill(self, step: Step, request: Request, tokens: int, media: int) -> tuple[int, int]:
        """Put the next chunk of a prompt into the step; it stops before media that the encoder budget can't take.

        Returns the prompt tokens and the encoder tokens used.
        """
        if tokens <= 0:
            return 0, 0
        end = min(request.prompt_tokens, request.computed + tokens)
        start = request.cached_tokens + sum(item.tokens for item in request.media[: request.encoded])
        encoded = 0
        for item in request.media[request.encoded :]:
            if start >= end:
                break
            if item.tokens > media - encoded:
                end = max(start, request.computed)
                break
            start += item.tokens
            encoded += item.tokens
            request.encoded += 1
            step.encoder_passes += item.frames
            step.encoder_units += item.units
        used = end - request.computed
        if used > 0:
            step.prefills.append((request, used))
        return used, encoded

    def _duration(self, step: Step) -> float:
        costs = self.costs
        drafts = step.drafts if step.decodes else 0
        sequence_tokens = len(step.prefills) + len(step.decodes) * (1 + drafts)
        return (
            costs.step
            + costs.sequence_token * sequence_tokens
            + costs.prompt_token * step.prompt_tokens
            + costs.draft * drafts
            + costs.encoder(step.encoder_passes, step.encoder_units, batched=self.config.batched_encoder)
        )

    def _emit(self, request: Request, drafts: int, now: float) -> Emission:
        first = request.generated == 0
        accepted = min(self._accepted(drafts), request.output_tokens - request.generated - 1)
        request.generated += 1 + accepted
        interval = 0.0 if first else now - request.last_token_at
        request.last_token_at = now
        if first:
            request.first_token_at = now
        return Emission(request, 1 + accepted, first, request.generated >= request.output_tokens, interval, accepted)

    def _accepted(self, drafts: int) -> int:
        """Accepted drafts of one verification: evenly spread instead of drawn, with the right share per position."""
        if not drafts:
            return 0
        self._drawn += 1
        spread = self._drawn * _GOLDEN % 1.0
        return sum(spread < self.costs.draft_acceptance**position for position in range(1, drafts + 1))

    def _leave(self, requests: Sequence[Request]) -> None:
        gone = set(requests)
        self.running = [r for r in self.running if r not in gone]
        self._reserved -= sum(r.prompt_tokens + r.output_tokens for r in requests)


class FrontEnd:
    """Preprocessing beside the GPU: frames are decoded on a pool of threads, processed by one thread per API server."""

    def __init__(self, costs: Costs | None = None, *, servers: int = 1, threads: int = 8) -> None:
        self.costs = costs or Costs()
        self._threads = [0.0] * threads * servers
        self._processors = [0.0] * servers

    def ready_at(self, now: float, frames: Sequence[int], known_frames: int = 0) -> float:
        """When a request that arrives now, with media items of so many frames, reaches the engine.

        `known_frames` of them are in the processor cache: decoded again, but not processed.
        """
        arrived = now + self.costs.tokenize
        if not frames:
            return arrived
        decoded = arrived
        for count in frames:
            end = max(arrived, self._threads[0]) + count * self.costs.media_decode
            heapq.heapreplace(self._threads, end)
            decoded = max(decoded, end)
        ready = max(decoded, self._processors[0]) + (sum(frames) - known_frames) * self.costs.media_process
        heapq.heapreplace(self._processors, ready)
        return ready
