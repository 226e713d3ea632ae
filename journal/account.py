"""Which account runs the embedded Postgres: ours, unless we are root, which Postgres refuses to run as."""

from __future__ import annotations

import errno
import os
import stat
import struct
from pathlib import Path

from msgspec import Struct

from .errors import StoreRefused

_CANDIDATES = ("postgres", "nobody")
_ACL = "system.posix_acl_access"
_ACL_HEADER = struct.Struct("<I")
_ACL_ENTRY = struct.Struct("<HHI")
_ACL_VERSION = 2
_OWNER, _USER, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_NO_ID = 0xFFFFFFFF
_SEARCH = 1


class Account(Struct, frozen=True):
    """The account the server runs under, when it is not this process's own."""

    name: str
    uid: int
    gid: int


def server_account(data: Path) -> Account | None:
    """
    The account to run the server of *data* under; None for this process's own.

    Raises:
        StoreRefused: This process is root and the machine has no account to use.
    """
    if os.geteuid() != 0:
        return None
    import pwd  # not on Windows, where this module must still be importable

    if data.exists() and (owner := data.stat().st_uid) != 0:
        try:
            entry = pwd.getpwuid(owner)
            return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
        except KeyError:
            raise StoreRefused(
                f"the embedded Postgres under {data} belongs to user id {owner}, which this machine does not know; "
                "create that user, or set REFOLD_HOME to another folder"
            ) from None
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise StoreRefused(
        "Postgres does not run as root and this machine has neither a 'postgres' nor a 'nobody' account; "
        "run as another user, or set REFOLD_DSN to a Postgres server"
    )


def let_in(account: Account, folder: Path) -> None:
    """
    See that *account* can reach *folder*, granting it, and nobody else, search on the folders above.

    Raises:
        StoreRefused: A folder above cannot be opened to it.
    """
    for above in reversed(folder.parents):
        if _may_search(account, above):
            continue
        try:
            _grant_search(account, above)
        except OSError as error:
            raise StoreRefused(
                f"Postgres does not run as root, and the account {account.name!r} it runs as cannot enter {above} "
                f"({error.strerror}); allow that ('chmod o+x {above}'), or set REFOLD_HOME to another folder"
            ) from None


def _may_search(account: Account, folder: Path) -> bool:
    status = folder.stat()
    acl = _read_acl(folder)
    if status.st_uid == account.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    mask = next((permission for tag, permission, _ in acl if tag == _MASK), 7)
    for tag, permission, owner in acl:
        if tag == _USER and owner == account.uid:
            return bool(permission & mask & _SEARCH)
    # Only the primary group is carried over to the server process.
    if account.gid == status.st_gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def _read_acl(folder: Path) -> list[tuple[int, int, int]]:
    try:
        raw = os.getxattr(folder, _ACL)
    except (OSError, AttributeError):
        return []
    return list(_ACL_ENTRY.iter_unpack(raw[_ACL_HEADER.size :]))


def _grant_search(account: Account, folder: Path) -> None:
    if not hasattr(os, "setxattr"):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    mode = folder.stat().st_mode
    entries = _read_acl(folder) or [
        (_OWNER, mode >> 6 & 7, _NO_ID),
        (_GROUP, mode >> 3 & 7, _NO_ID),
        (_OTHER, mode & 7, _NO_ID),
    ]
    group = next(permission for tag, permission, _ in entries if tag == _GROUP)
    mask = next((permission for tag, permission, _ in entries if tag == _MASK), group)
    kept = [
        entry
        for entry in entries
        if entry[0] != _MASK and not (entry[0] == _USER and entry[2] == account.uid)
    ]
    kept += [(_USER, _SEARCH, account.uid), (_MASK, mask | _SEARCH, _NO_ID)]
    raw = b"".join(_ACL_ENTRY.pack(*entry) for entry in sorted(kept, key=lambda entry: (entry[0], entry[2])))
    os.setxattr(folder, _ACL, _ACL_HEADER.pack(_ACL_VERSION) + raw)
