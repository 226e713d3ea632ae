"""
Gzip files that prove themselves whole, to the last byte of their compressed form.

Gzip's own check covers what was compressed: a changed name, time or flag, bits between blocks and bytes after the end
pass unseen. So a file ends with one more gzip member, empty and with the SHA-256 of all bytes before it as an extra
field; every decompressor reads over it.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

_CHUNK_BYTES = 1 << 20
_HEADER = b"\x1f\x8b\x08\x04" + bytes(4) + b"\x00\xff"
_FIELD = b"RF"
_NOTHING = b"\x03\x00" + bytes(8)
"""The end of a deflate stream, then checksum and size of nothing."""


def _seal(digest: bytes) -> bytes:
    field = _FIELD + struct.pack("<H", len(digest)) + digest
    return _HEADER + struct.pack("<H", len(field)) + field + _NOTHING


SEAL_BYTES = len(_seal(bytes(32)))


@contextmanager
def packing(file: BinaryIO) -> Iterator[BinaryIO]:
    """Compress what is written into *file*, which is empty and can be read too; sealed when the block ends well."""
    # No name and no time inside: the same content gives the same file.
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
        yield cast("BinaryIO", packed)
    file.write(_seal(_digest(file, file.tell())))


def is_sealed(path: str | os.PathLike[str]) -> bool:
    """Whether the file is, byte for byte, one that `packing` has written."""
    with Path(path).open("rb") as file:
        length = file.seek(0, os.SEEK_END) - SEAL_BYTES
        return length > 0 and _seal(_digest(file, length)) == file.read()


def _digest(file: BinaryIO, length: int) -> bytes:
    """SHA-256 of the first *length* bytes; what follows them is read next."""
    digest = hashlib.sha256()
    file.seek(0)
    while length and (chunk := file.read(min(length, _CHUNK_BYTES))):
        digest.update(chunk)
        length -= len(chunk)
    return digest.digest()
