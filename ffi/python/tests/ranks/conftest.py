"""What every test of several ranks has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import phalanx


@pytest.fixture(autouse=True)
def in_step(request: pytest.FixtureRequest) -> Iterator[None]:
    """All ranks begin a test together, and it is the same test."""
    names = phalanx.allgather_object(request.node.name)
    assert names == [request.node.name] * phalanx.size()
    yield


@pytest.fixture
def several() -> None:
    """For tests that need another rank."""
    if phalanx.size() == 1:
        pytest.skip("needs at least two ranks")
