"""Quantities and durations: read as a user writes them, spelled as the API server stores them."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_operator.api.values import canonical_quantity, duration_seconds, quantity_value

NUMBERS = st.from_regex(r"\A(0|[1-9][0-9]{0,5})(\.[0-9]{1,4})?\Z") | st.integers(0, 4096).map(lambda n: str(n * 1024))
SUFFIXES = st.sampled_from(["", "n", "u", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti", "e3", "E2", "e-2", "e+1"])
QUANTITIES = st.builds("{}{}".format, NUMBERS, SUFFIXES)


# The right-hand side is what k8s.io/apimachinery v0.36.3 prints for the left one, and keeps when it reads it again.
@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("0", "0"), ("0Gi", "0"), ("0.0", "0"), (0, "0"),
        (2, "2"), ("2", "2"), ("0.5", "500m"), (0.5, "500m"), (0.1, "100m"), (".5", "500m"), ("5.", "5"), ("+5", "5"),
        ("1000m", "1"), ("1500m", "1500m"), ("2000m", "2"), ("2000", "2k"), ("1500", "1500"), ("1000k", "1M"),
        ("100n", "100n"), ("1000n", "1u"), ("0.1n", "1n"), ("1u", "1u"), ("1.0000000001", "1000000001n"),
        ("1.5Gi", "1536Mi"), ("1024Mi", "1Gi"), ("1025Mi", "1025Mi"), ("1000Ki", "1000Ki"), ("6144Mi", "6Gi"),
        ("7Ei", "7Ei"), ("0.5Ki", "512"), ("0.9765625Ki", "1k"), ("1.953125Ki", "2k"), ("0.1Ki", "102400m"),
        ("1.1Gi", "1181116006400m"),
        ("1e3", "1e3"), ("1E3", "1e3"), ("1e2", "100"), ("12e1", "120"), ("5e-1", "500e-3"), ("1.5e4", "15e3"),
        ("1e-12", "1e-9"), ("1E", "1E"), ("9223372036854775807", "9223372036854775807"),
    ],
)  # fmt: skip
def test_a_quantity_is_spelled_as_the_api_server_stores_it(written: object, stored: str) -> None:
    assert canonical_quantity(written) == stored


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "such as 500m"), ("1.5 Gi", "such as 500m"), ("1gi", "such as 500m"), ("1e", "such as 500m"),
        ("0x10", "such as 500m"), ("1e3Gi", "such as 500m"), ("Gi", "such as 500m"), ("1\n2", "such as 500m"),
        ("١", "such as 500m"), (True, "such as 500m"), (None, "such as 500m"), ([], "such as 500m"),
        (float("inf"), "such as 500m"), (float("nan"), "such as 500m"),
        ("-1", "zero or more"), (-0.5, "zero or more"),
        ("8Ei", "too large"), ("1e50", "too large"), ("9223372036854775808", "too large"),
        ("1e999999999", "out of range"), ("1e99999999999999999999", "out of range"),
    ],
)  # fmt: skip
def test_what_is_no_quantity_is_refused_with_the_value_in_the_message(written: object, said: str) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        canonical_quantity(written)
    assert repr(written) in str(refused.value)


@given(QUANTITIES)
def test_spelling_a_quantity_twice_changes_nothing_more(text: str) -> None:
    once = canonical_quantity(text)
    assert canonical_quantity(once) == once


@given(QUANTITIES)
def test_the_spelling_keeps_the_value_up_to_a_billionth(text: str) -> None:
    before, after = quantity_value(text), quantity_value(canonical_quantity(text))
    assert Decimal(0) <= after - before < Decimal("1e-9")


@given(st.text(max_size=12) | st.integers() | st.floats() | st.booleans() | st.none())
def test_a_quantity_is_spelled_or_refused(value: object) -> None:
    try:
        assert canonical_quantity(value)
    except ValueError as error:
        assert str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("300ms", 0.3), ("333ms", 0.333), ("0.5s", 0.5), ("2s", 2.0), ("5m", 300.0), ("1h", 3600.0), ("0.25ms", 0.00025)],
)
def test_durations_in_seconds(text: str, seconds: float) -> None:
    assert duration_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "300", "300 ms", "-1s", "1.s", ".5s", "1d", "1m30s", "300ms\n", "300MS"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="such as 300ms, 2s, 5m or 1h"):
        duration_seconds(text)
