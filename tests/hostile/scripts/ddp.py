"""Two ranks train with DistributedDataParallel over Gloo, bestof enabled, one store for both."""

import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from networks import assert_close, images, network
from torch.nn.parallel import DistributedDataParallel

import bestof
import bestof.torch as bt
from bestof.selection import open_store

STEPS = 30


def train(model, image, steps):
    """Return the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(image).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return torch.tensor(losses)


def rank(number, port, path, expected):
    """Train one half of the images."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=number, world_size=2)
    bestof.use_store(open_store(path))
    with bt.enabled():
        model = DistributedDataParallel(network())
        train(model, images(4)[2 * number : 2 * number + 2], STEPS)
    state = [value.clone() for value in model.module.state_dict().values()]
    for value, want in zip(state, expected, strict=True):
        other = value.clone()
        dist.broadcast(other, 0)
        assert torch.equal(other, value), "the ranks differ"
        assert_close(value, want, 1e-3)
    dist.destroy_process_group()


if __name__ == "__main__":
    alone = network()
    train(alone, images(4), STEPS)  # equal halves: the mean over ranks is the mean over all images
    weights = [value.clone() for value in alone.state_dict().values()]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes.spawn(rank, (port, sys.argv[1], weights), nprocs=2)
    print("ok")
