#!/usr/bin/env python3
"""Weight sync as it is done in Python today, three ways, for comparison with `syncopate bench sync`.

  per_tensor  each parameter is gathered to full on the trainer's ranks; rank 0 broadcasts it to all receivers
  bucketed    the same in buckets of 512 MiB, two of them, the broadcast beside the next gathering
  direct      no gathering: every shard goes point to point to whoever needs it, in grouped messages

Trainer ranks hold bf16 row shards (FSDP2's layout); receivers hold the model whole, or their rows and columns of it. One
JSON line a way: seconds of one sync, from a common start until every receiver has everything in place.
"""

import argparse
import sys

from peer_group import COLUMNS, ROWS, SHAPES, elements, fail, run_group, spread, tensors_of

BUCKET_BYTES = 512 << 20
WAYS = ("per_tensor", "bucketed", "direct")


def rows_of(extent, parts, part):
    """Rows [begin, end) of a part, as torch.chunk cuts."""
    size = -(-extent // parts)
    begin = min(part * size, extent)
    return begin, min(begin + size, extent)


def weights_of(begin, end, size, device):
    """Rows [begin, end) of a tensor: without pattern, never zero, a function of the position."""
    import torch

    width = size[1] if len(size) == 2 else 1
    index = torch.arange(begin * width, end * width, dtype=torch.int64, device=device)
    values = ((index * 2654435761 >> 7) % 8191 + 1).to(torch.bfloat16) / 8192
    return values.view((end - begin,) + tuple(size[1:]))


class Model:
    """One rank's parameters: row shards on a source, whole or split tensors on a receiver."""

    def __init__(self, group, tensors, tp):
        import torch
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor, Shard

        self.tensors = tensors
        self.tp = tp
        self.slice = (group.rank - group.sources) % tp
        self.values = {}
        self.device = group.device
        self.trainers = group.dist.new_group(list(range(group.sources)))
        mesh = DeviceMesh.from_group(self.trainers, group.device.type) if group.is_source else None
        for name, size, split in tensors:
            if group.is_source:
                begin, end = rows_of(size[0], group.sources, group.rank)
                local = weights_of(begin, end, size, group.device)
                stride = (size[1], 1) if len(size) == 2 else (1,)
                self.values[name] = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=torch.Size(size),
                                                       stride=stride)
            else:
                self.values[name] = torch.empty(self.split_size(size, split), dtype=torch.bfloat16, device=group.device)

    def split_size(self, size, split):
        if split is None or self.tp == 1:
            return size
        if size[split] % self.tp != 0:
            fail(f"{size} cannot be split into {self.tp}")
        return tuple(extent // self.tp if i == split else extent for i, extent in enumerate(size))

    def spoil(self):
        for value in self.values.values():
            value.fill_(float("nan"))

    def is_right(self):
        """Whether a receiver holds what the sources have."""
        for name, size, split in self.tensors:
            wanted = weights_of(0, size[0], size, self.device)
            if split is not None and self.tp > 1:
                wanted = wanted.chunk(self.tp, dim=split)[self.slice]
            if not wanted.equal(self.values[name]):
                return False
        return True

    def keep(self, name, split, full):
        """What a receiver does with a full tensor: copies its own part of it into place."""
        mine = full if split is None or self.tp == 1 else full.chunk(self.tp, dim=split)[self.slice]
        self.values[name].copy_(mine)


class PerTensor:
    def __init__(self, group, model):
        import torch

        self.group, self.model = group, model
        self.senders = group.dist.new_group([0] + list(range(group.sources, group.sources + group.receivers)))
        largest = max(elements(size) for _, size, _ in model.tensors)
        self.whole = None
        if not group.is_source and model.tp > 1:
            self.whole = torch.empty(largest, dtype=torch.bfloat16, device=group.device)

    def __call__(self):
        dist, model = self.group.dist, self.model
        for name, size, split in model.tensors:
            if self.group.is_source:
                full = model.values[name].full_tensor()
                if self.group.rank == 0:
                    dist.broadcast(full, 0, group=self.senders)
            elif self.whole is None:
                dist.broadcast(model.values[name], 0, group=self.senders)
            else:
                full = self.whole[: elements(size)].view(size)
                dist.broadcast(full, 0, group=self.senders)
                model.keep(name, split, full)


class Bucketed:
    def __init__(self, group, model):
        import torch

        self.group, self.model = group, model
        self.senders = group.dist.new_group([0] + list(range(group.sources, group.sources + group.receivers)))
        self.buckets = [[]]
        filled = 0
        for tensor in model.tensors:
            size = 2 * elements(tensor[1])
            if self.buckets[-1] and filled + size > BUCKET_BYTES:
                self.buckets.append([])
                filled = 0
            self.buckets[-1].append(tensor)
            filled += size
        largest = max(sum(elements(size) for _, size, _ in bucket) for bucket in self.buckets)
        self.buffers = [torch.empty(largest, dtype=torch.bfloat16, device=group.device) for _ in range(2)]

    def __call__(self):
        work = [None, None]
        for index, bucket in enumerate(self.buckets):
            buffer = self.buffers[index % 2]
            if work[index % 2] is not None:
                work[index % 2].wait()
            if self.group.is_source:
                work[index % 2] = self.send(bucket, buffer)
            else:
                self.receive(bucket, buffer)
        for pending in work:
            if pending is not None:
                pending.wait()

    def send(self, bucket, buffer):
        at = 0
        for name, size, _ in bucket:
            full = self.model.values[name].full_tensor()
            if self.group.rank == 0:
                buffer[at : at + full.numel()].copy_(full.view(-1))
            at += elements(size)
        if self.group.rank != 0:
            return None
        return self.group.dist.broadcast(buffer[:at], 0, group=self.senders, async_op=True)

    def receive(self, bucket, buffer):
        total = sum(elements(size) for _, size, _ in bucket)
        self.group.dist.broadcast(buffer[:total], 0, group=self.senders)
        at = 0
        for name, size, split in bucket:
            count = elements(size)
            self.model.keep(name, split, buffer[at : at + count].view(size))
            at += count


class Direct:
    """Every pair of a source and a receiver exchanges the rows that both have, a bucket's worth of them at a time."""

    def __init__(self, group, model):
        self.group, self.model = group, model
        self.batches = [[]]
        filled = 0
        for tensor in model.tensors:
            size = 2 * elements(tensor[1])
            if self.batches[-1] and filled + size > BUCKET_BYTES:
                self.batches.append([])
                filled = 0
            self.batches[-1].append(tensor)
            filled += size

    def __call__(self):
        dist = self.group.dist
        for batch in self.batches:
            operations = []
            for tensor in batch:
                operations += self.sends(tensor) if self.group.is_source else self.receives(tensor)
            if operations:
                for pending in dist.batch_isend_irecv(operations):
                    pending.wait()

    def shared_rows(self, size, split, source, part):
        """The rows, counted in the whole tensor, that a source has and a slice wants."""
        begin, end = rows_of(size[0], self.group.sources, source)
        if split == ROWS and self.model.tp > 1:
            rows = size[0] // self.model.tp
            begin, end = max(begin, part * rows), min(end, (part + 1) * rows)
        return begin, max(begin, end)

    def sends(self, tensor):
        dist, tp = self.group.dist, self.model.tp
        name, size, split = tensor
        local = self.model.values[name].to_local()
        first, _ = rows_of(size[0], self.group.sources, self.group.rank)
        operations = []
        for receiver in range(self.group.receivers):
            part = receiver % tp
            begin, end = self.shared_rows(size, split, self.group.rank, part)
            if begin == end:
                continue
            rows = local[begin - first : end - first]
            if split == COLUMNS and tp > 1:
                rows = rows.chunk(tp, dim=1)[part].contiguous()
            operations.append(dist.P2POp(dist.isend, rows, self.group.sources + receiver))
        return operations

    def receives(self, tensor):
        dist = self.group.dist
        name, size, split = tensor
        mine = self.model.values[name]
        origin = self.model.slice * mine.shape[0] if split == ROWS and self.model.tp > 1 else 0
        operations = []
        for source in range(self.group.sources):
            begin, end = self.shared_rows(size, split, source, self.model.slice)
            if begin < end:
                operations.append(dist.P2POp(dist.irecv, mine[begin - origin : end - origin], source))
        return operations


def work(group, arguments):
    tensors = tensors_of(SHAPES[arguments["model"]])
    total = 2 * sum(elements(size) for _, size, _ in tensors)
    model = Model(group, tensors, arguments["tp"])
    for way, make in zip(WAYS, (PerTensor, Bucketed, Direct)):
        if way not in arguments["ways"]:
            continue
        if not group.is_source:
            model.spoil()
        each = spread(group.measure(make(group, model), arguments["repeats"]))
        if not group.is_source and not model.is_right():
            raise RuntimeError(f"{way} brings rank {group.rank} other weights than the sources have")
        group.barrier()
        yield {
            "peer": way,
            "model": arguments["model"],
            "sources": group.sources,
            "replicas": group.receivers // arguments["tp"],
            "tp": arguments["tp"],
            "bytes": total,
            "seconds": each,
            "bytes_per_second": total / arguments["tp"] / each["median"],
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen2.5-7b", choices=sorted(SHAPES))
    parser.add_argument("--sources", type=int, default=2)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--ways", default=",".join(WAYS), help="some of " + ", ".join(WAYS))
    parser.add_argument("--seconds-limit", type=float, default=150)
    options = parser.parse_args()
    ways = options.ways.split(",")
    if not set(ways) <= set(WAYS):
        fail(f"--ways may hold {', '.join(WAYS)}, not {options.ways}")
    arguments = {"model": options.model, "tp": options.tp, "repeats": options.repeats, "ways": ways}
    return run_group(options.sources, options.replicas * options.tp, work, arguments, options.seconds_limit)


if __name__ == "__main__":
    sys.exit(main())
