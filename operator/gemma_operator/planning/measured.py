"""From operating points to the capacity profile that the autoscaler reads, in a ConfigMap."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from gemma_operator.api.scaling import CapacityProfile, MeasuredWith, OperatingPoint
from gemma_operator.planning.operating import Found, interval
from gemma_operator.scaling.pool import Slo
from gemma_operator.scaling.profile import DEFAULT_POINTS, DEFAULT_PROFILE, Profile

KEY = "profile.yaml"
_DIGITS = 4


def point_load(found: Found, profile: Profile = DEFAULT_PROFILE) -> float:
    """The load per engine, in engine-seconds per second, of an operating point."""
    return profile.work(found.mix.rates(found.rate or 0.0))


def capacity_profile(points: Sequence[Found], engines: int, measured_with: MeasuredWith) -> CapacityProfile:
    """The built-in table scaled so that it goes through what was measured; costs stay the built-in ones.

    `engines` shared the measured load. Of points with the same media share and burstiness the lowest counts.
    Between measured media shares the scale is interpolated, beyond them it is kept.
    """
    ratios: dict[float, dict[float, float]] = {}
    for point in points:
        row = ratios.setdefault(round(point.burstiness, 2), {})
        share = round(point.mix.media_share, 2)
        ratio = point_load(point) / engines / _built_in(share, point.burstiness)
        row[share] = min(ratio, row.get(share, ratio))
    grid = sorted({point.media_share for point in DEFAULT_POINTS} | {share for row in ratios.values() for share in row})
    rows = sorted({point.burstiness for point in DEFAULT_POINTS} | set(ratios))
    table = []
    for burstiness in rows:
        nearest = min(ratios, key=lambda measured: (abs(measured - burstiness), measured))
        for share in grid:
            load = _built_in(share, burstiness) * _interpolated(ratios[nearest], share)
            table.append(OperatingPoint(media_share=share, burstiness=burstiness, load=float(f"{load:.{_DIGITS}g}")))
    shares = {round(point.mix.media_share, 2) for point in points}
    return CapacityProfile(
        points=table, media_share=shares.pop() if len(shares) == 1 else None, measured_with=measured_with
    )


def config_map(name: str, namespace: str | None, profile: CapacityProfile, said: Sequence[str]) -> dict[str, Any]:
    """The ConfigMap, with what is to be said about the profile as comments."""
    body = profile.model_dump(by_alias=True, exclude_defaults=True, exclude_none=True, mode="json")
    comments = "".join(f"# {' '.join(line.split())}\n" for line in said)
    meta = {"name": name} | ({"namespace": namespace} if namespace else {})
    text = comments + yaml.safe_dump(body, sort_keys=False, default_flow_style=None, width=120)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {KEY: text}}


def sentences(points: Sequence[Found], slo: Slo, engines: int) -> list[str]:
    """What was found, for people: a line for each curve, and its notes."""
    shared = f" over {engines} engines" if engines > 1 else ""
    target = f"p{slo.percentile:g} TTFT within {slo.seconds * 1000:g} ms"
    lines = []
    for point in points:
        sources = ", ".join(point.sources[:3]) + (" ..." if len(point.sources) > 3 else "")
        lines.append(f"operating point for {target}{shared}: {interval(point)}")
        lines.append(f"  measured with {point.mix}; {point.process.name} arrivals; {sources}")
        lines += [f"  {note}" for note in point.notes]
    measured = sorted({(round(point.mix.media_share, 2), round(point.burstiness, 2)) for point in points if point.rate})
    if measured:
        cases = " and ".join(f"{share:.0%} media at burstiness {burstiness:g}" for share, burstiness in measured)
        lines.append(f"measured is {cases}; what the profile says of other mixes is the built-in one, scaled by that")
    if len(measured) < sum(point.rate is not None for point in points):
        lines.append("several curves have the same media share and burstiness: the lowest load counts")
    return lines


def summary(points: Sequence[Found], engines: int) -> list[Mapping[str, Any]]:
    """The same as data."""
    return [
        {
            "requestsPerSecondPerEngine": None if point.rate is None else point.rate / engines,
            "measuredPerEngine": None if point.measured is None else point.measured / engines,
            "provenToHold": None if point.holds is None else point.holds / engines,
            "provenToMiss": None if point.breaks is None else point.breaks / engines,
            "testedFrom": point.tested[0] / engines,
            "testedTo": point.tested[1] / engines,
            "crossed": point.crossed,
            "monotone": point.monotone,
            "arrivals": point.process.name,
            "burstiness": point.burstiness,
            "mediaShare": point.mix.media_share,
            "promptTokens": point.mix.prompt_tokens,
            "outputTokens": point.mix.output_tokens,
            "load": point_load(point) / engines,
            "sources": list(point.sources),
            "notes": list(point.notes),
        }
        for point in points
    ]


def _built_in(share: float, burstiness: float) -> float:
    return Profile(burstiness=burstiness).operating_point(share)


def _interpolated(row: Mapping[float, float], share: float) -> float:
    shares = sorted(row)
    above = bisect_right(shares, share)
    if above in (0, len(shares)):
        return row[shares[min(above, len(shares) - 1)]]
    low, high = shares[above - 1], shares[above]
    return row[low] + (row[high] - row[low]) * (share - low) / (high - low)
