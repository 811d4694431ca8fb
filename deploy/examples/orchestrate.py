#!/usr/bin/env python3
"""Steers a live run over gRPC, as an orchestrator would: no generated code, the daemons tell their interface.

    pip install grpcio grpcio-reflection
    orchestrate.py --synchronizer 127.0.0.1:7070 --start 'syncopate-rollouter run.yaml rollouter.name=extra'

Waits for steps, pauses the trainer, reads the versions, syncs the weights, takes a checkpoint, starts one more rollouter
and waits until it serves, resumes, drains another one and sees the run go on without it. Prints one JSON object for each
thing done. The class Run is made to be copied: all it needs to know is where the synchronizer is.

With mTLS give --tls-ca, --tls-cert and --tls-key of a certificate of role admin, or --tls-ca and --token-file, a file
as the daemons have it, of which the token of role admin is shown. The daemons' certificates need their role as a DNS
name, which scripts/make-certs.sh gives them: gRPC for Python insists on a name.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
import uuid

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

# It never got there, or its answer was lost. Unary calls may then be made again: they only read, or they carry a
# request_id, by which they act once.
RETRY = (grpc.StatusCode.UNAVAILABLE,)

# Who serves what.
ROLES = {"SynchronizerService": "synchronizer", "TrainerService": "trainer", "RolloutService": "rollouter"}


class Service:
    """The calls of one gRPC service as methods: service.GetStatus(field=value, timeout=seconds)."""

    def __init__(self, channel, name):
        pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        self._channel = channel
        self._service = pool.FindServiceByName("syncopate.v1." + name)

    def __getattr__(self, name):
        call = self._service.methods_by_name[name]
        request = message_factory.GetMessageClass(call.input_type)
        response = message_factory.GetMessageClass(call.output_type)
        make = self._channel.unary_stream if call.server_streaming else self._channel.unary_unary
        invoke = make(f"/{self._service.full_name}/{name}", request.SerializeToString, response.FromString)
        acts = "request_id" in call.input_type.fields_by_name

        def method(timeout=10.0, **fields):
            if acts:
                fields.setdefault("request_id", str(uuid.uuid4()))
            deadline = time.monotonic() + timeout
            pause = 0.1
            while True:
                left = deadline - time.monotonic()
                try:
                    return invoke(request(**fields), timeout=left)
                except grpc.RpcError as error:
                    if call.server_streaming or error.code() not in RETRY or left <= 2 * pause:
                        raise
                time.sleep(pause)
                pause = min(2 * pause, 2.0)

        return method


class Run:
    """One run. Members come and go, so where they are is asked of the synchronizer each time."""

    def __init__(self, synchronizer, connect):
        self._connect = connect  # (address, role of the daemon there) -> grpc.Channel
        self._services = {}
        self.started = []  # processes of scale_up
        self.synchronizer = self._service(synchronizer, "SynchronizerService")

    def _service(self, address, name):
        if (address, name) not in self._services:
            self._services[address, name] = Service(self._connect(address, ROLES[name]), name)
        return self._services[address, name]

    def members(self, role):
        """Those of "TRAINER" or "ROLLOUTER" that are alive, the first rank of each, by name."""
        answer = json_format.MessageToDict(
            self.synchronizer.ListMembers(), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        alive = [m for m in answer["members"] if m["state"] == "MEMBER_STATE_ALIVE"]
        ours = [m for m in alive if m["member"]["role"] == "ROLE_" + role and m["member"]["rank"] == 0]
        return {m["member"]["replica_id"]: m for m in ours}

    @property
    def trainer(self):
        for member in self.members("TRAINER").values():
            return self._service(member["address"], "TrainerService")
        raise LookupError("no trainer is alive")

    def rollouter(self, name):
        return self._service(self.members("ROLLOUTER")[name]["address"], "RolloutService")

    def wait(self, what, done, timeout):
        """Asks `done` until it answers something true, which it returns. For facts that no stream tells."""
        deadline = time.monotonic() + timeout
        while not (answer := done()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not come about within {timeout:.0f} s")
            time.sleep(0.2)
        return answer

    def wait_for_step(self, step, timeout):
        """Follows the trainer's steps until `step` is done; the record of that step or a later one."""
        for answer in self.trainer.WatchSteps(last=1, timeout=timeout):
            record = json.loads(answer.metrics_json)
            if record["kind"] == "step" and record["step"] >= step:
                return record
        raise RuntimeError(f"the run ended before step {step}")

    def step(self):
        return self.trainer.GetStatus().version.step

    def versions(self):
        """Of all published ones, newest first: (epoch, step, rollouters that serve it)."""
        return [(v.version.epoch, v.version.step, v.served_by) for v in self.synchronizer.ListVersions().versions]

    def pause(self, timeout):
        """No step is made from when this returns until resume."""
        self.trainer.Pause()
        self.wait("the pause", lambda: self.trainer.GetStatus().state == "paused", timeout)

    def sync(self, timeout):
        """Brings the newest version to every rollouter; returns (epoch, step) of it."""
        version = self.synchronizer.TriggerSync().version
        newest = (version.epoch, version.step)

        def all_serve_it():
            serving = [m.get("serving", {}) for m in self.members("ROLLOUTER").values()]
            return all((int(v.get("epoch", 0)), int(v.get("step", 0))) >= newest for v in serving)

        self.wait(f"the sync of {newest}", all_serve_it, timeout)
        return newest

    def scale_up(self, command, timeout):
        """Starts one more rollouter; returns its name once it serves weights."""
        before = set(self.members("ROLLOUTER"))
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        self.started.append(process)

        def newcomer():
            if process.poll() is not None:
                raise RuntimeError(f"{command[0]} exited with {process.returncode}")
            members = self.members("ROLLOUTER")
            return [name for name in set(members) - before if int(members[name].get("serving", {}).get("epoch", 0)) > 0]

        return self.wait("the new rollouter", newcomer, timeout)[0]

    def stop_started(self, timeout):
        """Stops the rollouters that scale_up started: they hand their work back and leave. Their exit codes."""
        for process in self.started:
            process.terminate()
        codes = [process.wait(timeout) for process in self.started]
        self.started.clear()
        return codes


def say(what, **facts):
    print(json.dumps({"did": what, **facts}), flush=True)


def tour(run, start, timeout):
    run.wait("a trainer", lambda: run.members("TRAINER"), timeout)
    rollouters = run.wait("a rollouter", lambda: sorted(run.members("ROLLOUTER")), timeout)
    say("looked", run_id=run.synchronizer.GetStatus().run_id, rollouters=rollouters)

    record = run.wait_for_step(run.step() + 2, timeout)
    say("waited for a step", step=record["step"], reward=record["reward_mean"])

    run.pause(timeout)
    paused_at = run.step()
    say("paused", step=paused_at)
    say("synced", version=run.sync(timeout))
    say("read the versions", versions=run.versions()[:5])
    say("took a checkpoint", name=run.trainer.SaveCheckpoint(timeout=timeout).name)

    added = run.scale_up(start, timeout) if start else None
    if added:
        say("started a rollouter", rollouter=added)
    say("resumed", step=run.step(), held=run.step() == paused_at)
    run.trainer.Resume()

    if added:
        drained = rollouters[0]
        run.rollouter(drained).Drain(timeout=timeout)
        say("drained", rollouter=drained, state=run.rollouter(drained).GetStatus().state)
    record = run.wait_for_step(run.step() + 3, timeout)
    say("saw it go on", step=record["step"])


def connector(options):
    """(address, role) -> channel, with what the command line says of certificates and tokens."""

    def read(path):
        with open(path, "rb") as file:
            return file.read()

    if not options.tls_ca:
        return lambda address, role: grpc.insecure_channel(address)
    # Two files or none: with a token no certificate is needed.
    own = (read(options.tls_key), read(options.tls_cert)) if options.tls_cert else (None, None)
    credentials = grpc.ssl_channel_credentials(read(options.tls_ca), *own)
    if options.token_file:
        tokens = [line.split() for line in read(options.token_file).decode().splitlines()]
        token = next(words[1] for words in tokens if words[:1] == ["admin"])
        credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(token))
    # Pods are dialled by address, so certificates name the role, not the host.
    return lambda address, role: grpc.secure_channel(address, credentials, [("grpc.ssl_target_name_override", role)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synchronizer", required=True, metavar="HOST:PORT")
    parser.add_argument("--start", type=shlex.split, default=[], metavar="COMMAND", help="starts one more rollouter")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="longest wait for one thing")
    parser.add_argument("--leave", action="store_true", help="let the started rollouter go on; else it is stopped")
    for name in ("--tls-ca", "--tls-cert", "--tls-key", "--token-file"):
        parser.add_argument(name, metavar="FILE")
    options = parser.parse_args()

    run = None
    try:
        run = Run(options.synchronizer, connector(options))
        tour(run, options.start, options.timeout)
    except grpc.RpcError as error:
        sys.exit(f"orchestrate: {error.code().name}: {error.details()}")
    except (LookupError, RuntimeError, TimeoutError) as error:
        sys.exit(f"orchestrate: {error}")
    finally:
        if run and run.started and not options.leave:
            say("stopped the rollouter", exit_codes=run.stop_started(options.timeout))


if __name__ == "__main__":
    main()
