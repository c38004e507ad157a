# SPDX-License-Identifier: Apache-2.0
"""Models whose weights are shared: trained in place, or updated from elsewhere."""

from typing import Any

import numpy as np
import pytest

import crossmem
from crossmem import ConfigurationError, Shared

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

# PyTorch warns of what is new in it, or old.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def make_model() -> Any:
    """Return a model with tied weights."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 6))
    model[1].weight = model[0].weight
    return model


def step(model: Any) -> None:
    """Train a step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    optimizer.zero_grad()
    model(torch.ones(3, 6)).square().sum().backward()
    optimizer.step()


def same(one: Any, other: Any) -> bool:
    """Whether two state dicts have the same names and elements."""
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def test_a_model_is_trained_in_shared_memory() -> None:
    model = make_model()
    with crossmem.share(model.state_dict(), copy="allow") as shared:
        received = crossmem.receive(shared.to_bytes())
        model.load_state_dict(shared.value, assign=True)
        before = received["0.weight"].clone()
        step(model)

        assert shared.publish() == 1
        assert not torch.equal(received["0.weight"], before)
        assert same(received, model.state_dict())
        assert model[0].weight.requires_grad
        assert shared.value["0.weight"].data_ptr() == shared.value["1.weight"].data_ptr()
    # The model keeps its weights.
    step(model)
    assert same(received, model.state_dict())


def test_a_model_that_is_trained_elsewhere_updates_what_is_shared() -> None:
    model = make_model()
    with crossmem.share(model.state_dict(), copy="allow") as shared:
        received = crossmem.receive(shared.to_bytes())
        reader: Shared[Any] = Shared.from_bytes(shared.to_bytes())
        for version in (1, 2):
            step(model)
            assert not same(received, model.state_dict())
            assert shared.update(model.state_dict()) == version
            assert same(received, model.state_dict())
            assert reader.wait(version - 1, timeout=0) == version


def test_parameters_update_parameters() -> None:
    model, other = make_model(), make_model()
    born = torch.nn.Parameter(crossmem.empty(3, torch.float32))
    with crossmem.share([*model.parameters(), born], copy="allow") as shared:
        received = crossmem.receive(shared.to_bytes())
        shared.update([*other.parameters(), torch.nn.Parameter(torch.ones(3))])

        assert all(map(torch.equal, received, [*other.parameters(), torch.ones(3)]))
        assert shared.value[-1] is born
        assert (type(shared.value[0]), shared.value[0].requires_grad) == (torch.Tensor, False)
    del born


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.complex64])
def test_any_dtype_is_updated(dtype: Any) -> None:
    values = torch.arange(5).to(torch.float32).to(dtype)
    with crossmem.share({"w": torch.zeros(5, dtype=dtype)}, copy="allow") as shared:
        received = crossmem.receive(shared.to_bytes())["w"]
        shared.update({"w": values})
        assert torch.equal(received.view(torch.uint8), values.view(torch.uint8))
        for wrong in (torch.zeros(5), torch.zeros(4, dtype=dtype)):
            with pytest.raises(ConfigurationError, match=r"tree\['w'\] has dtype \w+ and shape"):
                shared.update({"w": wrong})


def test_an_array_of_another_library_updates_no_tensor() -> None:
    with crossmem.share({"w": torch.zeros(3)}, copy="allow") as shared:
        with pytest.raises(
            ConfigurationError,
            match=r"tree\['w'\] is an array of numpy; the shared array is of torch",
        ):
            shared.update({"w": np.ones(3, "float32")})
        assert shared.version == 0


def test_a_tensor_that_is_expanded_or_made_for_inference_is_not_updated() -> None:
    with torch.inference_mode():
        born = crossmem.empty(2, torch.float32)
    for tensor, words in (
        (torch.ones(1).expand(3), "several indices refer to one element"),
        (born, "inference mode"),
    ):
        with (
            crossmem.share([tensor], copy="allow") as shared,
            pytest.raises(ConfigurationError, match=words),
        ):
            shared.update([torch.zeros(tensor.shape)])
    del born, tensor


@pytest.mark.parametrize("copy", [True, None])
def test_a_tensor_that_got_other_memory_is_not_updated(copy: bool | None) -> None:
    """Readers would never see the new contents."""
    tensor = torch.zeros(3) if copy else crossmem.empty(3, torch.float32)
    parameter = torch.nn.Parameter(tensor, requires_grad=False)
    with crossmem.share({"w": parameter}, copy=copy) as shared:
        shared.update({"w": torch.ones(3)})
        tensor = shared.value["w"]
        tensor.data = torch.zeros(3)
        with pytest.raises(ConfigurationError, match=r"shared as .*w.* has got other memory"):
            shared.update({"w": torch.ones(3)})


def test_new_tensors_are_like_those_of_a_model() -> None:
    model = make_model().to(torch.bfloat16)
    state = model.state_dict()

    new = crossmem.empty_like(state)

    assert (type(new), list(new), vars(new)) == (type(state), list(state), vars(state))
    assert {one.dtype for one in new.values()} == {torch.bfloat16}
    assert new["0.weight"].data_ptr() == new["1.weight"].data_ptr() != new["0.bias"].data_ptr()
    with crossmem.share(new) as shared:
        assert (shared.copied_nbytes, len(shared.message.handles)) == (0, 1)
        shared.update(state)
        assert same(new, state)
    del shared


def test_new_tensors_have_no_gaps_and_no_history() -> None:
    tensors = [torch.ones(4, 6)[:, 1], torch.nn.Parameter(torch.ones(3)), torch.ones(2, 3).T]
    column, parameter, turned = crossmem.empty_like([*tensors, torch.empty(0, 2)])[:3]

    assert (column.stride(), column.is_contiguous()) == ((1,), True)
    assert (type(parameter), parameter.requires_grad) == (torch.Tensor, False)
    assert turned.stride() == (1, 3)
