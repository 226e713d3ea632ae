"""What `refold doctor` says of Redis: never a reason not to run, for nothing depends on it."""

from __future__ import annotations

import os

from .checkup import ROUND_TRIPS, Check, Grade
from .errors import MissingExtra
from .hot import CacheFailed, RedisServer
from .sources import SYSTEM, Sources

LATENCY_SLOW_S = 0.02


def check_redis(url: str | None = None, *, sources: Sources = SYSTEM) -> list[Check]:
    """
    The Redis at *url*, by default `$REFOLD_REDIS_URL`: reached or not, how fast, which, how full, how useful.

    Raises:
        UsageError: The URL is malformed.
    """
    url = url or os.environ.get("REFOLD_REDIS_URL")
    if not url:
        return [Check("redis", "ok", "none is used; resuming and waking do without")]
    try:
        server = RedisServer.open(url)
    except MissingExtra as error:
        return [Check("redis", "fail", "a URL is given, redis-py is not installed", str(error))]
    try:
        return _checks(server, sources)
    except CacheFailed as error:
        why = "runs go on without it: resuming and waking are slower, nothing else is"
        return [Check("redis", "warn", f"{server.where}: {error}", why)]
    finally:
        server.close()


def _checks(server: RedisServer, sources: Sources) -> list[Check]:
    times = []
    server.ping()
    for _ in range(ROUND_TRIPS):
        begun_s = sources.monotonic_s()
        server.ping()
        times.append(sources.monotonic_s() - begun_s)
    middle_s = sorted(times)[len(times) // 2]
    info = server.info()
    which = (
        f"{info.get('server_name', 'redis')} {info.get('valkey_version') or info.get('redis_version', '?')}"
    )
    found = f"{middle_s * 1e3:.2f} ms (median of {ROUND_TRIPS})"
    near: Grade = "ok" if middle_s <= LATENCY_SLOW_S else "warn"
    why = "" if near == "ok" else "it saves little when it is farther away than the database"
    return [
        Check("redis", "ok", f"{which}, {server.where}"),
        Check("redis round trip", near, found, why),
        _memory(info),
        _hits(info),
    ]


def _memory(info: dict[str, str]) -> Check:
    policy = info.get("maxmemory_policy", "?")
    used, most = (int(info.get(name) or 0) for name in ("used_memory", "maxmemory"))
    found = f"{used / 2**20:.0f} MiB of {f'{most / 2**20:.0f} MiB' if most else 'no limit'}, {policy}"
    if policy != "noeviction" or not most:
        return Check("redis memory", "ok", found)
    return Check(
        "redis memory",
        "warn",
        found,
        "let it forget when it is full: maxmemory-policy allkeys-lru or volatile-ttl",
    )


def _hits(info: dict[str, str]) -> Check:
    hits, misses = (int(info.get(name) or 0) for name in ("keyspace_hits", "keyspace_misses"))
    rate = f"{100 * hits / (hits + misses):.0f} %" if hits + misses else "nothing was asked for yet"
    return Check("redis hits", "ok", f"{rate} ({hits} hits, {misses} misses, of all who use this server)")
