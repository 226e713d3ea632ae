"""What the codec promises for every value, searched with Hypothesis and pinned case by case."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import enum
import io
import ipaddress
import json
import math
import os
import subprocess
import sys
import types
import unittest.mock
import zoneinfo
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal, localcontext
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import httpx
import msgspec
import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from refold.journal import codec
from refold.journal.errors import LimitExceeded, UnsupportedValue
from strategies import exact_values, hashables, identity, json_values, shuffled


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Level(enum.IntEnum):
    HIGH = 3


class Point(NamedTuple):
    x: int
    y: float


@dataclasses.dataclass
class Order:
    id: int
    lines: list[Any]
    total: Decimal = dataclasses.field(init=False, default=Decimal(0))


class Refund(msgspec.Struct, tag="refund"):
    order: int
    when: datetime


class Customer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str = pydantic.Field(alias="Name")
    site: pydantic.HttpUrl | None = None


class Text(str):
    __slots__ = ()


class Number(int):
    pass


@given(exact_values)
@example({"~tuple": [1]})
@example([{"~~": 1}, {"~": {"~set": []}}, {"~dict": [[1, 2]]}])
@example(({}, [], (), set(), frozenset(), b"", ""))
@example({float("nan"), float("nan")})
@example({Decimal("NaN"): 1, Decimal("NaN"): 2})
@example("\ud83d\ude00")
@example([float("nan")])
@example({"a": [float("-inf"), -0.0]})
def test_every_supported_value_comes_back_the_same_from_the_log(value):
    data = codec.encode(value)
    assert identity(codec.decode(data)) == identity(value)
    assert codec.encode(codec.decode(data)) == data


@given(exact_values)
def test_bytes_do_not_depend_on_the_order_in_which_dicts_and_sets_were_filled(value):
    assert codec.encode(shuffled(value)) == codec.encode(value)


@given(exact_values)
def test_recorded_bytes_are_json_that_any_strict_parser_reads(value):
    json.loads(codec.encode(value), parse_constant=pytest.fail)


@given(json_values)
def test_plain_json_is_recorded_as_msgspec_writes_it(value):
    plain = msgspec.json.encode(value, order="deterministic")
    assert plain == codec.encode(value) or b'{"~' in plain
    assert codec.canonical(value) == plain


@given(exact_values, st.integers(0, 30))
def test_damaged_bytes_are_refused_and_never_crash_the_reader(value, cut):
    data = codec.encode(value)
    for broken in (data[:cut], data.replace(b"~", b"~x", 1), data.replace(b'":', b'":[],"', 1)):
        with contextlib.suppress(UnsupportedValue):
            codec.decode(broken)


@given(st.sets(hashables, max_size=5), st.dictionaries(hashables, st.integers(), max_size=5))
def test_live_and_replay_see_the_same_value(members, table):
    value = {"members": members, "table": table}
    live = codec.normalise(value)
    assert identity(codec.normalise(live)) == identity(live) == identity(value)


SEED_SCRIPT = """
from refold.journal import codec
words = [f"word {n}" for n in range(50)]
value = {"set": set(words)}
value |= {"keys": {(w, n): frozenset(words[:n]) for n, w in enumerate(words)}, "plain": dict.fromkeys(words)}
print(codec.encode(value).hex())
"""


def test_bytes_do_not_depend_on_the_hash_seed():
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SEED_SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2", "31337")
    }
    assert len(outputs) == 1
    assert len(outputs.pop()) > 1000


def test_recorded_bytes_never_change_between_versions():
    """The log outlives us: a change here is a new format, not a fix."""
    value = {
        "b": [1, -0.0, 1e16, None, True, "é\0"],
        "a": (1, {2}, frozenset({"x"})),
        "c": {1: "one"},
        "d": datetime(2024, 10, 27, 2, 30, tzinfo=timezone(timedelta(hours=2))),
        "e": [float("nan"), -math.inf, Decimal("1E+5"), b"\xff", 1 + 2j, "\ud800", timedelta(1), range(3)],
        "f": {"~x": 1},
    }
    assert codec.encode(value) == (
        b'{"a":{"~tuple":[1,{"~set":[2]},{"~frozenset":["x"]}]},'
        b'"b":[1,-0.0,1e16,null,true,"\xc3\xa9\\u0000"],"c":{"~dict":[[1,"one"]]},'
        b'"d":{"~datetime":"2024-10-27T02:30:00+02:00"},'
        b'"e":[{"~float":"nan"},{"~float":"-inf"},{"~decimal":"1E+5"},{"~bytes":"/w=="},{"~complex":[1.0,2.0]},'
        b'{"~str":"\\\\ud800"},{"~timedelta":[1,0,0]},{"~range":[0,3,1]}],"f":{"~~x":1}}'
    )


def test_a_nul_in_a_result_comes_back_and_its_bytes_hold_no_nul():
    """H01"""
    data = codec.encode("ok\0tail")
    assert b"\0" not in data
    assert codec.decode(data) == "ok\0tail"


def test_numbers_that_json_cannot_say_are_the_same_live_and_on_replay():
    """H02"""
    live = codec.normalise(
        {"score": math.nan, "max": math.inf, "min": -math.inf, "d": Decimal("NaN"), "z": -0.0}
    )
    assert math.isnan(live["score"])
    assert (live["max"], live["min"]) == (math.inf, -math.inf)
    assert live["d"].is_nan()
    assert math.copysign(1, live["z"]) == -1


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -0.0, 5e-324], ids=repr)
@pytest.mark.parametrize(
    "put", [lambda n: n, lambda n: [n], lambda n: {"a": [{"b": n}]}], ids=["bare", "list", "deep"]
)
def test_an_odd_number_among_plain_json_alone_comes_back_too(number, put):
    """H02: no null in its place."""
    assert identity(codec.normalise(put(number))) == identity(put(number))


@pytest.mark.parametrize(
    "value, recorded",
    [
        (Colour.RED, "red"),
        (Colour.PAIR, (1, 2)),
        (Level.HIGH, 3),
        ({Colour.RED: 1}, {"red": 1}),
        (Point(1, 2.0), {"x": 1, "y": 2.0}),
        (Order(1, [(2,)]), {"id": 1, "lines": [(2,)], "total": Decimal(0)}),
        (
            Refund(1, datetime(2024, 1, 1, tzinfo=UTC)),
            {"type": "refund", "order": 1, "when": datetime(2024, 1, 1, tzinfo=UTC)},
        ),
        (
            Customer(Name="A", site="http://a.example/", vip=True),
            {"name": "A", "site": "http://a.example/", "vip": True},
        ),
        (pydantic.RootModel[list[int]]([1]), [1]),
        (PurePosixPath("/a/b"), "/a/b"),
        (Text("t"), "t"),
        ({Text("t"): Text("u")}, {"t": "u"}),
        (Number(7), 7),
        (bytearray(b"x"), b"x"),
        (memoryview(b"x"), b"x"),
        (collections.OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (collections.deque([1, 2]), [1, 2]),
        (types.MappingProxyType({"a": 1}), {"a": 1}),
        (ipaddress.ip_address("10.0.0.1"), "10.0.0.1"),
        (ValueError("no"), {"type": "ValueError", "message": "no"}),
        (
            datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Vienna")),
            datetime(2024, 7, 1, tzinfo=timezone(timedelta(hours=2))),
        ),
        (None, None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_of_a_class_is_recorded_as_its_documented_plain_form(value, recorded):
    """H03"""
    live = codec.normalise(value)
    assert identity(live) == identity(recorded)
    assert codec.encode(live) == codec.encode(value)


def test_branching_on_tuples_and_integer_keys_goes_the_same_way_live_and_on_replay():
    """H04"""
    live = codec.normalise({"pair": (1, 2), "names": {1: "a"}})
    assert isinstance(live["pair"], tuple)
    assert live["names"][1] == "a"


def _cycle():
    ring: list[Any] = [1]
    ring.append({"again": ring})
    return ring


async def _coroutine():
    return 1


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int


class Explosive:
    def __getattribute__(self, name):
        raise RuntimeError("do not touch")


@pytest.mark.parametrize(
    "inner, named",
    [
        (lambda: (x for x in ()), "generator"),
        (lambda: map(str, ()), "make it a list"),
        ({}.keys, "dict_keys"),
        (lambda: len, "code is not data"),
        (lambda: Order, "code is not data"),
        (lambda: math, "module"),
        (object, "object at .items[3].when"),
        (lambda: io.StringIO("x"), "open file"),
        (_cycle, "contains itself"),
        (asyncio.Event, "asyncio.locks.Event"),
        (lambda: msgspec.Raw(b"1"), "msgspec.Raw"),
        (lambda: {Frozen(1)}, ".items[3].when{member}"),
        (lambda: {Frozen(1): 2}, ".items[3].when{key}"),
        (lambda: {Point(1, 2)}, "as a dict or list"),
        (lambda: {Path("a"), "a"}, "recorded as the same value"),
        (lambda: {Colour.RED: 1, "red": 2}, "recorded as the same text"),
        (lambda: time(1, tzinfo=zoneinfo.ZoneInfo("Europe/Vienna")), "gives no offset"),
        (lambda: time(1, tzinfo=timezone(timedelta(microseconds=1))), "use UTC"),
        (lambda: pydantic.SecretStr("s"), "SecretStr"),
        (unittest.mock.Mock, "Mock"),
        (Explosive, "Explosive"),
    ],
    ids=str,
)
def test_what_cannot_be_recorded_is_refused_naming_result_type_and_path(inner, named):
    """H03: before anything is written."""
    with pytest.raises(UnsupportedValue) as refused:
        codec.encode({"items": [1, 2, 3, {"when": inner()}]}, what="result of tool 'fetch'")
    assert str(refused.value).startswith("result of tool 'fetch' cannot be recorded: ")
    assert ".items[3].when" in str(refused.value)
    assert named in str(refused.value)


def test_a_coroutine_is_refused_with_the_advice_to_await_it():
    coroutine = _coroutine()
    with pytest.raises(UnsupportedValue, match=r"coroutine at the top: .*await it"):
        codec.encode(coroutine)
    coroutine.close()


def test_a_datetime_that_holds_more_than_microseconds_is_refused():
    class Nano(datetime):
        def replace(self, *args, **kwargs):
            return object()

    with pytest.raises(UnsupportedValue, match="nanoseconds"):
        codec.encode(Nano(2024, 1, 1, tzinfo=UTC))
    assert codec.normalise(type("Plain", (datetime,), {})(2024, 1, 1, tzinfo=UTC)) == datetime(
        2024, 1, 1, tzinfo=UTC
    )


def _nested(depth, make=lambda inner: [inner]):
    value: Any = 1
    for _ in range(depth):
        value = make(value)
    return value


@pytest.mark.parametrize(
    "make", [lambda v: [v], lambda v: {"a": v}, lambda v: (v,), lambda v: {1: v}, lambda v: frozenset({v})]
)
def test_values_nest_to_the_documented_depth_and_no_deeper(make):
    deepest = _nested(codec.VALUE_DEPTH_MAX, make) if make(1) != frozenset({1}) else _nested(20, make)
    assert codec.normalise(deepest) == deepest
    with pytest.raises(UnsupportedValue, match=rf"deeper than {codec.VALUE_DEPTH_MAX} levels"):
        codec.encode(_nested(codec.VALUE_DEPTH_MAX + 1, make) if make(1) != frozenset({1}) else _nested(101))


def test_a_cyclic_dataclass_is_refused_and_a_shared_value_is_not():
    order = Order(1, [])
    assert codec.normalise([order, order]) == [{"id": 1, "lines": [], "total": Decimal(0)}] * 2
    order.lines.append(order)
    with pytest.raises(UnsupportedValue, match=r"Order at \.lines\[0\]: it contains itself"):
        codec.encode(order)


def test_a_decimal_is_the_same_in_any_arithmetic_context():
    with localcontext() as context:
        context.capitals = 0
        context.prec = 2
        assert codec.encode(Decimal("1.23456E+9")) == b'{"~decimal":"1.23456E+9"}'


def test_integers_do_not_depend_on_the_interpreters_digit_limit():
    before = sys.get_int_max_str_digits()
    big = 10**650
    data = codec.encode([big])
    try:
        sys.set_int_max_str_digits(640)
        assert codec.encode([big]) == data
        assert codec.decode(data) == [big]
    finally:
        sys.set_int_max_str_digits(before)


def test_an_integer_of_any_size_comes_back():
    assert codec.normalise(10**5000) == 10**5000
    assert codec.normalise({-(10**5000): 1}) == {-(10**5000): 1}


def test_a_tag_of_a_newer_version_is_refused_by_name():
    with pytest.raises(UnsupportedValue, match=r"unknown tag '~quaternion'.*upgrade"):
        codec.decode(b'{"a":{"~quaternion":[1]}}')
    with pytest.raises(UnsupportedValue, match="damaged '~fraction'"):
        codec.decode(b'{"~fraction":[1,0]}')


def test_canonical_keeps_raw_parts_as_they_are_and_sorts_keys():
    class Body(msgspec.Struct, frozen=True):
        z: int
        args: msgspec.Raw
        names: dict[str, int]

    body = Body(1, msgspec.Raw(codec.encode({"b": 1, "a": (2,)})), {"y": 1, "x": 2})
    data = codec.canonical(body)
    assert data == b'{"z":1,"args":{"a":{"~tuple":[2]},"b":1},"names":{"x":2,"y":1}}'
    back = msgspec.json.decode(data, type=Body)
    assert codec.decode(back.args) == {"a": (2,), "b": 1}
    assert codec.canonical(back) == data


def test_a_value_over_its_limit_is_refused_naming_what_size_and_limit():
    """H28"""
    codec.check_size(b"x" * 10, what="result of tool 'fetch'", limit=10)
    with pytest.raises(LimitExceeded, match=r"result of tool 'fetch' has 11 bytes, the limit is 10"):
        codec.check_size(b"x" * 11, what="result of tool 'fetch'", limit=10)


class NeedsTwo(Exception):
    retryable = True

    def __init__(self, first, second):
        super().__init__(first)
        self.second = second


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no text")

    @property
    def retryable(self):
        raise OSError


def _raised(build):
    try:
        raise build()
    except Exception as error:  # noqa: BLE001  the exception is what we want
        return error


def test_errors_with_required_arguments_are_kept_as_name_message_and_retryability():
    """H20"""
    request = httpx.Request("GET", "http://127.0.0.1/")
    status = httpx.HTTPStatusError("503 from upstream", request=request, response=httpx.Response(503))
    assert codec.describe_error(status) == codec.ErrorInfo("httpx.HTTPStatusError", "503 from upstream")
    two = codec.describe_error(_raised(lambda: NeedsTwo("a", "b")))
    assert (two.type, two.message, two.retryable) == (f"{__name__}.NeedsTwo", "a", True)
    assert codec.describe_error(ConnectionResetError("gone")).retryable is True
    assert codec.describe_error(KeyError("k")).message == "'k'"


def test_an_error_recorded_as_a_value_is_the_same_data_live_and_on_replay():
    """H20"""
    group = ExceptionGroup("several", [NeedsTwo("a", 1), ExceptionGroup("inner", [OSError("x")])])
    group.add_note("while paying")
    live = codec.normalise([group])
    assert live[0]["message"] == "several (2 sub-exceptions)"
    assert live[0]["notes"] == ["while paying"]
    assert [cause["type"] for cause in live[0]["causes"]] == [f"{__name__}.NeedsTwo", "ExceptionGroup"]
    assert codec.normalise(live) == live


def test_describing_an_error_never_fails_whatever_its_own_code_does():
    """H20"""
    info = codec.describe_error(Unprintable())
    assert info.message == f"(no message: str() of this {__name__}.Unprintable raised ValueError)"
    assert info.retryable is None
    assert codec.describe_error(ValueError("a\0b\ud800")).message == "a\\x00b\\ud800"
    huge = codec.describe_error(ValueError("x" * 1_000_000)).message
    assert len(huge) < 10_100
    assert "990000 characters cut" in huge
    odd = ValueError("odd")
    odd.__notes__ = [1, "kept"]
    assert codec.describe_error(odd).notes == ("kept",)


def test_chains_of_causes_are_bounded_and_cycles_end():
    """H20"""
    error: BaseException = ValueError("0")
    for number in range(1, 50):
        outer = ValueError(str(number))
        outer.__cause__ = error
        error = outer
    assert str(codec.describe_error(error)).count("ErrorInfo(") == 5
    loop = ValueError("loop")
    loop.__cause__ = TypeError("back")
    loop.__cause__.__cause__ = loop
    codec.canonical(codec.describe_error(loop))


def test_the_codec_imports_neither_pydantic_nor_what_a_log_names():
    """H20"""
    script = (
        "import sys; from refold.journal import codec;"
        'codec.decode(b\'{"type":"xmlrpc.client.Fault","~":1}\'); codec.normalise([ValueError(), (1,)]);'
        "bad = {'pydantic', 'xmlrpc', 'xmlrpc.client', 'pickle'} & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
