#!/usr/bin/env python3
"""usage: deploy/grafana/generate.py [FOLDER]

Writes the four dashboards as FOLDER/*.json, by default beside this file. Change them here, not in the JSON: a test
compares. What a panel may look like: panels.py.
"""

import json
import pathlib
import sys

from panels import dashboard, heatmap, lines, number, row, table

PHASES = [
    ("stage", "the trainer copies the weights into its send arena"),
    ("prepare", "all members of an attempt agree on what will be sent"),
    ("transfer", "bytes move into the receiver's shadow, while it generates"),
    ("verify", "the receiver compares digests and looks for values that are not finite"),
    ("install", "the receiver takes the version into use between two decode steps"),
    ("total", "from the command to the installed version"),
]
GOOD = "ok|relabelled|superseded"


def quantiles(metric, matchers="", by=""):
    """Targets for the 50th, 90th and 99th percentile of a histogram of the picked run."""
    labels = ", ".join(filter(None, [by, "le"]))
    selector = ", ".join(filter(None, ["SEL", matchers]))
    rate = f"sum by ({labels}) (rate({metric}_bucket{{{selector}}}[$__rate_interval]))"
    return [(f"histogram_quantile({q}, {rate})", f"p{q * 100:.0f}") for q in (0.5, 0.9, 0.99)]


def buckets(metric, matchers=""):
    selector = ", ".join(filter(None, ["SEL", matchers]))
    return f"sum by (le) (increase({metric}_bucket{{{selector}}}[$__rate_interval]))"


def weight_sync():
    duration = "syncopate_weight_sync_duration_seconds"
    panels = [
        row("Now"),
        number("Published version", "Step of the newest version that the synchronizer knows", "none",
               'max(syncopate_policy_version_step{SEL, component="synchronizer"})'),
        number("Behind", "Steps between the newest version and the newest that any rollouter serves", "none",
               "max(run:syncopate_policy_version_step:behind{SEL})", thresholds=((None, "green"), (5, "orange"))),
        number("Age of the last sync", "Time since a rollouter last took a version into use", "s",
               "max(run:syncopate_weight_sync_age:seconds{SEL})",
               thresholds=((None, "green"), (300, "orange"), (900, "red"))),
        number("p50 of the last 5 minutes", "Median of whole syncs, from the command to the installed version", "s",
               f"max(run:{duration}:p50_5m{{SEL}})"),
        number("p99 of the last 5 minutes", "99th percentile of whole syncs", "s", f"max(run:{duration}:p99_5m{{SEL}})"),
        number("Failed in 10 minutes", "Share of syncs that ended with an error; those that gave way to a newer version "
               "have not failed", "percentunit", "max(run:syncopate_weight_syncs_failed:ratio_10m{SEL})",
               thresholds=((None, "green"), (0.01, "orange"), (0.1, "red"))),
        row("Where the time goes"),
        lines("Mean by phase", "Parts of one sync stacked: their sum is the mean sync. A phase that did not run is 0, "
              "never an estimate.", "s",
              [(f'sum by (phase) (rate({duration}_sum{{SEL, phase!="total"}}[$__rate_interval]))'
                f' / scalar(sum(rate({duration}_count{{SEL, phase="total"}}[$__rate_interval])))', "{{phase}}")],
              stack=True, low=0),
        lines("p99 against what is usual", "The alert SyncopateSyncSlow compares these two: the 99th percentile of five "
              "minutes, and the median of the same over six hours", "s",
              [(f"run:{duration}:p99_5m{{SEL}}", "p99 of 5 minutes"),
               (f"run:{duration}:p99_baseline_6h{{SEL}}", "usual")], low=0),
    ]
    for phase, meaning in PHASES:
        panels.append(heatmap(f"Syncs by duration: {phase}", f"How many syncs took how long: {meaning}", "s",
                              buckets(duration, f'phase="{phase}"'), height=5))
        panels.append(lines(f"Percentiles: {phase}", f"Percentiles over all receivers: {meaning}", "s",
                            quantiles(duration, f'phase="{phase}"'), height=5, low=0))
    panels += [
        row("Bytes"),
        lines("Bandwidth by receiver", "Bytes received over the time that receiving took, connecting and verifying left "
              "out: what the transport reaches while it moves", "Bps",
              [("rate(syncopate_weight_received_bytes_total{SEL}[$__rate_interval])"
                " / (rate(syncopate_weight_receive_seconds_total{SEL}[$__rate_interval]) > 0)", "{{instance}}")], low=0),
        lines("Bytes sent, by kind", "Averaged over all the time, quiet or not: full weights, adapters, deltas", "Bps",
              [("sum by (kind) (rate(syncopate_weight_sync_bytes_total{SEL}[$__rate_interval]))", "{{kind}}")],
              stack=True, low=0),
        row("What it costs generation"),
        heatmap("Pauses of generation", "How long one install kept the decode loop from running", "s",
                buckets("syncopate_generation_pause_seconds"), height=7),
        lines("Pauses of generation, percentiles", "Percentiles over all rollouters", "s",
              quantiles("syncopate_generation_pause_seconds"), height=7, low=0),
        row("What became of them"),
        lines("Syncs by result", "Syncs to one receiver that ended. superseded: a newer version was published first. "
              "relabelled: the receiver had these bits", "ops",
              [("sum by (result) (rate(syncopate_weight_syncs_total{SEL, result=~\"" + GOOD +
                "\"}[$__rate_interval]))", "{{result}}")], stack=True, low=0),
        lines("Failures by reason", "Attempts that ended with an error, by the reason of the error; they are repeated",
              "short",
              [("sum by (result) (increase(syncopate_weight_syncs_total{SEL, result!~\"" + GOOD +
                "\"}[$__rate_interval]))", "{{result}}")], bars=True, stack=True, low=0),
        row("Versions"),
        lines("Version by rollouter", "Step of the version that each rollouter serves, with the trainer's own and the "
              "newest published", "none",
              [('syncopate_policy_version_step{SEL, component="rollouter"}', "{{instance}}"),
               ('max(syncopate_policy_version_step{SEL, component="trainer"})', "trainer"),
               ('max(syncopate_policy_version_step{SEL, component="synchronizer"})', "published")], step=True),
        lines("Steps behind the newest, by rollouter", "How far each rollouter is behind the newest published version",
              "none",
              [('clamp_min(scalar(max(syncopate_policy_version_step{SEL, component="synchronizer"}))'
                ' - syncopate_policy_version_step{SEL, component="rollouter"}, 0)', "{{instance}}"),
               ("max(syncopate_staleness_bound_steps{SEL})", "staleness bound")], step=True, low=0),
    ]
    return dashboard("syncopate-weight-sync", "Syncopate / Weight sync",
                     "What moving a version to the rollouters costs, and whether it works", panels)


def run():
    staleness = "syncopate_sample_staleness_steps"
    panels = [
        row("Now"),
        number("Step", "Training steps behind the trainer's policy", "none",
               'max(syncopate_policy_version_step{SEL, component="trainer"})'),
        number("Reward", "Mean reward of the last batch", "none", "max(syncopate_reward_mean{SEL})", decimals=3),
        number("Exact answers", "Share of exact answers in the last evaluation", "percentunit",
               "max(syncopate_eval_exact_ratio{SEL})"),
        number("Steps per minute", "Over the last five minutes", "none", "60 * max(run:syncopate_steps:rate_5m{SEL})",
               decimals=1),
        number("Trainer idle", "Share of the last five minutes that it waited for answers", "percentunit",
               "max(run:syncopate_trainer_idle:ratio_5m{SEL})", thresholds=((None, "green"), (0.25, "orange"), (0.5, "red"))),
        number("Rollouters idle", "Share of the last five minutes that they had nothing to decode, on average",
               "percentunit", "max(run:syncopate_rollouter_idle:ratio_5m{SEL})",
               thresholds=((None, "green"), (0.5, "orange"), (0.9, "red"))),
        row("Learning"),
        lines("Reward by batch", "Mean with one standard deviation to both sides, and of evaluations", "none",
              [("syncopate_reward_mean{SEL}", "batch"),
               ("syncopate_reward_mean{SEL} + syncopate_reward_std{SEL}", "batch + 1 sd"),
               ("syncopate_reward_mean{SEL} - syncopate_reward_std{SEL}", "batch - 1 sd"),
               ("syncopate_eval_reward_mean{SEL}", "evaluation")]),
        lines("Evaluation: exact answers", "Greedy answers to prompts of their own", "percentunit",
              [("syncopate_eval_exact_ratio{SEL}", "exact")], step=True, low=0, high=1),
        lines("Loss", "Policy loss of each step; its sign and size say little, jumps do", "none",
              [("syncopate_loss{SEL}", "loss")], width=8),
        lines("KL and entropy", "Divergence between behaviour and current policy, and entropy of the policy, in nats",
              "none", [("syncopate_kl{SEL}", "KL"), ("syncopate_entropy{SEL}", "entropy")], width=8, low=0),
        lines("Gradient norm", "Before clipping", "none", [("syncopate_gradient_norm{SEL}", "norm")], width=8, low=0),
        lines("What the loss leaves out", "Shares of each batch: tokens that were clipped, tokens that the off-policy "
              "correction rejected, groups whose rewards were all equal", "percentunit",
              [("syncopate_clip_ratio{SEL}", "clipped"), ("syncopate_rejected_ratio{SEL}", "rejected"),
               ("syncopate_zero_variance_ratio{SEL}", "no variance")], width=8, low=0, high=1),
        lines("Effective samples", "(mean w)^2 / mean(w^2) of the importance weights: 1 on policy, low when a few samples "
              "carry the batch", "percentunit", [("syncopate_effective_sample_ratio{SEL}", "effective share")], width=8,
              low=0, high=1),
        lines("Length of answers", "Mean of each batch in tokens", "none",
              [("syncopate_response_tokens_mean{SEL}", "tokens")], width=8, low=0),
        row("Staleness"),
        heatmap("Staleness of trained samples", "Step at use minus step of the version that made the oldest token", "none",
                buckets(staleness), height=8),
        lines("Mean staleness and the bound", "The target sets the mean; the bound is never exceeded", "none",
              [("run:syncopate_sample_staleness_steps:mean_5m{SEL}", "mean of 5 minutes"),
               ("max(syncopate_staleness_bound_steps{SEL})", "bound")], low=0),
        lines("Samples at the bound", "Share of trained samples that were as old as the bound allows", "percentunit",
              [("run:syncopate_samples_at_staleness_bound:ratio_5m{SEL}", "at the bound")], low=0, high=1),
        number("Tokens beyond the bound", "Trained tokens older than the bound: anything but 0 is a defect", "none",
               "sum(increase(syncopate_staleness_bound_violations_total{SEL}[$__range]))", width=12, height=8,
               thresholds=((None, "green"), (0.5, "red"))),
        row("Who waits for whom"),
        lines("Idle shares", "Both near 0 is the aim; the higher one says which side to make smaller", "percentunit",
              [("sum(rate(syncopate_trainer_phase_seconds_total{SEL, phase=\"idle\"}[$__rate_interval]))"
                " / (sum(rate(syncopate_trainer_phase_seconds_total{SEL}[$__rate_interval])) > 0)", "trainer"),
               ("sum(rate(syncopate_rollouter_phase_seconds_total{SEL, phase=\"idle\"}[$__rate_interval]))"
                " / (sum(rate(syncopate_rollouter_phase_seconds_total{SEL}[$__rate_interval])) > 0)", "rollouters")],
              low=0, high=1),
        lines("What the trainer does", "Time of its step thread by phase; the phases add up", "percentunit",
              [("sum by (phase) (rate(syncopate_trainer_phase_seconds_total{SEL}[$__rate_interval]))"
                " / scalar(sum(rate(syncopate_trainer_phase_seconds_total{SEL}[$__rate_interval])) > 0)", "{{phase}}")],
              stack=True, low=0),
        lines("Groups under way", "Leased: rollouters work on them. Queued: they wait for the trainer. The limit keeps "
              "them from growing old", "none",
              [("sum(syncopate_leased_groups{SEL})", "leased"), ("sum(syncopate_queue_groups{SEL})", "queued"),
               ("sum(syncopate_outstanding_groups_limit{SEL})", "limit")], low=0),
        lines("Groups by outcome", "What became of groups", "ops",
              [("sum by (outcome) (rate(syncopate_groups_total{SEL}[$__rate_interval]))", "{{outcome}}")], stack=True,
              low=0),
        row("Work"),
        lines("Tokens", "Generated by all rollouters, and trained", "ops",
              [("sum(rate(syncopate_generated_tokens_total{SEL}[$__rate_interval]))", "generated"),
               ("sum(rate(syncopate_trained_tokens_total{SEL}[$__rate_interval]))", "trained")], low=0),
        lines("Steps", "Training steps", "ops", [("sum(rate(syncopate_steps_total{SEL}[$__rate_interval]))", "steps")],
              low=0),
        lines("Checkpoints", "Saved and failed", "short",
              [("sum by (result) (increase(syncopate_checkpoints_total{SEL}[$__rate_interval]))", "{{result}}")],
              bars=True, stack=True, low=0),
        lines("Age of the last checkpoint", "What a crash would cost, at most, in time; the log replays it", "s",
              [("time() - (syncopate_checkpoint_last_success_timestamp_seconds{SEL} > 0)", "age")], low=0),
    ]
    return dashboard("syncopate-run", "Syncopate / Run", "Whether the policy learns, and what holds the run up", panels)


def rollouters():
    mine = 'SEL, instance=~"$rollouter"'
    panels = [
        row("Now"),
        number("Alive", "Rollouters that the synchronizer hears from", "none",
               'max(syncopate_members_alive{SEL, role="rollouter"})'),
        number("Tokens per second", "Generated by the picked rollouters", "none",
               f"sum(rate(syncopate_generated_tokens_total{{{mine}}}[$__rate_interval]))", decimals=0),
        number("Running", "Sequences that are being decoded", "none", f"sum(vllm:num_requests_running{{{mine}}})"),
        number("Waiting", "Sequences that wait for a slot", "none", f"sum(vllm:num_requests_waiting{{{mine}}})"),
        number("Idle", "Share of the last five minutes without anything to decode", "percentunit",
               f"avg(instance:syncopate_rollouter_idle:ratio_5m{{{mine}}})"),
        number("Quarantines", "Times that a rollouter was refused further prompts because its answers were of no use", "none",
               "sum(increase(syncopate_rollouter_quarantines_total{SEL}[$__range]))",
               thresholds=((None, "green"), (0.5, "red"))),
        row("The engine, by vLLM's names"),
        lines("Sequences running", "Being decoded; autoscalers made for vLLM read this name", "none",
              [(f"vllm:num_requests_running{{{mine}}}", "{{instance}}")], width=8, low=0),
        lines("Sequences waiting", "Waiting for a slot", "none",
              [(f"vllm:num_requests_waiting{{{mine}}}", "{{instance}}")], width=8, low=0),
        lines("KV cache in use", "Share of the cache", "percentunit",
              [(f"vllm:kv_cache_usage_perc{{{mine}}}", "{{instance}}")], width=8, low=0, high=1),
        row("Work"),
        lines("Tokens", "Generated by each", "ops",
              [(f"rate(syncopate_generated_tokens_total{{{mine}}}[$__rate_interval])", "{{instance}}")], stack=True, low=0),
        lines("Groups", "Finished, scored and sent to the trainer", "ops",
              [(f"rate(syncopate_groups_submitted_total{{{mine}}}[$__rate_interval])", "{{instance}}")], stack=True,
              low=0),
        lines("Idle share", "Time of the decode loop without work", "percentunit",
              [(f'rate(syncopate_rollouter_phase_seconds_total{{{mine}, phase="idle"}}[$__rate_interval])',
                "{{instance}}")], low=0, high=1),
        lines("Memory by use", "Weights and KV cache of all picked rollouters", "bytes",
              [(f"sum by (kind) (syncopate_rollouter_memory_bytes{{{mine}}})", "{{kind}}")], stack=True, low=0),
        row("Weights"),
        lines("Version", "Step of the version that each serves", "none",
              [(f'syncopate_policy_version_step{{{mine}, component="rollouter"}}', "{{instance}}")], step=True),
        lines("Installs", "Versions taken into use", "ops",
              [(f"rate(syncopate_installs_total{{{mine}}}[$__rate_interval])", "{{instance}}")], low=0),
        lines("Mean pause by rollouter", "How long one install kept the decode loop from running, on average", "s",
              [(f"rate(syncopate_generation_pause_seconds_sum{{{mine}}}[$__rate_interval])"
                f" / (rate(syncopate_generation_pause_seconds_count{{{mine}}}[$__rate_interval]) > 0)", "{{instance}}")],
              low=0),
        lines("Bandwidth", "Bytes received over the time that receiving took", "Bps",
              [(f"rate(syncopate_weight_received_bytes_total{{{mine}}}[$__rate_interval])"
                f" / (rate(syncopate_weight_receive_seconds_total{{{mine}}}[$__rate_interval]) > 0)", "{{instance}}")],
              low=0),
    ]
    return dashboard("syncopate-rollouters", "Syncopate / Rollouters", "What each rollouter does", panels,
                     per_rollouter=True)


def daemons():
    panels = [
        row("Now"),
        number("Daemons that answer", "Targets of this run that were scraped", "none", 'sum(up{SEL, job="syncopate"})'),
        number("Daemons that do not", "Targets of this run that could not be scraped", "none",
               'sum(up{SEL, job="syncopate"} == bool 0)', thresholds=((None, "green"), (1, "red"))),
        number("Restarts", "In the time that is shown", "none",
               'sum(resets(process_cpu_seconds_total{SEL, job="syncopate"}[$__range]))',
               thresholds=((None, "green"), (1, "orange"))),
        number("Trainers alive", "Ranks that the synchronizer hears from", "none",
               'max(syncopate_members_alive{SEL, role="trainer"})', thresholds=((None, "red"), (1, "green"))),
        number("Rollouters alive", "Rollouters that the synchronizer hears from", "none",
               'max(syncopate_members_alive{SEL, role="rollouter"})', thresholds=((None, "red"), (1, "green"))),
        number("Calls that failed", "Share of gRPC calls that ended with an error that is ours: Internal, Unknown, "
               "DataLoss", "percentunit",
               'sum(rate(grpc_server_handled_total{SEL, grpc_code=~"Internal|Unknown|DataLoss"}[$__rate_interval]))'
               " / (sum(rate(grpc_server_started_total{SEL}[$__rate_interval])) > 0)",
               thresholds=((None, "green"), (0.001, "orange"), (0.01, "red"))),
        table("What runs", "Version of each daemon", "none", "syncopate_build_info{SEL}",
              [("component", "Component"), ("instance", "Instance"), ("version", "Version")]),
        row("Processes"),
        lines("CPU", "Cores in use", "none",
              [('rate(process_cpu_seconds_total{SEL, job="syncopate"}[$__rate_interval])', "{{instance}}")], low=0),
        lines("Memory", "Resident", "bytes", [('process_resident_memory_bytes{SEL, job="syncopate"}', "{{instance}}")],
              low=0),
        lines("Memory of the trainer's tensors", "In use, and held by the allocator", "bytes",
              [("syncopate_memory_allocated_bytes{SEL}", "in use"), ("syncopate_memory_reserved_bytes{SEL}", "held")],
              low=0),
        lines("GPU memory by owner", "What each daemon calls its own, context and libraries included; 0 without a GPU", "bytes",
              [('syncopate_card_memory_bytes{SEL, owner!="others"} or on() 0 * sum(up{SEL, job="syncopate"})',
                "{{instance}} {{owner}}")], width=24, stack=True, low=0),
        lines("File descriptors", "Open, as a share of those allowed", "percentunit",
              [('process_open_fds{SEL, job="syncopate"} / process_max_fds{SEL, job="syncopate"}', "{{instance}}")],
              low=0),
        lines("Threads", "Of each process", "none", [('process_threads{SEL, job="syncopate"}', "{{instance}}")], low=0),
        lines("Up", "1 while a daemon answers on its metrics port", "none",
              [('up{SEL, job="syncopate"}', "{{instance}}")], step=True, low=0, high=1),
        row("gRPC"),
        lines("Calls", "Begun, by method", "reqps",
              [("sum by (grpc_method) (rate(grpc_server_started_total{SEL}[$__rate_interval]) > 0)", "{{grpc_method}}")],
              low=0),
        lines("Calls by outcome", "Ended, by code; streams that a client left count as Canceled", "reqps",
              [("sum by (grpc_code) (rate(grpc_server_handled_total{SEL}[$__rate_interval])) > 0", "{{grpc_code}}")],
              stack=True, low=0),
        lines("Duration of unary calls, p99", "By method", "s",
              [('histogram_quantile(0.99, sum by (grpc_method, le) (rate(grpc_server_handling_seconds_bucket{SEL, '
                'grpc_type="unary"}[$__rate_interval]))) >= 0', "{{grpc_method}}")], low=0),
        lines("Streams that are open", "Calls begun less calls ended, by method", "none",
              [('sum by (grpc_method) (grpc_server_started_total{SEL, grpc_type=~"bidi_stream|server_stream"})'
                ' - sum by (grpc_method) (grpc_server_handled_total{SEL, grpc_type=~"bidi_stream|server_stream"})',
                "{{grpc_method}}")], low=0),
        row("Scraping and certificates"),
        lines("Duration of scrapes", "How long a daemon took to answer on its metrics port", "s",
              [('scrape_duration_seconds{SEL, job="syncopate"}', "{{instance}}")], low=0),
        lines("Certificates expire in", "Left of each daemon's certificate; nothing without TLS", "s",
              [("(syncopate_certificate_expiry_timestamp_seconds{SEL} > 0) - time()", "{{instance}}")], low=0),
    ]
    return dashboard("syncopate-daemons", "Syncopate / Daemons", "Whether the processes are well", panels)


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    for made in (weight_sync(), run(), rollouters(), daemons()):
        name = made["uid"].removeprefix("syncopate-") + ".json"
        (folder / name).write_text(json.dumps(made, indent=2) + "\n")


if __name__ == "__main__":
    main()
