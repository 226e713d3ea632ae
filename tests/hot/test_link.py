"""What a Redis that is away, mute, full or odd may cost: one time-out and one warning, and never an exception."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from redis_server import RedisProcess, SlowProxy
from refold import Journal
from refold.journal.breaker import Breaker
from refold.journal.errors import MissingExtra, UsageError
from refold.journal.hot import CacheFailed, RedisServer
from refold.journal.link import Heard, Link
from refold.journal.sources import Sources


class Clock(Sources):
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s


class Faulty:
    """A cache with switches; counts what it is asked."""

    where = "a cache"

    def __init__(self) -> None:
        self.fails: CacheFailed | None = None
        self.asked = 0
        self.values: dict[str, bytes] = {}

    def fetch(self, keys: Sequence[str]) -> list[bytes | None]:
        self._ask()
        return [self.values.get(key) for key in keys]

    def keep(self, items: Sequence[tuple[str, bytes]], *, ttl_s: float) -> None:
        self._ask()
        self.values.update(items)

    def publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        self._ask()

    def ping(self) -> None:
        self._ask()

    def listen(self, channel: str) -> Heard:
        self._ask()
        raise CacheFailed("nobody to listen to")

    def close(self) -> None:
        pass

    def _ask(self) -> None:
        self.asked += 1
        if self.fails is not None:
            raise self.fails


def test_after_a_failure_nothing_is_asked_but_by_the_probe_and_each_change_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, cache = Clock(), Faulty()
    link = Link(cache, clock)
    cache.fails = CacheFailed("it is away")

    for _ in range(5):
        assert link.fetch(["a", "b"]) == [None, None]
        assert not link.keep([("a", b"1")], ttl_s=1)
        link.publish([("c", b"t")])
    link.probe()

    assert cache.asked == 1
    assert len(caplog.records) == 1

    clock.now_s += 1.0
    link.probe()
    link.probe()
    assert cache.asked == 2

    cache.fails = None
    clock.now_s += 1.9
    link.probe()
    assert cache.asked == 2
    clock.now_s += 0.2
    link.probe()
    assert cache.asked == 3
    assert link.keep([("a", b"1")], ttl_s=1)
    assert link.fetch(["a"]) == [b"1"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "works again" in caplog.text


def test_the_pause_between_probes_grows_to_half_a_minute() -> None:
    clock = Clock()
    breaker = Breaker("it", "so what", clock)
    pauses = []
    for _ in range(8):
        breaker.failed("away")
        pauses.append(breaker.wait_s())
        clock.now_s += pauses[-1] or 0.0

    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_cache_that_refuses_to_write_is_still_read_and_rung(caplog: pytest.LogCaptureFixture) -> None:
    clock, cache = Clock(), Faulty()
    link = Link(cache, clock)
    cache.values["a"] = b"1"
    cache.fails = CacheFailed("it is full", refused=True)
    for _ in range(3):
        assert not link.keep([("b", b"2")], ttl_s=1)
    asked = cache.asked
    cache.fails = None

    assert asked == 1
    assert link.fetch(["a"]) == [b"1"]
    assert len(caplog.records) == 1
    clock.now_s += 1.0
    assert link.keep([("b", b"2")], ttl_s=1)


def test_many_callers_of_a_mute_server_share_one_time_out(own_redis: RedisProcess) -> None:
    """It accepts connections and never answers: twelve calls at once, then twelve more."""
    connections = SlowProxy(own_redis.port)
    link = Link(RedisServer.open(connections.url, command_timeout_s=0.3), Clock())
    own_redis.freeze()
    try:
        gone = [threading.Thread(target=link.fetch, args=(["a"],)) for _ in range(12)]
        for each in gone:
            each.start()
        for each in gone:
            each.join(5)
        tried = connections.accepted
        for _ in range(12):
            assert link.fetch(["a"]) == [None]

        assert not any(each.is_alive() for each in gone)
        assert not link.reach.closed
        assert connections.accepted == tried <= 12
    finally:
        own_redis.thaw()
        link.close()
        connections.close()


def test_a_trickle_of_an_answer_ends_with_its_budget(redis_process: RedisProcess) -> None:
    with redis_process.client() as client:
        client.set("large", bytes(4_000_000))
    proxy = SlowProxy(redis_process.port)
    server = RedisServer.open(proxy.url)
    try:
        assert server.fetch(["large"], budget_s=5.0) == [bytes(4_000_000)]
        proxy.delay_s = 0.1
        with pytest.raises(CacheFailed, match=r"more than 0\.25 s"):
            server.fetch(["large"], budget_s=0.25)
        proxy.delay_s = 0.0
        assert server.fetch(["small"]) == [None]
    finally:
        server.close()
        proxy.close()


def test_answers_cut_short_at_random_never_reach_another_caller(redis_process: RedisProcess) -> None:
    """Callers in eight threads ask for their own values while connections are cut: own value, or a failure."""
    with redis_process.client() as client:
        for owner in range(8):
            client.set(f"of:{owner}", f"{owner}".encode() * 50_000)
    proxy = SlowProxy(redis_process.port)
    server = RedisServer.open(proxy.url)
    wrong: list[str] = []
    answered = [0] * 8
    over = threading.Event()

    def ask(owner: int) -> None:
        own = f"{owner}".encode() * 50_000
        while not over.is_set():
            with contextlib.suppress(CacheFailed):
                # Every third call is given a budget that it will hardly keep.
                (value,) = server.fetch([f"of:{owner}"], budget_s=0.0005 if answered[owner] % 3 == 2 else 1.0)
                if value != own:
                    wrong.append(f"{owner} got {value[:3]!r}" if value else f"{owner} got nothing")
            answered[owner] += 1
            if answered[owner] >= 150:
                return

    callers = [threading.Thread(target=ask, args=(owner,)) for owner in range(8)]
    for caller in callers:
        caller.start()
    while any(caller.is_alive() for caller in callers):
        proxy.cut()
        callers[0].join(0.01)
    over.set()
    server.close()
    proxy.close()

    assert wrong == []
    assert sum(answered) == 8 * 150


@pytest.fixture
def tls(tmp_path: Path, own_redis: RedisProcess) -> Iterator[tuple[str, Path]]:
    """A URL of the server by TLS, its own where it was built with that, and the certificate to trust."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl to make a certificate")
    authority, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    names = "subjectAltName=DNS:localhost"
    files = ["-addext", names, "-keyout", str(key), "-out", str(authority)]
    subprocess.run([openssl, *make.split(), *files], check=True, capture_output=True)
    if own_redis.listen_tls(authority, key):
        yield f"rediss://localhost:{own_redis.tls_port}", authority
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority, key)
    proxy = SlowProxy(own_redis.port, tls=context)
    yield f"rediss://localhost:{proxy.port}", authority
    proxy.close()


def test_a_url_with_tls_is_verified_and_works(tls: tuple[str, Path]) -> None:
    url, authority = tls
    server = RedisServer.open(f"{url}?ssl_ca_certs={authority}")
    server.keep([("a", b"1")], ttl_s=10)
    assert server.fetch(["a"]) == [b"1"]
    server.close()

    distrustful = RedisServer.open(url)
    with pytest.raises(CacheFailed, match="certificate"):
        distrustful.ping()
    distrustful.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "redis",
        "http://:secret@host",
        "redis://:secret@host:port",
        "redis://:secret@h?socket_timeout=soon",
    ],
)
def test_a_malformed_url_is_refused_at_once_without_showing_its_password(url: str) -> None:
    with pytest.raises(UsageError, match="malformed Redis URL") as raised:
        RedisServer.open(url)
    assert "secret" not in str(raised.value)


def test_a_password_is_never_shown(own_redis: RedisProcess) -> None:
    with own_redis.client() as client:
        client.config_set("requirepass", "right")
    server = RedisServer.open(own_redis.url.replace("//", "//:wrong-secret@"))

    with pytest.raises(CacheFailed) as raised:
        server.ping()

    assert "secret" not in str(raised.value) + server.where


def test_without_redis_py_a_url_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "redis", None)

    with pytest.raises(MissingExtra, match=r"refold\[redis\]"):
        Journal.open("host=nowhere", redis_url="redis://localhost")


def test_what_is_kept_goes_with_its_time(redis_process: RedisProcess) -> None:
    server = RedisServer.open(redis_process.url)
    server.keep([("a", b"1")], ttl_s=dt.timedelta(days=3).total_seconds())
    with redis_process.client() as client:
        left_s = client.ttl("a")
    server.close()

    assert 3 * 24 * 3600 - 60 < left_s <= 3 * 24 * 3600


def test_a_server_that_speaks_another_protocol_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        client, _ = listener.accept()
        with client:
            client.recv(1000)
            client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    threading.Thread(target=answer, daemon=True).start()
    link = Link(RedisServer.open(f"redis://127.0.0.1:{listener.getsockname()[1]}"), Clock())

    assert link.fetch(["a"]) == [None]
    assert not link.reach.closed
    link.close()
    listener.close()
