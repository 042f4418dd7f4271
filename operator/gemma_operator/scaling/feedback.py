"""Learning from what happened: is the profile's capacity right, and would more engines help at all?

The correction moves slowly and only on evidence of a settled fleet. Latency itself is never put into a ratio.
"""

from __future__ import annotations

from dataclasses import replace

from gemma_operator.scaling import headroom
from gemma_operator.scaling.memory import Learned, Memory, Trial
from gemma_operator.scaling.moment import Moments, gathered, within
from gemma_operator.scaling.pool import Slo
from gemma_operator.scaling.profile import SATURATED_SHARE
from gemma_operator.scaling.verdict import NOTHING, Judgement, judge

LEAST, MOST = 0.5, 1.5
CUT = 0.4
"""A cut takes at most this share: a profile 40 % too high must not cost several cold starts, one for each small cut."""
MARGIN = 0.95
"""Share of the load at which requests missed that is planned for from then on."""
CUT_EVERY_SECONDS = 60.0
RAISE = 0.01
"""Growth of the correction with each tick that proves a higher one."""
RAISE_AFTER_SECONDS = 900.0
RAISE_BELOW = 0.2
"""Misses proven to be below this share of what is allowed leave room for more load: 1 % at p95."""
REMEMBER_SECONDS = 3600.0
"""How long a correction that was too high, or cuts that did not help, are remembered; the mix of requests changes."""
BUSY = 0.9
"""Only engines that carry this share of their planned load show that they could carry more."""
SUSTAINED_SECONDS = 120.0
"""Misses of a burst are no proof against the profile; those of so long a time are."""
BURST_TICKS = 2
"""A burst is told in so many ticks, whichever way they cut it."""
FAR_BELOW = 0.25
"""Misses at less than this share of the operating point don't come from load."""
MOST_MISS = 0.5
"""When more than this share misses without any queue, a request alone takes too long."""
FLAT_LOAD, FLAT_SHARE = 1.03, 0.85
"""Where the busier half of the ticks had so many times the load of the other and the other so large a share of its
misses, load is not the cause: in the step model 3 % more of it near the operating point make half as many misses more."""
SHORT_SECONDS, LONG_SECONDS, LONGEST_SECONDS = 60.0, 300.0, 900.0
ENOUGH = 100.0
"""Samples that make the short window do (at 5 % allowed: 2.2 to 9.9 % are told apart)."""


def evidence(moments: Moments, slo: Slo, now: float, itl: bool = False) -> Judgement:
    """The verdict on the last minute, or on a longer time where that has too few requests."""
    total = NOTHING
    for seconds in (SHORT_SECONDS, LONG_SECONDS, LONGEST_SECONDS):
        total = gathered(within(moments, now - seconds), itl)
        if total.samples >= ENOUGH:
            return judge(total, slo, seconds)
    return judge(total, slo, LONGEST_SECONDS)


def learn(
    learned: Learned,
    moments: Moments,
    slo: Slo,
    operating_point: float,
    planned: float,
    settled_at: float,
    now: float,
) -> Learned:
    """The correction after a tick of a fleet that is settled since `settled_at`.

    `planned` is the load per engine that is planned at present.
    """
    learned = _forget(learned, now)
    settled = within(moments, settled_at)
    long = within(settled, now - LONG_SECONDS)
    short = within(long, now - SHORT_SECONDS)
    if len(short) < 2:
        return learned
    if len(short) > 2 and all(moment.saturated for moment in short[-3:]):
        return _saturated(learned, short, slo, planned, now)
    if any(moment.saturated for moment in within(moments, now - 2 * SHORT_SECONDS)):
        return learned  # What was queued misses, whatever the load is by now.
    fair = _fair(long, planned)
    if sum(moment.seconds for moment in fair) < SUSTAINED_SECONDS:
        return learned
    lasting = judge(gathered(fair), slo, LONG_SECONDS)
    newest = judge(gathered(within(fair, now - SHORT_SECONDS)), slo, SHORT_SECONDS)
    if min(lasting.low, newest.low) > slo.allowed:
        hopeless = _is_flat(settled) or lasting.low > MOST_MISS or _mean_load(fair) < FAR_BELOW * operating_point
        return _missed(learned, lasting, fair, planned, hopeless, now)
    return _proven(learned, settled, slo, planned, now)


def _proven(learned: Learned, settled: Moments, slo: Slo, planned: float, now: float) -> Learned:
    """Hardly any misses at the peaks of the load, of which one is just now: a little more of it.

    More than the profile says takes a load that lasts: what single peaks are carried with proves nothing for longer ones.
    """
    load = settled[-1].load
    if learned.correction >= 1:
        load = min(load, _mean_load(within(settled, now - LONG_SECONDS)))
    if load < BUSY * planned or now - learned.cut_at < RAISE_AFTER_SECONDS:
        return learned
    peaks = gathered(tuple(moment for moment in settled if moment.load >= BUSY * planned))
    if peaks.samples < ENOUGH or judge(peaks, slo, LONGEST_SECONDS).high > RAISE_BELOW * slo.allowed:
        return learned
    bound = MOST if learned.too_high is None else min(MOST, 0.97 * learned.too_high)
    return replace(
        learned, correction=max(learned.correction, min(learned.correction * (1 + RAISE), bound)), trial=None
    )


def learn_chance(
    learned: Learned, memory: Memory, slo: Slo, sheds: bool, operating_point: float, now: float
) -> Learned:
    """More of the demand may be left to chance after a tick with few misses; those that engines can't help don't count."""
    newest = memory.moments[-1]
    missed = 0.0 if newest.misses and infeasible(memory, slo, operating_point, now) else newest.misses
    share = missed / newest.samples if missed else 0.0
    return replace(learned, chance=headroom.chance(learned.chance, share, slo.allowed, newest.seconds, sheds))


def infeasible(memory: Memory, slo: Slo, operating_point: float, now: float) -> bool:
    """True where misses are proven that more engines can't help: without load, or without any queue."""
    recent = within(memory.moments, now - LONG_SECONDS)
    if len(recent) < 2 or recent[-1].at - recent[0].at < LONG_SECONDS / 2 or any(one.saturated for one in recent):
        return False
    total = judge(gathered(recent), slo, LONG_SECONDS)
    newest = judge(gathered(within(recent, now - SHORT_SECONDS)), slo, SHORT_SECONDS)
    if min(total.low, newest.low) <= slo.allowed:
        return False
    is_light = _mean_load(recent) < FAR_BELOW * operating_point
    return is_light or now < memory.learned.infeasible_until or total.low > MOST_MISS


def _forget(learned: Learned, now: float) -> Learned:
    if learned.too_high is not None and now - learned.cut_at > REMEMBER_SECONDS:
        learned = replace(learned, too_high=None)
    return learned


def _saturated(
    learned: Learned,
    short: Moments,
    slo: Slo,
    planned: float,
    now: float,
) -> Learned:
    """Engines at their limit show it: what they answer is their limit, whatever the profile says."""
    # Engines were busy all through a tick only if they had a queue at its beginning too.
    limit = SATURATED_SHARE * (short[-1].served + short[-2].served) / 2
    missed = judge(gathered(short), slo, SHORT_SECONDS)
    if missed.low <= slo.allowed or limit >= planned or planned <= 0:
        return learned
    lower = max(LEAST, learned.correction * limit / planned)
    return replace(learned, correction=lower, too_high=learned.correction, cut_at=now, trial=None)


def _fair(moments: Moments, planned: float) -> Moments:
    """Those whose misses are the profile's: under more load than is planned for they are the demand's.

    So they are in the tick after it, in which the last of those requests are answered. And the worst ones are left out,
    as bursts within a tick don't show in its load.
    """
    before = (None, *moments)
    calm = [
        moment
        for moment, last in zip(moments, before, strict=False)
        if moment.load <= planned and (last is None or last.load <= planned)
    ]
    worst = {id(moment) for moment in sorted(calm, key=lambda moment: moment.misses)[-BURST_TICKS:]}
    return tuple([moment for moment in calm if id(moment) not in worst])


def _missed(
    learned: Learned,
    missed: Judgement,
    fair: Moments,
    planned: float,
    hopeless: bool,
    now: float,
) -> Learned:
    """Misses without a queue: less load per engine may help, unless it is known, or shows, that it doesn't."""
    load = _mean_load(fair)
    share = missed.evidence.misses_low / missed.evidence.samples
    trial = learned.trial if learned.trial and load > 0.9 * learned.trial.load else None
    if learned.trial and not trial and share >= 0.8 * learned.trial.share:
        return replace(
            learned, correction=learned.trial.correction, trial=None, infeasible_until=now + REMEMBER_SECONDS
        )
    if hopeless:
        return replace(learned, infeasible_until=now + REMEMBER_SECONDS)
    if now < max(learned.infeasible_until, learned.cut_at + CUT_EVERY_SECONDS):
        return replace(learned, trial=trial)
    lower = max(LEAST, learned.correction * max(1 - CUT, min(1.0, MARGIN * _load_of_misses(fair) / planned)))
    return replace(
        learned,
        correction=lower,
        too_high=learned.correction,
        cut_at=now,
        trial=trial or Trial(learned.correction, load, share),
    )


def _is_flat(moments: Moments) -> bool:
    """True where the misses don't depend on the load: the two halves of the ticks, by their load, have equal shares."""
    ordered = sorted(moments, key=lambda moment: moment.load)
    lower, upper = tuple(ordered[: len(ordered) // 2]), tuple(ordered[len(ordered) // 2 :])
    light, heavy = gathered(lower), gathered(upper)
    if min(light.misses_low, heavy.misses_low) < ENOUGH or _mean_load(upper) < FLAT_LOAD * _mean_load(lower):
        return False
    return light.misses_low / light.samples >= FLAT_SHARE * heavy.misses_low / heavy.samples


def _load_of_misses(moments: Moments) -> float:
    """Mean load per engine at which requests missed: engines carry less than that."""
    misses = sum(moment.misses for moment in moments)
    return sum(moment.misses * moment.load for moment in moments) / misses


def _mean_load(moments: Moments) -> float:
    return sum(moment.load for moment in moments) / len(moments)
