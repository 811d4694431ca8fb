#!/usr/bin/env python3
"""The table of bench/gpu_sync.sh.

  sync_table.py RESULTS.jsonl                    prints Markdown
  sync_table.py --collect NAME EXIT_CODE FILE    prints the JSON lines of one case's output as result lines
  sync_table.py --machine TEXT                   prints the line that names the machine
"""

import fnmatch
import json
import sys


def objects_in(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                yield value


def collect(name, code, path):
    found = list(objects_in(path)) or [{"error": "no result"}]
    for value in found:
        print(json.dumps({"name": name, "exit_code": int(code), "result": value}))


def ms(seconds, digits=2):
    return "-" if seconds is None else f"{1e3 * seconds:.{digits}f}"


def range_of(spread, digits=2):
    if not spread:
        return "-"
    return f"**{ms(spread['median'], digits)}** ({ms(spread['min'], digits)}-{ms(spread['max'], digits)})"


def gb(rate):
    return "-" if not rate else f"{rate / 1e9:.1f}"


def table(headings, rows):
    if not rows:
        return ""
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def median_of(result, key):
    spread = result.get(key)
    return spread["median"] if spread else None


def growth(result):
    uses = result.get("memory", [])
    if not uses:
        return "-"
    return f"{max(use['after_bytes'] - use['before_bytes'] for use in uses) / 2**20:+.0f}"


def sync_row(name, result):
    seconds = result["seconds"]
    transfer = seconds["transfer"]
    commit = result.get("publish_to_commit_seconds")
    ceiling = result.get("ceiling")
    share = result["decode"]["share_during_transfer"]
    return [
        name,
        result["transport"],
        range_of(transfer),
        gb(median_of(result, "receiver_bytes_per_second")),
        f"{gb(ceiling['bytes_per_second'])} ({ceiling['name']})" if ceiling else "-",
        f"**{ceiling['ratio']:.3f}**" if ceiling else "-",
        ms(median_of(seconds, "stage")),
        ms(median_of(seconds, "prepare")),
        ms(median_of(seconds, "verify")),
        ms(median_of(seconds, "install")),
        range_of(commit),
        f"{commit['median'] / transfer['median']:.2f}" if commit and transfer and transfer["median"] else "-",
        ms(median_of(result, "pause_seconds"), 3),
        ms(median_of(result, "trainer_stall_seconds")),
        f"{share:.2f}" if share else "-",
        ms(result["first_seconds"]["total"]["max"], 0) if result["first_seconds"].get("total") else "-",
        growth(result),
        "yes" if result["digests_equal"] else "**NO**",
        f"{100 * result['worst_phase_gap']:.2f}",
    ]


SYNC_HEADINGS = [
    "case", "transport", "transfer, ms", "GB/s each", "ceiling GB/s", "ratio", "stage", "prepare", "verify", "install",
    "publish to commit, ms", "/ transfer", "pause, ms", "stall, ms", "decode share", "first sync, ms",
    "memory growth, MiB", "digests", "gap, %",
]


def event_row(name, result):
    late, fault = result.get("late_joiner"), result.get("fault")
    if late:
        others = late["others_total_seconds"]
        return [name, "late joiner", "-", f"{late['start_to_serving_seconds']:.2f}",
                f"others meanwhile {range_of(others)} ms, calm {range_of(result['seconds']['total'])} ms"]
    noticed = f"{fault['declared_seconds']:.2f}" if fault["reasons"] else "-"
    mended = f"; started again after {fault['mended_seconds']:.2f} s" if fault["mended_seconds"] else ""
    return [name, "fault", noticed, f"{fault['recovered_seconds']:.2f}",
            ("healthy; " if fault["healthy"] else "**BROKEN**; ") + ", ".join(fault["reasons"]) + mended]


def peer_row(name, result):
    return [name, result["peer"], range_of(result["seconds"], 1), gb(result["bytes_per_second"])]


def ceiling_row(name, result):
    return [name, result["ceiling"], range_of(result["seconds"], 1), gb(result["bytes_per_second"])]


def ratio(result):
    return result["ceiling"]["ratio"]


def transfer_ms(result):
    return 1e3 * result["seconds"]["transfer"]["median"]


def commit_share(result):
    return result["publish_to_commit_ratio"]


def pause_ms(result):
    return 1e3 * result["pause_seconds"]["median"]


def most_growth_mib(result):
    return max(use["after_bytes"] - use["before_bytes"] for use in result["memory"]) / 2**20


def reform_seconds(result):
    fault = result["fault"]
    return fault["recovered_seconds"] - max(fault["declared_seconds"], fault["mended_seconds"])


# What the syncs must reach: (pattern of cases, what, how it is read, sign, bound).
AIMS = [
    ("7b-2x2-*", "ratio to the ceiling", ratio, ">=", 0.95),
    ("7b-1x3-*", "ratio to the ceiling", ratio, ">=", 0.90),
    ("0.5b-*", "transfer, ms", transfer_ms, "<=", 5),
    ("7b-*-ipc-calm", "publish to commit / transfer", commit_share, "<=", 1.15),
    ("7b-*-nccl-calm", "publish to commit / transfer", commit_share, "<=", 1.10),
    # All but those that end in "-calm", where no step is beside a publication.
    ("7b-*[lc]", "rate of steps beside a publication, of the others", lambda r: r["steps"]["rate_share"], ">=", 0.98),
    ("7b-2x2-*", "pause, ms", pause_ms, "<=", 1.5),
    ("7b-inplace-*", "pause beyond the transfer, ms", lambda r: pause_ms(r) - transfer_ms(r), "<=", 2),
    ("7b-2x2-ipc", "decode share", lambda r: r["decode"]["share_during_transfer"], ">=", 0.85),
    ("7b-2x2-nccl", "decode share", lambda r: r["decode"]["share_during_transfer"], ">=", 0.55),
    ("7b-2x2-*", "trainer's stall, ms", lambda r: 1e3 * r["trainer_stall_seconds"]["median"], "<=", 1),
    ("200-syncs-*", "growth of memory, MiB", most_growth_mib, "<=", 1),
    ("*-late-*", "late joiner serves after, s", lambda r: r["late_joiner"]["start_to_serving_seconds"], "<=", 10),
    ("kill-*", "serving again, s after it was noticed or mended", reform_seconds, "<=", 5),
    ("stop-*", "serving again, s after it was noticed or mended", reform_seconds, "<=", 5),
    ("*", "phases leave open, share of the total", lambda r: r["worst_phase_gap"], "<=", 0.02),
]


def aim_row(name, what, got, sign, bound):
    met = got >= bound if sign == ">=" else got <= bound
    return [name, what, f"{sign} {bound:g}", f"{got:.3g}", "yes" if met else "**no**"]


def aim_rows(lines):
    """One row for each aim that a case of these results bears on."""
    rows = []
    for line in lines:
        for pattern, what, read, sign, bound in AIMS:
            if not fnmatch.fnmatch(line["name"], pattern):
                continue
            try:
                rows.append(aim_row(line["name"], what, read(line["result"]), sign, bound))
            except (KeyError, TypeError, ZeroDivisionError):
                continue  # this case did not measure it
    results = {line["name"]: line["result"] for line in lines if "seconds" in line["result"]}
    for transport in ("ipc", "nccl"):
        whole, split = results.get(f"7b-2x2-{transport}"), results.get(f"7b-2xtp2-{transport}")
        if whole and split:
            share = transfer_ms(split) / transfer_ms(whole)
            rows.append(aim_row(f"7b-2xtp2-{transport}", "transfer / that of 2x2", share, "<=", 0.55))
    best = min((line["result"]["seconds"]["median"] for line in lines
                if line["name"] == "7b-2x2-peers" and "peer" in line["result"]), default=None)
    if best and "7b-2x2-nccl" in results:
        share = transfer_ms(results["7b-2x2-nccl"]) / (1e3 * best)
        rows.append(aim_row("7b-2x2-nccl", "transfer / that of the best Python peer", share, "<=", 1))
    return rows


def markdown(path):
    syncs, events, peers, failures = [], [], [], []
    lines = list(objects_in(path))
    machine = "".join(line["machine"] for line in lines if "machine" in line)
    lines = [line for line in lines if "machine" not in line]
    for line in lines:
        name, result = line["name"], line["result"]
        try:
            if "peer" in result:
                peers.append(peer_row(name, result))
            elif "ceiling" in result and "seconds" in result and isinstance(result["ceiling"], str):
                peers.append(ceiling_row(name, result))
            elif "seconds" in result:
                syncs.append(sync_row(name, result))
                if "late_joiner" in result or "fault" in result:
                    events.append(event_row(name, result))
            else:
                failures.append([name, line["exit_code"], str(result.get("error", "no result"))[:300].replace("\n", " ")])
        except (KeyError, TypeError) as error:
            failures.append([name, line["exit_code"], f"cannot be read: {error!r}"])
    parts = [f"{machine}; medians (least-largest)\n" if machine else ""]
    parts.append(table(SYNC_HEADINGS, syncs))
    parts.append(table(["case", "what", "noticed after, s", "serving after, s", "else"], events))
    parts.append(table(["peers and ceilings in Python", "way", "ms", "GB/s"], peers))
    parts.append(table(["case", "aim", "wanted", "got", "met"], aim_rows(lines)))
    parts.append(table(["failed", "exit code", "why"], failures))
    return "\n".join(part for part in parts if part)


def main(arguments):
    if len(arguments) == 4 and arguments[0] == "--collect":
        collect(*arguments[1:])
    elif len(arguments) == 2 and arguments[0] == "--machine":
        print(json.dumps({"machine": arguments[1]}))
    elif len(arguments) == 1 and not arguments[0].startswith("-"):
        print(markdown(arguments[0]))
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
