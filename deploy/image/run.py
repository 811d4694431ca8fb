#!/usr/bin/env python3
"""Runs an image that deploy/image/build.sh left in build/image/storage, as strictly as a pod of the Pod Security level
"restricted" runs: the image's own user, a read-only root, no capabilities, no new privileges, the container engines'
default system call filter, its own namespaces. Writable are /var/lib/syncopate, /tmp and /dev/shm, and nothing else.

usage: deploy/image/run.py [--state FOLDER] [--mount HOST:CONTAINER ...] [--network none|host] [--image NAME]
                           [--command PATH] [--] [ARGUMENT ...]

ARGUMENTs follow the image's entry point, or PATH. --state keeps /var/lib/syncopate in FOLDER, which is given to the
image's user; without it it is in memory and goes with the container. --mount shows a file or folder read-only.
SIGTERM and SIGINT are passed on. Exits as the command does. Needs root, buildah and runc, and no daemon.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
STORAGE = ROOT / "build/image/storage"
BUILDAH = ["buildah", "--root", str(STORAGE), "--runroot", str(ROOT / "build/image/run")]
SECCOMP = pathlib.Path("/usr/share/containers/seccomp.json")


def buildah(*arguments):
    done = subprocess.run([*BUILDAH, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"run: buildah {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def seccomp():
    """The container engines' default filter for a process without capabilities, in the runtime's format."""

    def applies(rule):
        includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
        return not includes.get("caps") and "amd64" in includes.get("arches", ["amd64"]) and not excludes.get("arches")

    profile = json.loads(SECCOMP.read_text())
    fields = ("names", "action", "errnoRet", "args")
    rules = [{key: rule[key] for key in fields if rule.get(key)} for rule in profile["syscalls"] if applies(rule)]
    for rule in rules:
        rule.setdefault("names", rule.pop("name", None))
    result = {"defaultAction": profile["defaultAction"], "architectures": ["SCMP_ARCH_X86_64"], "syscalls": rules}
    if "defaultErrnoRet" in profile:
        result["defaultErrnoRet"] = profile["defaultErrnoRet"]
    return result


def mounts(arguments, uid):
    tmpfs = ["nosuid", "nodev", "noexec"]
    result = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"]},
        {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": [*tmpfs, "mode=1777"]},
        {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": [*tmpfs, "mode=1777"]},
        {"destination": "/etc/hosts", "type": "bind", "source": "/etc/hosts", "options": ["bind", "ro"]},
    ]
    if arguments.state is None:
        options = [*tmpfs, f"uid={uid}", f"gid={uid}", "mode=700"]
        result.append({"destination": "/var/lib/syncopate", "type": "tmpfs", "source": "tmpfs", "options": options})
    else:
        arguments.state.mkdir(parents=True, exist_ok=True)
        os.chown(arguments.state, uid, uid)
        binding = {"type": "bind", "source": str(arguments.state.resolve()), "options": ["bind", "rw", *tmpfs]}
        result.append({"destination": "/var/lib/syncopate", **binding})
    for mount in arguments.mount:
        source, _, destination = mount.partition(":")
        if not destination.startswith("/") or not os.path.exists(source):
            sys.exit(f"run: --mount {mount}: HOST:CONTAINER, an existing path and an absolute one")
        binding = {"type": "bind", "source": os.path.realpath(source), "options": ["bind", "ro"]}
        result.append({"destination": destination, **binding})
    return result


def runtime_config(root, image, arguments):
    """config.json of the OCI runtime specification for one run of `image`."""
    user = re.fullmatch(r"([0-9]+):\1", image.get("User", ""))
    if not user:
        sys.exit(f"run: the image's user is '{image.get('User', '')}', not a numeric uid:gid")
    uid = int(user[1])
    command = [arguments.command] if arguments.command else image.get("Entrypoint") or []
    namespaces = ["pid", "ipc", "uts", "mount"] + (["network"] if arguments.network == "none" else [])
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": uid, "gid": uid},
            "args": command + (arguments.argument or image.get("Cmd") or []),
            "env": image.get("Env") or [],
            "cwd": image.get("WorkingDir") or "/",
            "capabilities": {kind: [] for kind in ("bounding", "effective", "inheritable", "permitted", "ambient")},
            "noNewPrivileges": True,
        },
        "root": {"path": root, "readonly": True},
        "hostname": "syncopate",
        "mounts": mounts(arguments, uid),
        "linux": {"namespaces": [{"type": kind} for kind in namespaces], "seccomp": seccomp()},
    }


def run(arguments):
    container = buildah("from", "--pull-never", arguments.image)
    name = f"syncopate-{os.getpid()}"
    with contextlib.ExitStack() as undo:
        undo.callback(buildah, "rm", container)
        bundle = pathlib.Path(undo.enter_context(tempfile.TemporaryDirectory()))
        image = json.loads(buildah("inspect", "--type", "image", arguments.image))["OCIv1"]["config"]
        config = runtime_config(buildah("mount", container), image, arguments)
        (bundle / "config.json").write_text(json.dumps(config))
        runc = ["runc", f"--root={bundle}/state"]
        process = subprocess.Popen([*runc, "run", f"--bundle={bundle}", name], start_new_session=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: subprocess.run([*runc, "kill", name, str(number)], check=False))
        return process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", default="")
    parser.add_argument("--state", type=pathlib.Path)
    parser.add_argument("--mount", action="append", default=[], metavar="HOST:CONTAINER")
    parser.add_argument("--network", choices=("none", "host"), default="none")
    parser.add_argument("--command", metavar="PATH")
    parser.add_argument("argument", nargs=argparse.REMAINDER)
    given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)
    arguments = parser.parse_args(given[:end])
    arguments.argument += given[end + 1:]
    if os.geteuid() != 0:
        sys.exit("run: needs root, to make the namespaces and to mount the image")
    for tool in ("buildah", "runc"):
        if shutil.which(tool) is None:
            sys.exit(f"run: needs {tool}; scripts/bootstrap.sh --tests installs it")
    if not arguments.image:
        project = (ROOT / "CMakeLists.txt").read_text()
        version = re.search(r"^project\(syncopate VERSION ([0-9.]+)", project, re.MULTILINE)
        arguments.image = f"localhost/syncopate:{version[1]}-cpu"
    sys.exit(run(arguments))


if __name__ == "__main__":
    main()
