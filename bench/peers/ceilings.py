#!/usr/bin/env python3
"""What PyTorch reaches between GPUs with one large message a pair: NCCL and copy engines, no weights, no protocol.

  send_recv   every receiver takes an equal part from each source, one group of NCCL messages
  broadcast   source 0 broadcasts everything to all receivers
  copies      the pattern of send_recv with copy engines, from one process, in rounds of matchings

One JSON line each: bytes per second into each receiver.
"""

import argparse
import json
import sys
import time

from peer_group import run_group, spread


def random_bytes(count, device):
    import torch

    return torch.randint(1, 255, (count,), dtype=torch.uint8, device=device)


def line(name, count, seconds):
    each = spread(seconds)
    return {"ceiling": name, "bytes": count, "seconds": each, "bytes_per_second": count / each["median"]}


def work(group, arguments):
    dist, count = group.dist, arguments["bytes"]
    part = count // group.sources
    buffer = random_bytes(count, group.device)

    def send_recv():
        operations = []
        for other in range(group.receivers if group.is_source else group.sources):
            if group.is_source:
                operations.append(dist.P2POp(dist.isend, buffer[:part], group.sources + other))
            else:
                operations.append(dist.P2POp(dist.irecv, buffer[other * part : (other + 1) * part], other))
        for pending in dist.batch_isend_irecv(operations):
            pending.wait()

    yield line("send_recv", count, group.measure(send_recv, arguments["repeats"]))
    members = [0] + list(range(group.sources, group.sources + group.receivers))
    everybody = dist.new_group(members)

    def broadcast():
        if group.rank in members:
            dist.broadcast(buffer, 0, group=everybody)

    yield line("broadcast", count, group.measure(broadcast, arguments["repeats"]))


def copy_engines(sources, receivers, count, repeats):
    """Copies between devices from this process; nothing without enough GPUs."""
    import torch

    if not torch.cuda.is_available() or torch.cuda.device_count() < sources + receivers:
        return
    part = count // sources
    held = [random_bytes(part, torch.device("cuda", source)) for source in range(sources)]
    targets = [torch.device("cuda", sources + receiver) for receiver in range(receivers)]
    placed = [random_bytes(count, target) for target in targets]
    streams = [torch.cuda.Stream(target) for target in targets]
    seconds = []
    for repeat in range(repeats + 2):
        for device in range(sources + receivers):
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        for turn in range(sources):
            for receiver in range(receivers):
                source = (receiver + turn) % sources
                with torch.cuda.stream(streams[receiver]):
                    placed[receiver][source * part : (source + 1) * part].copy_(held[source], non_blocking=True)
        for device in range(sources + receivers):
            torch.cuda.synchronize(device)
        if repeat >= 2:
            seconds.append(time.perf_counter() - begin)
    print(json.dumps(line("copies", count, seconds)), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=int, default=2)
    parser.add_argument("--receivers", type=int, default=2)
    parser.add_argument("--bytes", type=int, default=8 << 30, help="into each receiver")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds-limit", type=float, default=120)
    options = parser.parse_args()
    arguments = {"bytes": options.bytes // options.sources * options.sources, "repeats": options.repeats}
    code = run_group(options.sources, options.receivers, work, arguments, options.seconds_limit)
    copy_engines(options.sources, options.receivers, arguments["bytes"], options.repeats)
    return code


if __name__ == "__main__":
    sys.exit(main())
