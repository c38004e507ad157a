# SPDX-License-Identifier: Apache-2.0
"""Tensors of crossmem in forked workers: those of a DataLoader, and those of multiprocessing."""

import pytest
from programs import DEADLINE_S, run_script

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

# PyTorch warns of what is new in it, or old, and newer Pythons of forks among threads.
START = """
import multiprocessing, sys, warnings
warnings.simplefilter("ignore")
import torch
import crossmem
if sys.argv[1] == "installed":
    crossmem.install()
"""

LOADS = f"""
from torch.utils.data import DataLoader, Dataset, TensorDataset

class Rows(Dataset):
    def __init__(self, tensor):
        self.tensor = tensor

    def __len__(self):
        return len(self.tensor)

    def __getitem__(self, index):
        # A view, which the loader sends as it is.
        return self.tensor[index]

def loader(dataset, **options):
    return DataLoader(dataset, num_workers=2, multiprocessing_context="fork",
                      timeout={DEADLINE_S / 2}, **options)

data, labels = crossmem.empty((64, 8), torch.float32), crossmem.empty(64, torch.int64)
data[:] = torch.arange(64)[:, None]
labels[:] = torch.arange(64)

batches = loader(TensorDataset(data, labels), batch_size=16, persistent_workers=True)
for epoch in range(2):
    data += epoch
    seen = list(batches)
    assert [len(rows) for rows, _ in seen] == [16] * 4
    # Workers that were started in the first epoch see what was written since.
    assert torch.equal(torch.cat([rows for rows, _ in seen]), data), epoch
    assert torch.equal(torch.cat([names for _, names in seen]), labels)
del batches

rows = [row.clone() for row in loader(Rows(data), batch_size=None)]
assert torch.equal(torch.stack(rows), data)
# They are copies, each of one row.
rows = list(loader(Rows(data), batch_size=None))
before = data.clone()
data.zero_()
assert torch.equal(torch.stack(rows), before)
"""

SENDS = f"""
context = multiprocessing.get_context("fork")
tensor = crossmem.empty((100, 4), torch.bfloat16)
tensor.fill_(1)

def work(queue, done):
    queue.put(tensor[2:4])
    assert done.get(timeout={DEADLINE_S / 2}) == "seen"
    # What was sent was copied, and the tensor is where it was: in the memory of the parent.
    tensor[0, 0] = 7
    queue.put("written")
    done.get(timeout={DEADLINE_S / 2})

queue, done = context.Queue(), context.Queue()
worker = context.Process(target=work, args=(queue, done))
worker.start()
try:
    part = queue.get(timeout={DEADLINE_S / 2})
    assert (part.shape, float(part.sum())) == ((2, 4), 8)
    assert part.untyped_storage().nbytes() == 2 * 4 * 2
    done.put("seen")
    assert queue.get(timeout={DEADLINE_S / 2}) == "written"
    assert float(tensor[0, 0]) == 7
    done.put("end")
    worker.join({DEADLINE_S / 2})
    assert worker.exitcode == 0
finally:
    worker.kill()
    worker.join()
"""


@pytest.mark.parametrize("way", ["plain", "installed"])
def test_a_data_loader_forks_workers_over_tensors_of_crossmem(way: str) -> None:
    ended = run_script(START + LOADS, way)

    assert ended.returncode == 0, ended.stderr


def test_a_forked_worker_sends_a_copy_and_keeps_the_tensor() -> None:
    ended = run_script(START + SENDS, "installed")

    assert ended.returncode == 0, ended.stderr
