"""What the Python peers of the weight sync have in common: shapes, processes, timing.

The peers do with PyTorch what `syncopate bench sync` does: T trainer ranks hold a model in row shards, M replicas of P
tensor-parallel ranks get it. One process a rank, sources on the first GPUs. Without GPUs the same code runs over gloo in
host memory, which is good for trying it out and for nothing else.
"""

import dataclasses
import json
import multiprocessing
import os
import sys
import tempfile
import time

# NVLink multicast can put the GPUs of a shared host out of service. Said before torch and NCCL read it.
os.environ["NCCL_NVLS_ENABLE"] = "0"
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    key_value_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    qkv_bias: bool
    qk_norm: bool


# As model/presets.cc.
SHAPES = {
    "tiny": Shape(2, 128, 4, 2, 32, 384, 1000, True, True, False),
    "qwen2.5-0.5b": Shape(24, 896, 14, 2, 64, 4864, 151936, True, True, False),
    "qwen2.5-1.5b": Shape(28, 1536, 12, 2, 128, 8960, 151936, True, True, False),
    "qwen2.5-7b": Shape(28, 3584, 28, 4, 128, 18944, 152064, False, True, False),
    "qwen3-8b": Shape(36, 4096, 32, 8, 128, 12288, 151936, False, False, True),
}

WHOLE, ROWS, COLUMNS = None, 0, 1


def tensors_of(shape):
    """[(name, size, dimension that tensor parallelism splits)] of every parameter."""
    queries = shape.heads * shape.head_dim
    pairs = shape.key_value_heads * shape.head_dim
    tensors = [("embed", (shape.vocabulary, shape.hidden), ROWS)]
    for layer in range(shape.layers):
        sized = [
            ("q", (queries, shape.hidden), ROWS),
            ("k", (pairs, shape.hidden), ROWS),
            ("v", (pairs, shape.hidden), ROWS),
            ("o", (shape.hidden, queries), COLUMNS),
            ("gate", (shape.intermediate, shape.hidden), ROWS),
            ("up", (shape.intermediate, shape.hidden), ROWS),
            ("down", (shape.hidden, shape.intermediate), COLUMNS),
            ("norm1", (shape.hidden,), WHOLE),
            ("norm2", (shape.hidden,), WHOLE),
        ]
        if shape.qkv_bias:
            sized += [("qb", (queries,), ROWS), ("kb", (pairs,), ROWS), ("vb", (pairs,), ROWS)]
        if shape.qk_norm:
            sized += [("qn", (shape.head_dim,), WHOLE), ("kn", (shape.head_dim,), WHOLE)]
        tensors += [(f"{layer}.{name}", size, split) for name, size, split in sized]
    tensors.append(("norm", (shape.hidden,), WHOLE))
    if not shape.tied:
        tensors.append(("head", (shape.vocabulary, shape.hidden), ROWS))
    return tensors


def elements(size):
    count = 1
    for extent in size:
        count *= extent
    return count


class Group:
    """This process's rank among all, and the device it uses."""

    def __init__(self, rank, sources, receivers):
        import torch
        import torch.distributed as dist

        self.rank = rank
        self.sources = sources
        self.receivers = receivers
        self.on_gpu = torch.cuda.is_available()
        if self.on_gpu:
            index = rank % torch.cuda.device_count()
            torch.cuda.set_device(index)
            self.device = torch.device("cuda", index)
        else:
            self.device = torch.device("cpu")
        self.dist = dist

    @property
    def is_source(self):
        return self.rank < self.sources

    def synchronize(self):
        import torch

        if self.on_gpu:
            torch.cuda.synchronize()

    def barrier(self):
        self.synchronize()
        self.dist.barrier()
        self.synchronize()

    def measure(self, run, repeats, warmup=2):
        """Seconds of each repeat of `run`, from a common start until the last rank is done."""
        for _ in range(warmup):
            run()
        seconds = []
        for _ in range(repeats):
            self.barrier()
            begin = time.perf_counter()
            run()
            self.barrier()
            seconds.append(time.perf_counter() - begin)
        return seconds


def _main(rank, sources, receivers, store, work, arguments):
    import torch.distributed as dist

    group = Group(rank, sources, receivers)
    extra = {"device_id": group.device} if group.on_gpu else {}
    dist.init_process_group(
        "nccl" if group.on_gpu else "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=sources + receivers,
        **extra,
    )
    for line in work(group, arguments):
        if rank == 0:
            print(json.dumps(line), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def run_group(sources, receivers, work, arguments, seconds_limit):
    """Runs work(group, arguments), which yields JSON lines, in sources + receivers processes. The exit code: 0, or 1 if
    one failed or they were not done in time; none is left."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(
                target=_main,
                args=(rank, sources, receivers, os.path.join(folder, "store"), work, arguments),
                daemon=True,
            )
            for rank in range(sources + receivers)
        ]
        for process in processes:
            process.start()
        deadline = time.monotonic() + seconds_limit
        while time.monotonic() < deadline and all(process.exitcode in (None, 0) for process in processes):
            if all(process.exitcode == 0 for process in processes):
                return 0
            time.sleep(0.05)
        codes = [process.exitcode for process in processes]
        for process in processes:
            process.kill()
            process.join()
    print(json.dumps({"error": f"not done after {seconds_limit} s, or failed; exit codes {codes}"}), flush=True)
    return 1


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def spread(values):
    return {"median": median(values), "min": min(values), "max": max(values), "count": len(values)}


def fail(message):
    print(message, file=sys.stderr)
    raise SystemExit(2)
