"""
One rule per type: the plain JSON that stands for a value, and the way back. `docs/values.md` is the table.

What JSON cannot say is a *tag*, an object with a single key that begins with `~`: `{"~tuple":[1,2]}`.
A user's own single-key dict that looks like one gets a second `~` in front.
"""

from __future__ import annotations

import io
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, MappingView
from dataclasses import fields, is_dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, NoReturn, TypeAlias

import msgspec

from .error_info import clean_text, describe_error, type_name
from .errors import UnsupportedValue
from .leaves import INT_PLAIN_MAX, Refused, leaf_rule, read_leaf, write_text

VALUE_DEPTH_MAX = 100
"""How many containers may be nested in one value; a list of scalars has depth 1."""

TAG = "~"
_TAG_BYTE = ord(TAG)
_TAG_BYTES = b'{"~'

Path: TypeAlias = "tuple[Path, Any] | None"
"""Where in a value we are: the way to the parent, and from there an index, a key in a 1-tuple, or a text."""

encode_plain = msgspec.json.Encoder(order="deterministic").encode
decode_plain = msgspec.json.Decoder().decode

_CONTAINER_TYPES = frozenset({dict, list, tuple, set, frozenset})


def may_have_tags(data: bytes) -> bool:
    """
    Whether canonical JSON holds a tag, or a dict that looks like one.

    Exact but for dicts of several keys: quotes inside a text are escaped, so the three bytes begin an object.
    """
    # one rare byte is found twenty times faster than three
    return _TAG_BYTE in data and _TAG_BYTES in data


def path_text(path: Path) -> str:
    """`.items[3].when`, or `the top` for the value itself."""
    steps: list[str] = []
    while path is not None:
        path, step = path
        if isinstance(step, int):
            step = f"[{step}]"
        elif isinstance(step, tuple):
            step = _key_step(step[0])
        steps.append(step)
    return "".join(reversed(steps)) or "the top"


def _key_step(key: object) -> str:
    """The step of a path into a dict; runs no code of the key."""
    if type(key) is str and key.isidentifier():
        return f".{key}" if len(key) <= 60 else f".{key[:57]}..."
    if type(key) in (str, int, float, bool, bytes) or key is None:
        text = ascii(key) if not isinstance(key, int) or abs(key) < INT_PLAIN_MAX else "int"
        return f"[{text}]" if len(text) <= 60 else f"[{text[:57]}...]"
    return f"[{type_name(type(key))}]"


class Recorder:
    """
    Turns one value into the tree of plain JSON that stands for it, or refuses.

    Args:
        what: What the value is, for the refusal's message.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._open: set[int] = set()

    def tree(self, value: Any, path: Path = None, depth: int = 0) -> Any:
        """
        Plain JSON for *value*, which sits at *path* inside *depth* containers.

        Raises:
            UnsupportedValue: It has no rule, contains itself or is nested too deep.
        """
        kind = type(value)
        if kind is str:
            return value if value.isascii() else write_text(value)
        if value is None or kind is bool:
            return value
        if kind in _CONTAINER_TYPES:
            return self._container(value, path, depth)
        try:
            return self._odd(value, path, depth)
        except UnsupportedValue:
            raise
        except Exception as error:  # noqa: BLE001  reading runs the value's own code, which raises what it likes
            info = describe_error(error)
            return self._refuse(
                value, path, f"reading it raised {info.type}: {clean_text(info.message, limit=300)}"
            )

    def _odd(self, value: Any, path: Path, depth: int) -> Any:
        if isinstance(value, Enum):
            return self.tree(value.value, path, depth)
        rule = leaf_rule(type(value))
        if rule is None:
            return self._container(value, path, depth)
        try:
            return rule(value)
        except Refused as refused:
            return self._refuse(value, path, str(refused))

    def _container(self, value: Any, path: Path, depth: int) -> Any:
        if id(value) in self._open:
            self._refuse(value, path, "it contains itself; record ids instead of back references")
        if depth >= VALUE_DEPTH_MAX:
            self._refuse(value, path, f"it is nested deeper than {VALUE_DEPTH_MAX} levels; flatten it")
        self._open.add(id(value))
        try:
            return self._write(value, path, depth + 1)
        finally:
            self._open.discard(id(value))

    def _write(self, value: Any, path: Path, depth: int) -> Any:
        if isinstance(value, dict):
            return self._dict(value, path, depth)
        if isinstance(value, list):
            return self._items(list.__iter__(value), path, depth)
        if isinstance(value, tuple):
            names = getattr(value, "_fields", None)
            if names is not None:
                return self._dict(dict(zip(names, tuple.__iter__(value), strict=True)), path, depth)
            return {"~tuple": self._items(tuple.__iter__(value), path, depth)}
        if isinstance(value, (set, frozenset)):
            tag = "~set" if isinstance(value, set) else "~frozenset"
            return {tag: self._members(value, path, depth)}
        if isinstance(value, deque):
            return self._items(iter(value), path, depth)
        if isinstance(value, MappingProxyType):
            return self._dict(dict(value), path, depth)
        if isinstance(value, BaseException):
            return self._dict(_error_dict(value), path, depth)
        record = record_of(value)
        if record is not None:
            return self._dict(record, path, depth)
        model = _pydantic_root(value)
        if model is not None:
            return self.tree(model[0], path, depth)
        return self._refuse(value, path, _remedy(value))

    def _items(self, items: Iterator[Any], path: Path, depth: int) -> list[Any]:
        return [self.tree(item, (path, at), depth) for at, item in enumerate(list(items))]

    def _dict(self, value: dict[Any, Any], path: Path, depth: int) -> dict[str, Any]:
        keys: list[Any] = []
        items: list[Any] = []
        all_text = True
        for key, item in list(dict.items(value)):
            tree = key if type(key) is str and key.isascii() else self.tree(key, (path, "{key}"), depth)
            all_text = all_text and type(tree) is str
            keys.append(tree)
            items.append(self.tree(item, (path, (key,)), depth))
        if not all_text:
            self._check_distinct(value, keys, (path, "{key}"))
            pairs = [[key, item] for key, item in zip(keys, items, strict=True)]
            return {"~dict": sorted(pairs, key=encode_plain)}
        out = dict(zip(keys, items, strict=True))
        if len(out) != len(keys):
            self._refuse(value, path, "two of its keys would be recorded as the same text")
        if len(out) == 1 and keys[0].startswith(TAG):
            return {TAG + keys[0]: items[0]}
        return out

    def _members(self, value: set[Any] | frozenset[Any], path: Path, depth: int) -> list[Any]:
        inside = (path, "{member}")
        trees = [self.tree(member, inside, depth) for member in list(value)]
        self._check_distinct(value, trees, inside)
        return sorted(trees, key=encode_plain)

    def _check_distinct(self, value: Any, trees: list[Any], inside: Path) -> None:
        """Keys and members must come back hashable and as many as they were."""
        try:
            back = {untag(decode_plain(encode_plain(tree))) for tree in trees}
        except TypeError:
            self._refuse(
                value, inside, "a key or member that is recorded as a dict or list cannot be one again"
            )
        if len(back) != len(trees):
            self._refuse(value, inside, "two of its keys or members would be recorded as the same value")

    def _refuse(self, value: Any, path: Path, why: str) -> NoReturn:
        raise UnsupportedValue(
            f"{self._what} cannot be recorded: {type_name(type(value))} at {path_text(path)}: {why}"
        )


def record_of(value: Any) -> dict[str, Any] | None:
    """The fields of a dataclass, msgspec struct or pydantic model by name; None for anything else."""
    kind = type(value)
    if isinstance(value, msgspec.Struct):
        config = kind.__struct_config__
        out = {} if config.tag is None else {config.tag_field: config.tag}
        got = {name: getattr(value, name, msgspec.UNSET) for name in kind.__struct_fields__}
        return out | {name: item for name, item in got.items() if item is not msgspec.UNSET}
    if is_dataclass(kind):
        missing = object()
        got = {field.name: getattr(value, field.name, missing) for field in fields(kind)}
        return {name: item for name, item in got.items() if item is not missing}
    if is_pydantic(kind) and not getattr(kind, "__pydantic_root_model__", False):
        got = {name: value.__dict__[name] for name in kind.model_fields if name in value.__dict__}
        return got | (getattr(value, "__pydantic_extra__", None) or {})
    return None


def is_pydantic(kind: type) -> bool:
    """Whether *kind* is a pydantic model; pydantic is looked up, never imported."""
    base = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    return base is not None and issubclass(kind, base)


def _pydantic_root(value: Any) -> tuple[Any] | None:
    return (value.root,) if is_pydantic(type(value)) else None


def _error_dict(exc: BaseException) -> dict[str, Any]:
    return decode_plain(encode_plain(describe_error(exc)))  # type: ignore[no-any-return]


def _remedy(value: Any) -> str:
    if isinstance(value, io.IOBase):
        return "an open file ends with its process; read it and use its content"
    if isinstance(value, Awaitable) or hasattr(value, "__anext__"):
        return "it has not run yet; await it and use what it gives"
    if isinstance(value, (Iterator, MappingView)):
        return "it can be read only here; make it a list"
    if isinstance(value, (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type)):
        return "code is not data; use its name"
    if type(value).__module__.partition(".")[0] == "numpy":
        return "make it plain Python with .item() or .tolist()"
    return "no rule for this type; make it a dict or a dataclass of plain values"


_CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "~tuple": tuple,
    "~set": set,
    "~frozenset": frozenset,
    "~dict": dict,
}


def untag(tree: Any) -> Any:
    """
    The value that the plain JSON *tree* stands for; takes *tree* over.

    Raises:
        UnsupportedValue: A tag is unknown (written by a newer refold) or damaged.
    """
    if type(tree) is list:
        for at, item in enumerate(tree):
            if type(item) is dict or type(item) is list:
                tree[at] = untag(item)
    elif type(tree) is dict:
        if len(tree) == 1:
            [(key, item)] = tree.items()
            if key.startswith(TAG):
                return _read_tag(key, untag(item))
        for key, item in tree.items():
            if type(item) is dict or type(item) is list:
                tree[key] = untag(item)
    return tree


def _read_tag(key: str, payload: Any) -> Any:
    if key.startswith(TAG, 1):
        return {key[1:]: payload}
    build = _CONTAINERS.get(key)
    try:
        return build(payload) if build is not None else read_leaf(key, payload)
    except KeyError:
        raise UnsupportedValue(
            f"a recorded value has the unknown tag {key!r}: it was written by a newer refold; upgrade to read it"
        ) from None
    except Exception as error:  # noqa: BLE001  whatever is wrong with the bytes, the log is damaged
        raise UnsupportedValue(
            f"a recorded value has a damaged {key!r}: {error}; verify the thread"
        ) from None
