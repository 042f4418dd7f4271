"""Raw counters to what came to a pool: every way in which counters lie."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_operator.scaling.counters import Missing, MissingReason, PoolId, Scrape
from gemma_operator.scaling.observation import Metrics, Watch, observe
from gemma_operator.scaling.pool import Fleet
from gemma_operator.scaling.verdict import Evidence
from tests.support.scaling import DOWN, POLICY, POOL, START, TICK, counters, member, scrape

TWO = Fleet(2, (member("a"), member("b")))
ONE = Fleet(1, (member("a"),))


class Eye:
    """Observes one pool tick by tick."""

    def __init__(self, pool: Fleet = TWO, now: float = START) -> None:
        self.pool, self.now, self.watch = pool, now, Watch()

    def tick(self, reading, seconds=TICK, pool=None):
        self.now += seconds
        self.pool = pool or self.pool
        self.watch, found = observe(self.watch, reading, {POOL: (POLICY, self.pool)}, self.now)
        return found[POOL]

    def counts(self, seconds=TICK, **goods):
        """A tick in which each engine's counter of good requests is as given."""
        at = self.now + seconds
        return self.tick(scrape(*(counters(uid, at, good) for uid, good in goods.items())), seconds)


def test_the_first_sample_of_an_old_engine_says_nothing():
    found = Eye().counts(a=1000, b=2000)
    assert (found.metrics, found.rates) == (Metrics.BLIND, None)
    assert found.missing.reason is MissingReason.PARTIAL_COVERAGE


def test_rates_are_the_sum_over_engines():
    eye = Eye()
    eye.counts(a=1000, b=2000)
    found = eye.counts(a=1150, b=2300)
    assert found.metrics is Metrics.FULL
    assert found.rates.requests == pytest.approx(30)
    assert found.rates.prompt_tokens == pytest.approx(15_000)
    assert found.rates.media_items == pytest.approx(3)
    assert found.ttft == Evidence(450, 0, 0)


def test_zero_traffic_is_zero_and_not_missing():
    eye = Eye()
    eye.counts(a=1000, b=2000)
    found = eye.counts(a=1000, b=2000)
    assert (found.metrics, found.rates.requests, found.stuck) == (Metrics.FULL, 0, False)


def test_a_pod_made_while_we_watch_counts_from_zero():
    eye = Eye(ONE)
    eye.counts(a=1000)
    eye.counts(a=1150)
    new = member("c", ready_at=eye.now + 10, created_at=eye.now - 5, joined_at=eye.now + 10)
    eye.pool = Fleet(2, (member("a"), new))
    found = eye.counts(a=1300, c=30)
    assert found.rates.requests == pytest.approx(12), (
        "30 requests within this tick of 15 s, not within the 5 s since Ready"
    )


def test_a_pod_that_lost_its_readiness_comes_back_with_its_counters():
    eye = Eye()
    eye.counts(a=1000, b=9000)
    eye.counts(a=1150, b=9150)
    eye.pool = ONE
    eye.counts(a=1300, b=9200)
    eye.pool = Fleet(2, (member("a"), replace(member("b"), ready_at=eye.now + 1, joined_at=eye.now + 1)))
    eye.counts(a=1450, b=9200)
    found = eye.counts(a=1600, b=9350)
    assert found.rates.requests == pytest.approx(20)


@pytest.mark.parametrize("away", [2, 30, 45, 90])
def test_a_pod_made_while_we_watched_counts_its_life_once_however_long_it_was_not_ready(away):
    """Of longer than ten minutes nothing is remembered of it: it comes back as one that was there before."""
    eye = Eye(ONE)
    eye.counts(a=1000)
    eye.counts(a=1150)
    born, done, life = eye.now, 1150, 0
    new = member("c", created_at=born + 1, ready_at=born + 20, joined_at=born + 20)
    for tick in range(1, 9 + away):
        is_away = 4 < tick <= 4 + away
        done, life = done + 150, life + (0 if is_away else 150)
        back = replace(new, joined_at=eye.now) if tick > 4 + away else new
        pool = ONE if is_away else Fleet(2, (member("a"), back))
        seen = [counters("a", eye.now + TICK, done), counters("c", eye.now + TICK, life)]
        found = eye.tick(scrape(*seen[: 1 if is_away else 2]), pool=pool)
        assert found.ttft.samples <= 300, f"tick {tick}"
        assert found.rates.requests <= 20.1


def test_a_restarted_engine_counts_from_its_start():
    eye = Eye(ONE)
    eye.counts(a=1000)
    eye.counts(a=1150)
    at = eye.now + TICK
    found = eye.tick(scrape(counters("a", at, 50, started_at=at - 5)))
    assert found.ttft.samples == 50
    assert found.rates.requests == pytest.approx(10), "50 in the 5 s that the new process has run"


def test_a_counter_that_falls_without_a_known_start_is_a_restart():
    eye = Eye(ONE)
    eye.counts(a=1000)
    eye.counts(a=1150)
    assert eye.counts(a=30).rates.requests == pytest.approx(2)


def test_a_lent_engine_brings_no_history_of_its_old_pool():
    batch = PoolId("ns", "serving", "batch")
    watch, now = Watch(), START
    alone = {POOL: (POLICY, ONE), batch: (POLICY, Fleet(1, (member("b"),)))}
    for good in (1000, 1150):
        now += TICK
        watch, _ = observe(watch, scrape(counters("a", now, good), counters("b", now, good * 10)), alone, now)
    lent = {
        POOL: (POLICY, Fleet(1, (member("a"), member("b", joined_at=now + 1, lent=True)))),
        batch: (POLICY, Fleet(0)),
    }
    counted = []
    for good in (1300, 1450):
        now += TICK
        watch, found = observe(watch, scrape(counters("a", now, good), counters("b", now, good * 10)), lent, now)
        counted.append(found[POOL].ttft.samples)
    assert counted == [150, 150 + 1500], "the sample after the flip is its base"


@pytest.mark.parametrize("again", [0, -15])
def test_a_scrape_that_is_read_twice_counts_once(again):
    eye = Eye(ONE)
    eye.counts(a=1000)
    eye.counts(a=1150)
    found = eye.tick(scrape(counters("a", eye.now + again, 1150 if again == 0 else 1000)))
    assert (found.metrics, found.rates, found.ttft.samples) == (Metrics.FULL, None, 0)


def test_slow_scrapes_are_spread_over_their_own_time():
    """Scrapes of 30 s under ticks of 15 s: every other tick has news, the rate is right."""
    eye = Eye(ONE)
    eye.counts(a=1000)
    eye.tick(scrape(counters("a", eye.now, 1000)))
    found = eye.tick(scrape(counters("a", eye.now + TICK, 1300)))
    assert found.rates.requests == pytest.approx(10)


@pytest.mark.parametrize(
    ("seen", "metrics", "requests"),
    [(4, Metrics.FULL, 40.0), (3, Metrics.PARTIAL, 40.0), (2, Metrics.PARTIAL, 40.0), (1, Metrics.BLIND, None)],
)
def test_the_unseen_part_is_guessed_from_the_seen_one_down_to_a_half(seen, metrics, requests):
    eye = Eye(Fleet(4, tuple(member(uid) for uid in "abcd")))
    eye.counts(a=0, b=0, c=0, d=0)
    eye.counts(a=150, b=150, c=150, d=150)
    eye.now += 60 - TICK
    found = eye.counts(**dict.fromkeys("abcd"[:seen], 150 + 150 * 4))
    assert found.metrics is metrics
    assert (found.rates and found.rates.requests) == (requests and pytest.approx(requests))
    if seen < 4:
        assert found.missing.reason is MissingReason.PARTIAL_COVERAGE


def test_old_samples_are_stale():
    eye = Eye(ONE)
    eye.counts(a=1000)
    eye.counts(a=1150)
    at = eye.now
    last = [eye.tick(scrape(counters("a", at, 1150))) for _ in range(4)][-1]
    assert (last.metrics, last.missing.reason) == (Metrics.BLIND, MissingReason.STALE)
    assert "60 s old" in last.missing.message


def test_blind_becomes_blind_long_after_a_cold_start():
    eye = Eye(ONE)
    states = [eye.tick(DOWN).metrics for _ in range(25)]
    assert states == [Metrics.BLIND] * 21 + [Metrics.BLIND_LONG] * 4, "longer than 300 s"
    assert eye.tick(DOWN).missing is DOWN


def test_no_engine_at_all():
    found = Eye(Fleet(0)).tick(Scrape({}))
    assert (found.metrics, found.missing.reason) == (Metrics.BLIND, MissingReason.NO_SERIES)
    assert Eye().tick(Scrape({})).missing.reason is MissingReason.NO_SERIES


def test_a_new_pod_gets_its_first_scrapes_in_peace():
    eye = Eye(ONE)
    eye.counts(a=1000)
    eye.counts(a=1150)
    eye.pool = Fleet(2, (member("a"), member("c", ready_at=eye.now)))
    assert eye.counts(a=1300).metrics is Metrics.FULL
    eye.counts(a=1450)
    eye.counts(a=1600)
    assert eye.counts(a=1750).metrics is Metrics.PARTIAL, "after 45 s it should be seen"


@pytest.mark.parametrize("jump", [-3600, 3600])
def test_a_clock_that_jumps_starts_anew(jump):
    eye = Eye(ONE)
    eye.counts(a=1000)
    eye.counts(a=1150)
    found = eye.counts(seconds=jump, a=1300)
    assert found.rates is None
    assert eye.counts(a=1450).rates.requests == pytest.approx(10)


def test_a_sample_from_the_future_is_not_taken():
    eye = Eye(ONE)
    eye.counts(a=1000)
    eye.counts(a=1150)
    assert eye.tick(scrape(counters("a", eye.now + 500, 1300))).rates is None


BROKEN = {
    "nan": {"waiting": math.nan},
    "infinite": {"running": math.inf},
    "negative": {"running": -1.0},
    "nan counter": {"prompt_tokens": math.nan},
    "not cumulative": {"ttft": ((0.3, 5.0), (0.5, 4.0), (math.inf, 9.0))},
    "no infinity": {"ttft": ((0.3, 5.0), (0.5, 6.0))},
    "no buckets": {"ttft": ()},
    "unordered": {"ttft": ((0.5, 5.0), (0.3, 6.0), (math.inf, 9.0))},
    "nan bucket": {"ttft": ((0.3, math.nan), (math.inf, 9.0))},
    "nan finished": {"finished": {"stop": math.nan}},
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_sample_is_dropped_whole(broken):
    eye = Eye(ONE)
    eye.counts(a=1000)
    eye.counts(a=1150)
    found = eye.tick(scrape(counters("a", eye.now + TICK, 1300, **broken)))
    assert (found.rates, found.ttft.samples) == (None, 0)
    assert eye.counts(a=1450).rates.requests == pytest.approx(10), "the next good one covers both ticks"


def test_refusals_errors_and_aborts_are_misses():
    eye = Eye(ONE)
    eye.tick(scrape(counters("a", eye.now + TICK, rejected=0.0)))
    at = eye.now + TICK
    more = {"rejected": 30.0, "finished": {"stop": 90.0, "error": 2.0, "abort": 3.0}}
    found = eye.tick(scrape(counters("a", at, 90, 5, **more)))
    assert found.ttft == Evidence(95 + 35, 5 + 35, 5 + 35)
    assert found.refused == pytest.approx(2)


def test_what_engines_do_not_export_stays_unknown():
    eye = Eye(TWO)
    for good in (0, 150):
        at = eye.now + TICK
        found = eye.tick(scrape(*(counters(uid, at, good, media_items=None, prompt_tokens=None) for uid in "ab")))
    assert (found.rates.media_items, found.rates.prompt_tokens) == (None, None)
    eye = Eye(TWO)
    for good in (0, 150):
        at = eye.now + TICK
        found = eye.tick(scrape(counters("a", at, good), counters("b", at, good, media_items=None)))
    assert found.rates.media_items == pytest.approx(2), "one of two exports it: the other is like it"


def test_growing_queues_are_seen():
    eye = Eye(ONE)
    eye.tick(scrape(counters("a", eye.now + TICK, waiting=0.0)))
    found = eye.tick(scrape(counters("a", eye.now + TICK, 150, waiting=30.0)))
    assert (found.growth, found.waiting) == (pytest.approx(2), 30)


def test_an_engine_of_which_nothing_comes_is_stuck():
    eye = Eye(ONE)
    eye.tick(scrape(counters("a", eye.now + TICK, 100, running=5.0)))
    assert eye.tick(scrape(counters("a", eye.now + TICK, 100, running=5.0))).stuck
    assert not eye.tick(scrape(counters("a", eye.now + TICK, 101, running=5.0))).stuck


def test_one_engine_that_misses_more_than_the_rest_is_named():
    eye = Eye(Fleet(4, tuple(member(uid) for uid in "abcd")))
    found = None
    for tick in range(1, 12):
        at = eye.now + TICK
        good = [counters(uid, at, tick * 150) for uid in "abc"]
        found = eye.tick(scrape(*good, counters("d", at, tick * 80, tick * 70)))
    assert found.skewed == "d"
    eye = Eye(TWO)
    for tick in range(1, 12):
        at = eye.now + TICK
        found = eye.tick(scrape(*(counters(uid, at, tick * 80, tick * 70) for uid in "ab")))
    assert not found.skewed, "all miss alike"


def test_engines_that_work_off_their_queues_beside_a_new_one_are_not_skewed():
    """Two engines under twice their load get a third: for a while only the old ones answer late."""
    eye, good, late = Eye(TWO, START), {"a": 0.0, "b": 0.0, "c": 0.0}, {"a": 0.0, "b": 0.0, "c": 0.0}
    joined = START + 60
    for second in range(2, 600, 2):
        now, has_new = START + second, START + second >= joined
        drained = now >= joined + 40
        for uid in "abc" if has_new else "ab":
            is_late = uid != "c" and not drained
            (late if is_late else good)[uid] += 30.0
        new = member("c", ready_at=joined, created_at=joined - 30, joined_at=joined)
        pool = Fleet(3, (*TWO.members, new)) if has_new else TWO
        found = eye.tick(scrape(*(counters(uid, now, good[uid], late[uid]) for uid in good)), 2, pool)
        assert not found.skewed, f"{now - joined} s after it joined"


def test_a_lent_engine_is_not_compared_with_the_pools_own():
    eye = Eye(Fleet(4, (*(member(uid) for uid in "abc"), member("d", lent=True))))
    for tick in range(1, 12):
        at = eye.now + TICK
        good = [counters(uid, at, tick * 150) for uid in "abc"]
        found = eye.tick(scrape(*good, counters("d", at, tick * 80, tick * 70)))
        assert not found.skewed


def test_a_lent_engines_share_is_guessed_until_it_is_seen_and_its_old_queue_is_no_miss():
    eye = Eye(ONE)
    eye.counts(a=1000)
    eye.counts(a=1300)
    at = eye.now
    guest = member("b", joined_at=at + 1, lent=True)
    eye.pool = Fleet(1, (member("a"), guest))
    shares, samples = [], []
    for tick, waiting in enumerate((60.0, 20.0, 0.0, 0.0), 1):
        own = counters("a", eye.now + TICK, 1300 + tick * 150)
        theirs = counters("b", eye.now + TICK, 5000 + tick * 150, tick * 40 if waiting else 80, waiting=waiting)
        found = eye.tick(scrape(own, theirs))
        assert found.metrics is Metrics.FULL
        shares.append(found.rates.requests)
        samples.append(found.ttft)
    assert shares[:3] == [pytest.approx(20)] * 3
    assert [one.misses_low for one in samples] == [0, 0, 0, 0]
    assert samples[-1].samples == 300


def test_backlog_and_offered_load_are_passed_on():
    broken = Missing(MissingReason.QUERY_FAILED, "two series")
    reading = Scrape({}, backlog={POOL: 7.0}, offered={POOL: broken})
    found = Eye().tick(reading)
    assert (found.backlog, found.offered) == (7.0, broken)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400), st.booleans(), st.booleans()), min_size=3, max_size=20)
)
def test_whatever_is_scraped_nothing_is_counted_twice_or_invented(ticks):
    """Engines lose scrapes at random; with both seen at the end, the sum of what was counted is what they did."""
    eye = Eye(TWO)
    done, counted = {"a": 0, "b": 0}, 0.0
    eye.counts(**done)
    for a, b, see_a, see_b in [*ticks, (0, 0, True, True)]:
        done = {"a": done["a"] + a, "b": done["b"] + b}
        visible = {uid: good for uid, good in done.items() if (see_a if uid == "a" else see_b)}
        found = eye.counts(seconds=5, **visible)
        if found.metrics is not Metrics.BLIND:
            counted += found.ttft.samples
        assert found.rates is None or found.rates.requests >= 0
    assert counted <= sum(done.values()) + 1e-6
