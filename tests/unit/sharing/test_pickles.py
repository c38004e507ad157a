# SPDX-License-Identifier: Apache-2.0
"""Values that travel are pickled as their bytes, and not with the code that reads these."""

import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest

import crossmem


@pytest.mark.parametrize("kind", ["allocation", "timeline", "queue", "tree"])
def test_a_pickle_names_a_function_and_has_the_bytes(kind: str) -> None:
    device = crossmem.device("host")
    with device.allocate(64) as allocation, device.timeline() as timeline, device.queue(1, 1) as q:
        makers: dict[str, Callable[[], Any]] = {
            "allocation": allocation.export,
            "timeline": timeline.export,
            "queue": lambda: q.export(role="consume"),
            "tree": lambda: crossmem.share({"name": "tree"}, copy=True),
        }
        value = makers[kind]()
        function, arguments, *_ = value.__reduce__()

        # By this, cloudpickle decides. It sends the code of all other functions, as Ray does then.
        assert getattr(sys.modules[function.__module__], function.__qualname__) is function
        assert arguments == (value.to_bytes(),)
        assert len(pickle.dumps(value)) < len(value.to_bytes()) + 100
        if kind == "tree":
            value.close()
