"""A decoded value gets its declared type back, or is refused with the path; nothing is guessed."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import inspect
import uuid
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    Protocol,
    TypedDict,
    TypeVar,
)

import msgspec
import pydantic
import pytest
import typing_extensions
from hypothesis import given
from hypothesis import strategies as st
from refold.journal import codec
from refold.journal.errors import UnsupportedValue
from strategies import any_text, exact_values, hashables, identity

T = TypeVar("T")
OrderId = NewType("OrderId", int)


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)
    RICH = Decimal("1.50")


class Flags(enum.Flag):
    A = 1
    B = 2


class Nested(enum.Enum):
    COLOUR = Colour.RED


class Point(NamedTuple):
    x: int
    where: Path = Path("/")


@dataclasses.dataclass(frozen=True)
class Line:
    sku: str
    price: Decimal
    colour: Colour | None = None


@dataclasses.dataclass
class Order:
    id: OrderId
    lines: list[Line]
    by_day: dict[dt.date, tuple[Line, ...]]
    parent: Order | None = None
    count: int = dataclasses.field(init=False)
    cached: dict[str, int] = dataclasses.field(default_factory=dict, repr=False)

    def __post_init__(self):
        self.count = len(self.lines)


@dataclasses.dataclass
class Seeded:
    value: int = dataclasses.field(init=False)
    seed: dataclasses.InitVar[int]
    note: str = "none"

    def __post_init__(self, seed):
        self.value = seed * 2


@dataclasses.dataclass
class Boxed(Generic[T]):
    item: T
    more: list[T]


class Cat(msgspec.Struct, tag="cat", frozen=True):
    name: str
    born: dt.date


class Dog(msgspec.Struct, tag="dog", frozen=True, rename="camel", omit_defaults=True):
    name: str
    born: dt.date
    best_friend: Cat | None = None
    unset: int | msgspec.UnsetType = msgspec.UNSET


class Movie(TypedDict):
    title: str
    at: dt.datetime
    cast: NotRequired[list[Point]]


class Customer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str = pydantic.Field(alias="Name")
    orders: list[Line] = []
    site: pydantic.HttpUrl | None = None
    tags: set[str] = set()


Tags = pydantic.RootModel[dict[str, int]]


class Approved(msgspec.Struct, frozen=True):
    why: str


class Rejected(msgspec.Struct, frozen=True):
    why: str


class Named(Protocol):
    name: str


class Text(str):
    __slots__ = ()


LINE = Line("a", Decimal("1.10"), Colour.RED)
DAY = dt.date(2024, 2, 29)
UTC_NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    "value, hint",
    [
        (None, None),
        (1, int),
        (1, float),
        (True, int),
        ("a", str),
        (Text("a"), Text),
        (b"a", bytes),
        (bytearray(b"a"), bytearray),
        (UTC_NOON, dt.datetime),
        (DAY, dt.date),
        (UTC_NOON, dt.date),
        (dt.time(1), dt.time),
        (dt.timedelta(1), dt.timedelta),
        (uuid.UUID(int=1), uuid.UUID),
        (Decimal("NaN").copy_sign(Decimal(1)), Any),
        (1 + 2j, complex),
        (Fraction(1, 3), Fraction),
        (range(3), range),
        (Path("/a"), Path),
        (PurePosixPath("/a"), PurePosixPath),
        (Colour.RED, Colour),
        (Colour.PAIR, Colour),
        (Colour.RICH, Colour),
        (Nested.COLOUR, Nested),
        (Flags.A | Flags.B, Flags),
        (LINE, Line),
        ([LINE], list[Line]),
        ({"x": [LINE]}, dict[str, list[Line]]),
        ({Colour.RED: {LINE.price: Path("a")}}, dict[Colour, dict[Decimal, Path]]),
        (collections.deque([LINE]), collections.deque[Line]),
        (collections.OrderedDict(a=1), collections.OrderedDict[str, int]),
        (collections.Counter("aab"), collections.Counter[str]),
        ({Colour.RED}, set[Colour]),
        (frozenset({Path("a")}), frozenset[Path]),
        ((LINE, 1, DAY), tuple[Line, int, dt.date]),
        ((LINE, LINE), tuple[Line, ...]),
        ([LINE], Sequence[Line]),
        ((LINE,), Iterable[Line]),
        ({"a": LINE}, Mapping[str, Line]),
        (Order(OrderId(1), [LINE], {DAY: (LINE,)}, Order(OrderId(2), [], {})), Order),
        (Boxed(LINE, [LINE]), Boxed[Line]),
        (Cat("Tom", DAY), Cat),
        (Dog("Rex", DAY, Cat("Tom", DAY)), Dog),
        ([Cat("Tom", DAY), Dog("Rex", DAY)], list[Cat | Dog]),
        ({"title": "M", "at": UTC_NOON, "cast": [Point(1, Path("b"))]}, Movie),
        (Point(1), Point),
        (Customer(Name="A", orders=[LINE], site="http://a.example/", tags={"x"}, vip=True), Customer),
        (Tags({"a": 1}), Tags),
        (LINE, Optional[Line]),  # noqa: UP045  people write it so
        (None, Line | None),
        ("text", Line | str),
        (LINE, Line | str),
        ([1], Line | list[int]),
        (3, int | str | None),
        ("red", Literal["red", "blue"]),
        (Colour.RED, Literal[Colour.RED]),
        (LINE, Annotated[Line, "meta"]),
        ({"error": "x"}, Line | dict[str, str]),
        (LINE, Line | dict[str, Any]),
        ([], list[Approved] | list[Rejected]),
        ({"name": "x"}, Named | dict[str, str]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_recorded_value_gets_its_declared_type_back(value, hint):
    back = codec.restore(codec.normalise(value), hint, what="result")
    assert type(back) is type(value)
    assert back == value or hint is Any
    assert codec.encode(back) == codec.encode(value)


@given(exact_values, st.sampled_from([Any, object, inspect.Parameter.empty, T]))
def test_without_a_declared_type_nothing_changes(value, hint):
    assert identity(codec.restore(codec.normalise(value), hint, what="result")) == identity(value)


@given(st.builds(Boxed, hashables, st.lists(hashables, max_size=3)), any_text)
def test_a_generic_dataclass_of_anything_comes_back(box, key):
    value = {key: box}
    back = codec.restore(codec.normalise(value), dict[str, Boxed[Any]], what="result")
    assert isinstance(back[key], Boxed)
    assert codec.encode(back) == codec.encode(value)


@pytest.mark.parametrize(
    "value, hint, said",
    [
        ("x", int, "the top: expected int, found str"),
        (1, None, "the top: expected None, found int"),
        (True, float, "expected float, found bool"),
        ({"items": [1, 2, 3, {"when": 1}]}, dict[str, list[int | dict[str, dt.date]]], ".items[3]"),
        ([{"sku": "a", "price": "x"}], list[Line], "[0].price: decimal.Decimal refused it"),
        ([{"sku": "a"}], list[Line], "[0]: "),
        ({"sku": "a", "price": 1, "no": 1}, Line, "has no field 'no'"),
        ({"value": 1, "seed": 2}, Seeded, "has no field 'seed'"),
        ({"note": "x", "extra": 1}, Seeded, "has no field 'extra'"),
        ({"type": "cow", "name": "a", "born": DAY}, Cat, ".type: expected one of 'cat', found str"),
        ({"name": "a", "born": DAY, "no": 1}, Cat, "has no field 'no'"),
        ({"title": "M"}, Movie, "misses its key 'at'"),
        ([1], Movie, "Movie, found list"),
        ({"name": "A", "orders": 1}, Customer, "orders"),
        ({"x": 1, "y": 1}, Point, "refused its fields"),
        ("green", Colour, "a value of"),
        ("green", Literal["red"], "one of 'red'"),
        ((1, 2, 3), tuple[int, int], "a tuple of 2, found one of 3"),
        (1, str | bytes, "expected str or bytes, found int"),
        ({"why": "x"}, Approved | Rejected, "tells them apart"),
        (1, "int", "not resolved"),
        ({1: {"a": "b"}}, dict[int, dict[str, int]], "[1].a: expected int"),
    ],
)
def test_a_mismatch_is_refused_naming_what_and_where(value, hint, said):
    with pytest.raises(UnsupportedValue) as refused:
        codec.restore(value, hint, what="result of tool 'fetch'")
    assert str(refused.value).startswith("result of tool 'fetch' does not fit its declared type: ")
    assert said in str(refused.value)


def test_a_dataclass_with_fields_its_constructor_does_not_take_keeps_them():
    """H03"""
    order = Order(OrderId(1), [LINE], {})
    order.count = 99
    assert codec.restore(codec.normalise(order), Order, what="result").count == 99
    seeded = Seeded(21)
    assert codec.restore(codec.normalise(seeded), Seeded, what="result") == seeded
    assert codec.restore({"value": 1}, Seeded, what="result").note == "none"


def test_json_that_a_person_supplies_is_read_as_the_declared_type():
    given_by_hand = {"sku": "a", "price": "1.10", "colour": "red"}
    assert codec.restore(given_by_hand, Line, what="resolution") == LINE
    assert codec.restore("2024-02-29", dt.date, what="resolution") == DAY
    assert codec.restore([1, 2], tuple[int, int], what="resolution") == (1, 2)


def test_an_error_declared_as_an_error_stays_data():
    """H20: nothing is rebuilt from a class name."""
    live = codec.normalise(ValueError("no"))
    assert codec.restore(live, str | ValueError, what="result") == {"type": "ValueError", "message": "no"}


def test_annotations_that_cannot_be_resolved_are_named():
    @dataclasses.dataclass
    class Lost:
        a: Nowhere  # noqa: F821

    with pytest.raises(UnsupportedValue, match=r"annotations of .*Lost cannot be resolved .*Nowhere"):
        codec.restore({"a": 1}, Lost, what="result")


def test_aliases_stand_for_what_they_name():
    lines = typing_extensions.TypeAliasType("lines", list[Line])
    boxes = typing_extensions.TypeAliasType("boxes", dict[str, T], type_params=(T,))
    assert codec.restore(codec.normalise([LINE]), lines, what="result") == [LINE]
    assert codec.restore(codec.normalise({"a": LINE}), boxes[Line], what="result") == {"a": LINE}


def test_a_defaultdict_comes_back_without_its_factory():
    back = codec.restore({"a": 1}, collections.defaultdict[str, int], what="result")
    assert type(back) is collections.defaultdict
    assert back.default_factory is None
