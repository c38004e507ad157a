# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch: shared, received, tied, written through, and what PyTorch cannot do."""

import gc
import pickle
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

import crossmem
from crossmem import BusyError, ConfigurationError, InvalidSizeError, UnsupportedError
from crossmem.conformance.peers import Peer, PeerDiedError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

# Peers get this process's sys.path, and find torch_actions there.
sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from tests.frameworks import torch_actions
else:
    import torch_actions

# PyTorch warns of what is new in it, or old.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

repeatable = examples(60)

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    *(torch.float8_e8m0fnu, torch.uint16, torch.uint32, torch.uint64),
]
look = torch_actions.look
crossmem.install()


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    """Return a process that has PyTorch too."""
    with tempfile.TemporaryDirectory(prefix="crossmem-") as folder:
        one = Peer("emulated:0", environment={"CROSSMEM_RUN_DIR": folder}, tracing=False)
        yield one
        one.destroy()


@pytest.fixture
def start_peer() -> Iterator[Any]:
    """Return a function that starts such a process, for tests that end it."""
    started: list[Peer] = []

    def start() -> Peer:
        started.append(Peer("emulated:0", tracing=False))
        return started[-1]

    yield start
    for one in started:
        one.destroy()


def values(dtype: Any, *shape: int) -> Any:
    """Return a tensor of any bytes; of booleans, those that are."""
    count = int(np.prod(shape)) * dtype.itemsize
    data = torch.arange(count, dtype=torch.int64)
    raw = (data % 2 if dtype is torch.bool else data * 37 % 251).to(torch.uint8)
    return raw.view(dtype).reshape(shape)


@st.composite
def families(draw: st.DrawFn) -> list[Any]:
    """Draw a tensor and views of it."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    family = [values(dtype, *shape)]
    for _ in range(draw(st.integers(0, 4))):
        one = draw(st.sampled_from(family))
        match draw(st.sampled_from(["index", "slice", "transpose", "expand", "flat", "same"])):
            case "index" if one.ndim and one.shape[0]:
                family.append(one[draw(st.integers(0, one.shape[0] - 1))])
            case "slice" if one.ndim:
                low, step = draw(st.integers(0, 3)), draw(st.integers(1, 3))
                family.append(one[low::step])
            case "transpose" if one.ndim > 1:
                family.append(one.transpose(0, draw(st.integers(1, one.ndim - 1))))
            case "expand":
                family.append(one.expand(3, *one.shape))
            case "flat":
                family.append(one.reshape(-1))
            case _:
                family.append(one)
    return family


@repeatable
@given(families(), st.data())
def test_what_is_received_is_what_was_shared(tensors: list[Any], data: st.DataObject) -> None:
    with crossmem.share({"all": tensors}, copy="allow") as shared:
        found = crossmem.receive(shared.to_bytes())["all"]

    for mine, theirs in zip(tensors, found, strict=True):
        assert (look(theirs)[0], look(theirs)[2:]) == (look(mine)[0], look(mine)[2:])
        if mine.numel() > 1:
            steps = zip(mine.shape, mine.stride(), theirs.stride(), strict=True)
            assert all(one == other for size, one, other in steps if size > 1)
    for i, mine in enumerate(tensors):
        for j, other in enumerate(tensors):
            if mine is other:
                assert found[i] is found[j]
            elif mine.numel() and other.numel():
                apart = found[j].data_ptr() - found[i].data_ptr()
                if mine.untyped_storage().data_ptr() == other.untyped_storage().data_ptr():
                    assert apart == other.data_ptr() - mine.data_ptr()
    # Through one tensor, the others change as they did here.
    number = data.draw(st.integers(0, len(tensors) - 1))
    if tensors[number].numel():
        for family in (tensors, found):
            one = family[number]
            while one.ndim:
                one = one[-1]
            one.copy_(values(one.dtype, 4)[3])
        assert [look(one)[2:] for one in found] == [look(one)[2:] for one in tensors]


def test_other_processes_see_the_same(peer: Peer) -> None:
    trees = [[values(one, 3, 4), values(one, 3, 4).T[1:], values(one)] for one in DTYPES]
    shared = [crossmem.share(one, copy="allow") for one in trees]

    found = peer.call(torch_actions.digests, [one.to_bytes() for one in shared], within=60)

    assert found == [[look(one) for one in tree] for tree in trees]
    for one in shared:
        one.close()


@pytest.mark.parametrize("times", [2, 1000])
def test_a_tensor_with_gaps_that_is_expanded_is_copied(times: int) -> None:
    tensor = torch.arange(100.0).reshape(10, 10)[:, 3].expand(times, 10)

    with crossmem.share(tensor, copy="allow") as shared:
        assert shared.copied_nbytes == 10 * 4
        found = crossmem.receive(shared)

    assert found.stride() == tensor.stride()
    assert torch.equal(found, tensor)


def make_model() -> Any:
    class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(8, 8)
            self.last = torch.nn.Linear(8, 8)
            self.last.weight = self.first.weight

    return Model()


def test_a_state_dict_keeps_its_tied_weights(peer: Peer) -> None:
    model = make_model()
    state = model.state_dict()
    with crossmem.share(state, copy="allow") as shared:
        tied, one_storage, total = peer.call(torch_actions.receive_model, shared.to_bytes())
        mine = crossmem.receive(shared)
        peer.call(torch_actions.add, 1.0)

        assert (tied, one_storage) == (True, True)
        assert total == pytest.approx(float(state["first.weight"].sum()))
        assert torch.equal(mine["last.weight"], state["first.weight"] + 1)
        assert shared.copied_nbytes == (8 * 8 + 8 + 8) * 4
    other = make_model()
    other.load_state_dict(mine)
    assert vars(mine) == vars(state)
    assert torch.equal(other.last.weight, mine["first.weight"])


def test_parameters_are_received_as_tensors_and_filled_in_place() -> None:
    source, target = make_model(), make_model()
    with crossmem.share(list(source.parameters()), copy="allow") as shared:
        found = crossmem.receive(shared)
        crossmem.receive(shared, into=list(target.parameters()))

    assert [type(one) for one in found] == [torch.Tensor] * 3
    assert not any(one.requires_grad for one in found)
    for one, other in zip(source.parameters(), target.parameters(), strict=True):
        assert torch.equal(one, other)
        assert other.requires_grad


def test_nothing_is_filled_where_pytorch_would_refuse_one() -> None:
    with torch.inference_mode():
        kept = torch.zeros(3)
    for refused in (torch.zeros(1).expand(3), kept):
        first = torch.zeros(3)
        with crossmem.share([torch.ones(3)] * 2, copy="allow") as shared:
            with pytest.raises(ConfigurationError, match=r"into\[1\]"):
                crossmem.receive(shared, into=[first, refused])

            assert not first.any()
            with torch.inference_mode():
                crossmem.receive(shared, into=[first, kept])
    assert kept.all()


def test_arrays_and_tensors_in_the_same_memory_stay_so() -> None:
    array = np.arange(6, dtype="float32")
    with crossmem.share([array, torch.from_numpy(array)[2:]], copy="allow") as shared:
        assert shared.copied_nbytes == array.nbytes
        found, tensor = crossmem.receive(shared)
    tensor[0] = -1

    assert found[2] == -1
    assert isinstance(found, np.ndarray)


def test_tensors_of_one_library_fill_arrays_of_the_other() -> None:
    target = np.zeros(3, "float32")
    with crossmem.share(torch.arange(3.0), copy="allow") as shared:
        crossmem.receive(shared, into=target)

    assert list(target) == [0, 1, 2]


# Memory ------------------------------------------------------------------------------------------


def test_a_tensor_is_the_memory() -> None:
    with crossmem.device("emulated:0").allocate(64) as memory:
        memory.write(bytes(range(64)))
        tensor = memory.as_tensor((2, 3), torch.int16, strides=(8, 2), offset=4)
        odd = memory.as_tensor(2, "int32", offset=5)

        assert tensor.data_ptr() == memory.ptr + 4
        assert tensor.stride() == (4, 1)
        assert int(odd[1]) == int.from_bytes(bytes(range(9, 13)), "little")
        assert memory.as_tensor(dtype="int64", offset=60).shape == (0,)
        assert memory.as_tensor(dtype="int16", offset=63).shape == (0,)
        odd[0] = -1
        assert memory.read(4, offset=5) == b"\xff" * 4
        with pytest.raises(InvalidSizeError):
            memory.as_tensor(17, torch.float32)
        with pytest.raises(BusyError, match=r"Tensor \(2, 3\) of torch.int16"):
            memory.free()
        part = tensor[1:]
        del tensor, odd
        with pytest.raises(BusyError):
            memory.free()
        del part
        memory.free()


def test_tensors_can_be_shared_from_birth(peer: Peer) -> None:
    tensor = crossmem.empty((3, 4), torch.bfloat16)
    tensor.copy_(torch.arange(12).reshape(3, 4))

    assert (type(tensor), tensor.dtype, tuple(tensor.shape)) == (
        torch.Tensor,
        torch.bfloat16,
        (3, 4),
    )
    with crossmem.share([tensor, tensor[1]]) as shared:
        assert shared.copied_nbytes == 0
        (found,) = peer.call(torch_actions.digests, [shared.to_bytes()])
    assert found == [look(tensor), look(tensor[1])]


def test_a_view_keeps_memory_that_nobody_else_keeps() -> None:
    def mapped() -> int:
        gc.collect()
        crossmem.collect()
        return Path("/proc/self/maps").read_text("utf-8").count("memfd:")

    tensor = crossmem.empty(1000, torch.float64)
    tensor.fill_(2)
    part = tensor.view(10, 100)[3:]
    # What earlier tests have left may go meanwhile.
    before = mapped()
    del tensor

    assert (mapped() <= before, float(part.sum())) == (True, 1400.0)
    before = mapped()
    del part
    assert mapped() < before


# What PyTorch cannot -----------------------------------------------------------------------------


def test_what_pytorch_has_no_tensors_for() -> None:
    with crossmem.device("emulated:0").allocate(64) as memory:
        with pytest.raises(UnsupportedError, match="negative"):
            memory.as_tensor(3, "int8", strides=(-1,), offset=5)
        with pytest.raises(UnsupportedError, match="not a multiple"):
            memory.as_tensor(3, "int16", strides=(3,))
        with pytest.raises(UnsupportedError, match=r"PyTorch .* has no"):
            memory.as_tensor(3, ">f4")
        with pytest.raises(UnsupportedError, match=r"PyTorch .* has no"):
            memory.as_tensor(3, "M8[s]")


class Special(torch.Tensor):  # type: ignore[misc,name-defined]
    """Is more than a tensor."""


def test_tensors_that_are_more_than_their_elements_are_refused() -> None:
    dense = torch.eye(3)
    refused = [
        dense.to_sparse(),
        dense.to_sparse_csr(),
        torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8),
        torch.view_as_complex(torch.ones(2, 2)).conj(),
        torch.empty(3, device="meta"),
        dense.as_subclass(Special),
        torch.nested.nested_tensor([dense], layout=torch.jagged),
    ]
    for one in refused:
        with pytest.raises(UnsupportedError):
            crossmem.share(one, copy="allow")


@pytest.mark.parametrize("nbytes", [0, 16, 2**24 - 1])
def test_a_tensor_with_less_memory_than_its_elements_take_is_refused(nbytes: int) -> None:
    # As FSDP leaves the parameters that it does not need for now.
    tensor = torch.ones(2**22)[1:]
    tensor.untyped_storage().resize_(nbytes)

    with pytest.raises(crossmem.UnsupportedError, match=r"x\['a'\] .* smaller than its elements"):
        crossmem.share({"a": tensor}, copy="allow")
    with crossmem.share(tensor[:0]) as shared:
        assert crossmem.receive(shared).shape == (0,)


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.functionalize])
def test_a_tensor_without_memory_is_refused(transform: Any) -> None:
    def share(tensor: Any) -> Any:
        with pytest.raises(
            crossmem.UnsupportedError,
            match=r"the tensor has no memory|the storage of the tensor is smaller",
        ):
            crossmem.share(tensor, copy="allow")
        return tensor

    transform(share)(torch.ones(2, 3))
    share(torch._efficientzerotensor((4,)))


def test_what_is_no_tensor_is_refused_by_its_place() -> None:
    with pytest.raises(UnsupportedError, match=r"x\['dtype'\]"):
        crossmem.share({"dtype": torch.float32})
    with pytest.raises(UnsupportedError, match=r"x\['w'\].*ordinary host memory"):
        crossmem.share({"w": torch.ones(2)})
    with (
        crossmem.share(torch.ones(2), copy="allow") as shared,
        pytest.raises(ConfigurationError),
    ):
        crossmem.receive(shared, into=torch.ones(2, dtype=torch.float64))


def test_writing_to_what_the_kernel_keeps_ends_the_process(start_peer: Any) -> None:
    peer = start_peer()
    with crossmem.share([torch.ones(2)], copy="allow") as shared:
        with pytest.raises(PeerDiedError) as died:
            peer.call(torch_actions.write_read_only, shared.to_bytes())

        assert died.value.exitcode == -signal.SIGSEGV
        assert list(crossmem.receive(shared)[0]) == [1, 1]


def test_the_example_of_the_documentation_runs(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs/how-to/pytorch.md"
    blocks = re.findall(r"^```py\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    script = tmp_path / "example.py"
    script.write_text("\n\n".join(blocks))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=100, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "3 [15.0, 15.0, 15.0, 15.0]"


def cross(value: Any) -> Any:
    """Return what another process gets."""
    return pickle.loads(ForkingPickler.dumps(value))  # noqa: S301 - made here


def test_what_learns_crosses_multiprocessing_as_it_is() -> None:
    memory = crossmem.empty((1, 3), torch.float32)
    layer = torch.nn.Linear(3, 1, bias=False)
    layer.weight = torch.nn.Parameter(memory)

    found = cross(layer)
    found.weight.data[0, 0] = 5

    assert type(found.weight) is torch.nn.Parameter
    assert found.weight.requires_grad
    assert memory[0, 0] == 5
    assert not cross(torch.nn.Parameter(memory, requires_grad=False)).requires_grad
    assert cross(memory.detach().requires_grad_()).requires_grad
    with pytest.raises(RuntimeError, match="non-leaf"):
        ForkingPickler.dumps(layer.weight * 1)


@pytest.mark.parametrize("memory", [torch.empty(4), crossmem.empty(4, torch.float32)])
def test_what_has_no_elements_crosses_multiprocessing_as_it_is(memory: Any) -> None:
    for kind, learns in ((torch.Tensor, False), (torch.Tensor, True), (torch.nn.Parameter, False)):
        part = memory[4:].expand(3, 2, 0).transpose(0, 1)
        value = kind(part).requires_grad_(learns)
        found = cross(value)

        assert type(found) is kind
        assert (found.shape, found.stride()) == (value.shape, value.stride())
        assert found.requires_grad is learns
        assert found.untyped_storage().nbytes() == 0


def test_of_memory_without_handles_only_the_tensor_is_sent() -> None:
    device = crossmem.device("emulated:0")
    with device.allocate(1 << 20) as allocation, device.reserve(1 << 20) as addresses:
        piece = addresses.map(allocation, at=0)
        part = piece.as_tensor((2, 3), torch.float32, strides=(16, 4), offset=64)
        part.copy_(torch.arange(6).reshape(2, 3))

        found = cross(torch.nn.Parameter(part))

        assert found.tolist() == part.tolist()
        assert (type(found), found.stride()) == (torch.nn.Parameter, (4, 1))
        assert found.untyped_storage().nbytes() == 28
        del part
        piece.unmap()


# A tensor that is more than one.
Sub = type("Sub", (torch.Tensor,), {"__module__": __name__})


@pytest.mark.parametrize(
    "other",
    [
        lambda tensor: tensor[4:],
        lambda tensor: tensor.as_subclass(Sub),
        lambda tensor: tensor.view(torch.complex64).conj(),
    ],
    ids=["empty", "subclass", "conjugate"],
)
def test_what_pytorch_sends_itself_moves_nothing_of_crossmem(other: Any) -> None:
    tensor = crossmem.empty(4, torch.float32)
    tensor.fill_(1)
    there = tensor.data_ptr()
    with crossmem.share(tensor) as shared:
        ForkingPickler.dumps(other(tensor))

        assert tensor.data_ptr() == there
        tensor.fill_(2)
        assert crossmem.receive(shared).tolist() == [2, 2, 2, 2]


def test_pytorch_may_be_imported_after_install() -> None:
    script = """
import crossmem
crossmem.install()
array = crossmem.empty((4, 4), "float32")
array[:] = 3
import torch
from multiprocessing.reduction import ForkingPickler
import pickle
tensor = torch.from_numpy(array)
there = tensor.data_ptr()
found = pickle.loads(ForkingPickler.dumps(tensor))
tensor.fill_(5)
print(tensor.data_ptr() == there, float(array[0, 0]), float(found[0, 0]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout == "True 5.0 5.0\n", done.stderr


def test_a_tensor_without_elements_is_received_on_the_cpu() -> None:
    with crossmem.share([torch.empty(0, 3)]) as shared, torch.device("meta"):
        (found,) = crossmem.receive(shared)

    assert (found.device.type, tuple(found.shape)) == ("cpu", (0, 3))
