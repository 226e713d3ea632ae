from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis_server import RedisProcess


@pytest.fixture(scope="module")
def shared_redis() -> Iterator[RedisProcess]:
    server = RedisProcess()
    yield server
    server.close()


@pytest.fixture
def redis_process(shared_redis: RedisProcess) -> RedisProcess:
    """A server that is empty and well."""
    shared_redis.flush()
    return shared_redis


@pytest.fixture
def own_redis() -> Iterator[RedisProcess]:
    """A server of the test's own, to be done bad things to."""
    server = RedisProcess()
    yield server
    server.close()
