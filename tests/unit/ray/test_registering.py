# SPDX-License-Identifier: Apache-2.0
"""What is registered with Ray, and the tokens of messages, without Ray."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

import crossmem
from crossmem.arrays import libraries
from crossmem.ray import reservations, serializers


class Array:
    """Stands in for a library's."""


def test_a_class_that_is_registered_twice_is_reduced_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dispatch: dict[type, Any] = {}

    def register_serializer(kind: type, *, serializer: Any, deserializer: Any) -> None:
        dispatch[kind] = serializer

    ray = SimpleNamespace(
        cloudpickle=SimpleNamespace(CloudPickler=SimpleNamespace(dispatch=dispatch)),
        util=SimpleNamespace(register_serializer=register_serializer),
    )
    monkeypatch.setattr(serializers, "import_ray", lambda: ray)
    monkeypatch.setattr(serializers, "_before", {})
    monkeypatch.setattr(serializers, "is_message", lambda: False)
    # Two threads may use a library first.
    for _ in range(2):
        serializers._register(Array, serializers._reduce_array)

    assert dispatch[Array](Array())[1][0] is Array


def test_libraries_may_be_used_while_others_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []

    def tell(name: str) -> None:
        told.append(name)
        libraries._known["another"] = None

    monkeypatch.setattr(libraries, "_known", {"numpy": None})
    monkeypatch.setattr(libraries, "_listeners", [])
    libraries.on_use(tell)

    assert told == ["numpy"]


def test_a_token_may_be_made_while_another_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Array(), Array()
    tokens: list[Any] = []

    def new_token(_ended: Any) -> Any:
        if not tokens:
            tokens.append(None)
            # As a finaliser does that sends something.
            tokens.append(reservations.token_for(second, None))
        return SimpleNamespace(binary=lambda: b"%d" % len(tokens))

    monkeypatch.setattr(reservations, "new_token", new_token)
    monkeypatch.setattr(reservations, "_reserved", {})
    monkeypatch.setattr(reservations, "_tokens", {})
    making = threading.Thread(
        target=lambda: tokens.append(reservations.token_for(first, None)), daemon=True
    )
    making.start()
    making.join(5)

    assert len(tokens) == 3


def test_each_block_that_was_received_has_a_token_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reservations, "_reserved", {})
    monkeypatch.setattr(reservations, "_tokens", {})
    tokens = [SimpleNamespace(binary=lambda name=name: name) for name in (b"1", b"2")]
    with crossmem.device("host").pool(64, 2) as pool:
        blocks = [pool.allocate() for _ in tokens]
        mappings = crossmem.attach_many(one.export() for one in blocks)
        for mapping, token in zip(mappings, tokens, strict=True):
            reservations.keep_token(reservations.tie_of(mapping), token)

        assert [reservations.token_of(one) for one in mappings] == tokens
        for mapping, block in zip(mappings, blocks, strict=True):
            mapping.unmap()
            block.free()
        del mapping, mappings
        assert reservations._tokens == {}
