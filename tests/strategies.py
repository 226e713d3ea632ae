"""Hypothesis strategies over values, and an oracle for "the very same value" that knows nothing of the codec."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

any_text = st.text(st.characters(exclude_categories=()), max_size=20)
"""Text with NUL and lone surrogates."""

zones = st.none() | (
    st.timedeltas(min_value=timedelta(hours=-23), max_value=timedelta(hours=23))
    .filter(lambda offset: not timedelta(0) < abs(offset) < timedelta(seconds=1))
    .map(timezone)
)
datetimes = st.builds(
    lambda when, fold: when.replace(fold=fold), st.datetimes(timezones=zones), st.sampled_from([0, 1])
)
times = st.builds(
    lambda when, fold: when.replace(fold=fold), st.times(timezones=zones), st.sampled_from([0, 1])
)
integers = st.one_of(
    st.integers(),
    st.sampled_from([2**63, -(2**63) - 1, 2**64]),
    st.integers(600, 4000).map(lambda digits: 10**digits),
    st.integers(600, 4000).map(lambda digits: 1 - 10**digits),
)
floats = st.floats() | st.sampled_from(
    [float("nan"), float("inf"), -0.0, 5e-324, 1e16, 1.7976931348623157e308]
)
decimals = st.decimals().filter(lambda number: not number.is_snan()) | st.sampled_from(
    [Decimal(text) for text in ("NaN", "-NaN123", "-0", "0E+999", "1.00", "1E-400", "-Infinity", "12E+20")]
)

hashable_leaves = st.one_of(
    st.none(),
    st.booleans(),
    integers,
    floats,
    any_text,
    st.binary(max_size=20),
    datetimes,
    st.dates(),
    times,
    st.timedeltas(),
    decimals,
    st.uuids(),
    st.complex_numbers(),
    st.fractions(),
    st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 5)),
)
hashables = st.recursive(
    hashable_leaves,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
tag_names = st.sampled_from(["~tuple", "~~tuple", "~", "~dict", "~float", "~nothing", "~set", "~str"])
leaves = hashable_leaves | st.just(Decimal("sNaN"))


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.sets(hashables, max_size=4),
        st.frozensets(hashables, max_size=4),
        st.dictionaries(any_text, inner, max_size=4),
        st.dictionaries(hashables, inner, max_size=4),
        st.dictionaries(tag_names, inner, min_size=1, max_size=2),
    )


exact_values = st.recursive(leaves, _containers, max_leaves=12)
"""Values that the codec promises to restore exactly."""

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
"""Values that are plain JSON already."""


def identity(value: Any) -> str:
    """Text that differs wherever two values differ in type or content; the order of sets and dicts aside."""
    kind = type(value).__name__
    if isinstance(value, (list, tuple)):
        return f"{kind}[{','.join(map(identity, value))}]"
    if isinstance(value, (set, frozenset)):
        return f"{kind}{{{','.join(sorted(map(identity, value)))}}}"
    if isinstance(value, dict):
        return f"{kind}{{{','.join(sorted(f'{identity(k)}:{identity(v)}' for k, v in value.items()))}}}"
    if isinstance(value, int):
        return f"{kind}({value:x})"
    if isinstance(value, (datetime, time)):
        # with an offset, fold says nothing
        fold = value.fold if value.tzinfo is None else 0
        return f"{kind}({value.replace(fold=0)!r},{fold})"
    if isinstance(value, (date, timedelta)):
        return repr(value)
    return f"{kind}({value!r})"


def shuffled(value: Any) -> Any:
    """An equal value whose dicts and sets were filled in the opposite order."""
    if isinstance(value, dict):
        return {shuffled(key): shuffled(item) for key, item in reversed(value.items())}
    if isinstance(value, (set, frozenset)):
        return type(value)(shuffled(member) for member in reversed(list(value)))
    if isinstance(value, (list, tuple)):
        return type(value)(map(shuffled, value))
    return value
