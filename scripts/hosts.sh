#!/usr/bin/env bash
# usage: scripts/hosts.sh [--binaries FOLDER] [--keep FOLDER] [--plaintext] SCENARIO...
# Runs deploy/examples/reverse.yaml on four hosts that are network namespaces of this machine, each with an address, a /tmp
# and a loopback of its own; they share the run's folder alone:
#   10.77.0.1 sync    synchronizer
#   10.77.0.2 front   trainer ranks 0 and 1
#   10.77.0.3 mixed   trainer rank 2, rollouter 0 of two ranks; its clock is an hour ahead
#   10.77.0.4 far     rollouter 1 of two ranks
# Daemons use mutual TLS; --plaintext: none. SCENARIO is one of
#   demo               150 steps; must learn (eval.best at least 0.95)
#   cut HOST SECONDS   HOST's link is down for so long; ended trainers are resumed, and the run must go on
#   delay MS           each frame between hosts takes so long, one way
#   loss PERCENT       of the frames are lost
#   rate MBIT          megabits a second for each host, each way
#   ranks MBIT         no run: what calls between three ranks on three hosts cost at that rate, beside a star
#   ci                 a run that learns while `far` is cut for 2 s, then `mixed` for 20 s, after which it is resumed
#   table              all rows of the table in docs/operations.md, in their order; 22 minutes
# and writes a row of that table for each. What a run leaves on disk is judged: nothing that was acknowledged may be lost.
# Ends with 77 where namespaces cannot be made. Nothing outside the namespaces is changed, and all that was started ends
# with this script.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; }
fail() {
  echo "hosts: $*" >&2
  exit 1
}
skip() {
  echo "skipped: $*"
  exit 77
}

binaries=$root/build/release/bin
keep=
secured=true
while (($#)); do
  case $1 in
    --binaries) binaries=$(realpath "${2:?a folder must follow --binaries}"); shift ;;
    --keep) keep=${2:?a folder must follow --keep}; shift ;;
    --plaintext) secured=false ;;
    -h | --help) usage; exit 0 ;;
    -*) fail "unknown option $1; see --help" ;;
    *) break ;;
  esac
  shift
done
(($#)) || { usage >&2; exit 2; }

for program in ip tc unshare nsenter setpriv; do
  command -v "$program" > /dev/null || skip "there is no $program: install iproute2 and util-linux"
done

# ---- The table: each row by a run of this script.
if [[ $1 == table ]]; then
  [[ -x $binaries/syncopate-trainer ]] || fail "no programs in $binaries; scripts/build.sh makes them"
  options=(--binaries "$binaries")
  "$secured" || options+=(--plaintext)
  make_row() {  # SCENARIO...
    local name="$*"
    setpriv --pdeathsig KILL bash "$root/scripts/hosts.sh" "${options[@]}" ${keep:+--keep "$keep/${name// /-}"} "$@" || exit
  }
  printf '| %s | %s | %s | %s |\n' "what" "during it" "after it" "what ended" --- --- --- ---
  make_row demo
  for seconds in 2 20 200; do
    for host in sync front mixed far; do
      make_row cut "$host" "$seconds"
    done
  done
  for slow in "loss 1" "rate 10" "delay 100"; do
    # shellcheck disable=SC2086  # two words
    make_row $slow
  done
  exit 0
fi

# ---- The namespaces. The script runs itself again as the first process of a namespace of processes, so that everything
# that it starts ends with it, and of a network and mounts that disappear with the last of them.
if [[ -z ${SYNCOPATE_HOSTS_INSIDE:-} ]]; then
  unshare --net --mount --pid --fork --mount-proc ip link add name cable0 type veth peer name cable1 2> /dev/null ||
    skip "this user or this kernel cannot make network namespaces with veth devices"
  [[ -x $binaries/syncopate-trainer ]] || fail "no programs in $binaries; scripts/build.sh makes them"
  work=$(mktemp -d "$root/build/hosts-XXXXXX")
  options=(--binaries "$binaries")
  "$secured" || options+=(--plaintext)
  code=0
  # When this script is killed unshare is, too, and with it the first process of the namespace, and all others.
  SYNCOPATE_HOSTS_INSIDE=$work setpriv --pdeathsig KILL unshare --net --mount --pid --fork --kill-child --mount-proc \
    bash scripts/hosts.sh "${options[@]}" "$@" || code=$?
  if [[ -n $keep ]]; then
    mkdir -p "$keep" && cp -r "$work/." "$keep"
  fi
  rm -rf "$work"
  exit "$code"
fi

work=$SYNCOPATE_HOSTS_INSIDE
declare -A address=([sync]=10.77.0.1 [front]=10.77.0.2 [mixed]=10.77.0.3 [far]=10.77.0.4)
declare -A clock_shift=([sync]=0 [front]=0 [mixed]=3600 [far]=0)
declare -A host_pid=() daemon_pid=()
hosts=(sync front mixed far)
run=
overrides=()

make_certificates() {
  scripts/make-certs.sh "$work/certs" --roles "trainer rollouter synchronizer admin" > "$work/certs.log"
  security=("security.tls_cert=$work/certs/{role}.crt" "security.tls_key=$work/certs/{role}.key"
    "security.tls_ca=$work/certs/ca.crt")
}

# make_hosts [DELAY_MS LOSS_PERCENT]: with them each host is behind a forwarder.
make_hosts() {
  local host
  ip link add name switch0 type bridge
  ip link set switch0 up
  for host in "${hosts[@]}"; do
    # A checkout below /tmp stays where it is: it is mounted again over the new /tmp.
    unshare --net --mount bash -c 'mount --make-rprivate / && mount --bind "$1" /mnt && for place in /tmp /dev/shm; do
      mount -t tmpfs tmpfs "$place"; done && mkdir -p "$1" && mount --move /mnt "$1" && exec sleep infinity' bash "$root" &
    host_pid[$host]=$!
    if (($# == 2)); then
      "$binaries/syncopate-link-forwarder" "to-$host" "eth-$host" "$1" "$2" > "$work/forwarder-$host.log" 2>&1 &
      await 10 "the forwarder of $host" grep -qs ready "$work/forwarder-$host.log"
    else
      ip link add name "to-$host" type veth peer name "eth-$host"
    fi
    await 10 "the namespaces of $host" is_apart "${host_pid[$host]}"
    ip link set "to-$host" master switch0 up
    ip link set "eth-$host" netns "${host_pid[$host]}"
    on "$host" ip address add "${address[$host]}/24" dev "eth-$host"
    on "$host" ip link set "eth-$host" up
    on "$host" ip link set lo up
  done
}

remove_hosts() {
  local host
  for host in "${hosts[@]}"; do kill "${host_pid[$host]}"; done
  wait "${host_pid[@]}" 2> /dev/null || true
  # The devices that were in the namespaces go with these; the forwarders' go with their processes.
  jobs -p | xargs -r kill 2> /dev/null || true
  wait
  ip link del switch0
  for host in "${hosts[@]}"; do ip link del "to-$host" 2> /dev/null || true; done
}

is_apart() { [[ $(cat "/proc/$1/comm") == sleep ]]; }  # which follows the mounts
on() {
  local host=$1
  shift
  nsenter --target "${host_pid[$host]}" --net --mount -- "$@"
}

# await SECONDS WHAT COMMAND...: until the command succeeds.
await() {
  local until=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    ((SECONDS < until)) || fail "waited in vain for $what; the logs are in $work"
    sleep 0.1
  done
}

# ---- The daemons.

# start NAME HOST PROGRAM WORDS...
start() {
  local name=$1 host=$2 program=$3
  shift 3
  local clock=()
  if ((${clock_shift[$host]} != 0)); then
    clock=(env "LD_PRELOAD=$binaries/syncopate-shifted-clock.so" "SYNCOPATE_CLOCK_SHIFT=${clock_shift[$host]}")
  fi
  nsenter --target "${host_pid[$host]}" --net --mount -- "${clock[@]}" "$binaries/$program" "$@" \
    >> "$run/logs/$name.log" 2>&1 &
  daemon_pid[$name]=$!
}

start_trainer() {  # RANK HOST WORDS...
  local rank=$1 host=$2
  shift 2
  local words=("$work/run.yaml" "${overrides[@]}" "trainer.rank=$rank" "trainer.listen=${address[$host]}:$((7100 + rank))"
    "metrics.trainer_listen=127.0.0.1:0" --exit-on-completion "$@")
  ((rank == 0)) || words+=("trainer.rank0=${address[front]}:7100")
  start "trainer-$rank" "$host" syncopate-trainer "${words[@]}"
}

start_trainers() {
  start_trainer 0 front "$@"
  start_trainer 1 front "$@"
  start_trainer 2 mixed "$@"
}

start_rollouter() {  # INDEX HOST
  start "rollouter-$1" "$2" syncopate replica "$work/run.yaml" "${overrides[@]}" "rollouter.index=$1" \
    "rollouter.listen=${address[$2]}:0"
}

# start_run NAME WORDS...: all daemons of a run in a new folder.
start_run() {
  run=$work/$1
  shift
  mkdir -p "$run/logs"
  cp deploy/examples/reverse.yaml "$work/run.yaml"
  overrides=("run.dir=$run" trainer.world=3 rollout.tensor_parallel=2 run.rollouters=2 "run.seed=1" checkpoint.every_steps=10
    checkpoint.keep=1000  # the judge reads the whole history
    "synchronizer.address=${address[sync]}:7070" "$@")
  if "$secured"; then overrides+=("${security[@]}"); else overrides+=(run.insecure_bind=true); fi
  start synchronizer sync syncopate-synchronizer "$work/run.yaml" "${overrides[@]}"
  start_trainers
  start_rollouter 0 mixed
  start_rollouter 1 far
}

stop_run() {
  local name
  for name in "${!daemon_pid[@]}"; do kill "${daemon_pid[$name]}" 2> /dev/null || true; done
  for name in "${!daemon_pid[@]}"; do wait "${daemon_pid[$name]}" 2> /dev/null || true; done
  daemon_pid=()
}

is_running() { kill -0 "${daemon_pid[$1]}" 2> /dev/null; }
# code_of NAME: waits until it ends, and prints its exit code.
await_end() { # SECONDS NAME
  local until=$((SECONDS + $1))
  while is_running "$2"; do
    ((SECONDS < until)) || fail "$2 has not ended within $1 s"
    sleep 0.1
  done
  ended=0
  wait "${daemon_pid[$2]}" || ended=$?
}

last_step() {
  { tail -n 20 "$run/metrics.jsonl" 2> /dev/null || true; } | sed -n '/"kind":"step"/s/.*"step":\([0-9]*\).*/\1/p' | tail -n 1
}
has_step() { local at; at=$(last_step); (( ${at:-0} >= $1 )); }
await_step() { await "$1" "step $2" has_step "$2"; } # SECONDS STEP
best_of() { tr -d '\n ' < "$run/summary.json" | sed -n 's/.*"eval":{"best":\([0-9.]*\).*/\1/p'; }
now_ms() { date +%s%3N; }
row() { printf '| %s | %s | %s | %s |\n' "$@"; }
# What the run has left on disk must be whole.
judge() {
  "$binaries/syncopate-check-run" "$run" > "$run/verdict" 2>&1 || fail "the run is not whole: $(cat "$run/verdict")"
}

pull() { ip link set "to-$1" down; } # HOST
heal() { ip link set "to-$1" up; }

# ---- The scenarios.

learn() { # NAME WORDS...
  local begun name
  begun=$(now_ms)
  start_run "$@"
  await_end 400 trainer-0
  ((ended == 0)) || fail "the trainer ended with $ended: $(tail -n 3 "$run/logs/trainer-0.log")"
  for name in trainer-1 trainer-2; do
    await_end 20 "$name"
    ((ended == 0)) || fail "$name ended with $ended: $(tail -n 3 "$run/logs/$name.log")"
  done
  best=$(best_of)
  took=$(($(now_ms) - begun))
  stop_run
  judge
}

must_have_learned() { awk -v best="$best" 'BEGIN { exit !(best >= 0.95) }' || fail "eval.best is $best, below 0.95"; }

demo() {
  make_hosts
  learn demo run.steps=150
  must_have_learned
  row "nothing" "150 steps in $((took / 1000)) s, best $best" "" "no daemon ended"
  remove_hosts
}

slow() { # WORDS..., KIND VALUE
  local kind=$1 value=$2 what
  case $kind in
    # A frame passes two forwarders.
    delay) make_hosts $((value / 2)) 0 ;;
    loss) make_hosts 0 "$(awk -v whole="$value" 'BEGIN { print whole / 2 }')" ;;
    rate)
      make_hosts
      limit_rate "$value"
      ;;
  esac
  learn "$kind-$value" run.steps=40
  case $kind in
    delay) what="$value ms of delay, one way" ;;
    loss) what="$value % of the frames are lost" ;;
    rate) what="$value Mbit/s a host, each way" ;;
  esac
  row "$what" "40 steps in $((took / 1000)) s" "" "no daemon ended"
  remove_hosts
}

limit_rate() { # MBIT
  local host
  for host in "${hosts[@]}"; do
    tc qdisc add dev "to-$host" root tbf rate "${1}mbit" burst 32k latency 400ms
    on "$host" tc qdisc add dev "eth-$host" root tbf rate "${1}mbit" burst 32k latency 400ms
  done
}

ranks_cost() { # MBIT
  local rank=0 host program=$binaries/ranks_bench bench=()
  [[ -x $program ]] || fail "no $program; scripts/build.sh release ranks_bench makes it"
  make_hosts
  limit_rate "$1"
  for host in front mixed far; do
    on "$host" "$program" "$rank" "${address[front]}:7200" "${address[mixed]}:7200" "${address[far]}:7200" &
    bench+=("$!")
    rank=$((rank + 1))
  done
  for rank in "${bench[@]}"; do wait "$rank"; done
  remove_hosts
}

# Says what became of the trainer's group, and resumes it if it ended: sets `outcome`.
resume_if_ended() {
  local name codes=
  if is_running trainer-0; then
    outcome="no daemon ended"
    return
  fi
  for name in trainer-0 trainer-1 trainer-2; do
    await_end 90 "$name"
    codes+=" $ended"
  done
  outcome="the trainer's ranks, with$codes; resumed"
  [[ $codes == *" 4"* ]] || fail "the trainer's ranks ended with$codes, none of them with 4"
  start_trainers run.resume=true
}

restart_rollouters() {
  local index host
  for index in 0 1; do
    host=mixed
    ((index == 0)) || host=far
    is_running "rollouter-$index" && continue
    await_end 1 "rollouter-$index"
    outcome+=", rollouter $index ended with $ended and was started again"
    start_rollouter "$index" "$host"
  done
  if ! is_running synchronizer; then
    outcome+=", the synchronizer ended and was started again"
    start synchronizer sync syncopate-synchronizer "$work/run.yaml" "${overrides[@]}"
  fi
}

cut_for() { # HOST SECONDS
  local host=$1 seconds=$2 before during healed back
  make_hosts
  start_run "cut-$host-$seconds" run.steps=1000000 eval.every_steps=0
  await_step 120 20
  before=$(last_step)
  pull "$host"
  sleep "$seconds"  # the length of the cut
  during=$(($(last_step) - before))
  heal "$host"
  healed=$(now_ms)
  sleep 6  # a lost connection is noticed within 5 s
  resume_if_ended
  restart_rollouters
  await_step 180 $(($(last_step) + 10))
  back=$(($(now_ms) - healed))
  kill "${daemon_pid[trainer-0]}"
  await_end 60 trainer-0
  ((ended == 0)) || fail "the trainer ended with $ended after the cut: $(tail -n 3 "$run/logs/trainer-0.log")"
  stop_run
  judge
  row "\`$host\` is cut for $seconds s" "$during steps" "10 more steps within $(((back + 999) / 1000)) s" "$outcome"
  remove_hosts
}

ci() {
  local before
  make_hosts
  start_run ci run.steps=80
  await_step 150 10
  pull far
  sleep 2  # the length of the cut
  heal far
  before=$(last_step)
  await_step 120 $((before + 5))
  is_running trainer-0 || fail "a rollouter's host was cut for 2 s and the trainer has ended"
  pull mixed
  await_end 20 trainer-0
  ((ended == 4)) || fail "rank 2's host was cut and rank 0 ended with $ended, not 4"
  await_end 20 trainer-1
  ((ended == 4)) || fail "rank 2's host was cut and rank 1 ended with $ended, not 4"
  await_end 20 trainer-2
  ((ended == 4)) || fail "rank 2's host was cut and rank 2 ended with $ended, not 4"
  heal mixed
  outcome=
  restart_rollouters
  start_trainers run.resume=true
  await_end 120 trainer-0
  ((ended == 0)) || fail "the resumed trainer ended with $ended: $(tail -n 3 "$run/logs/trainer-0.log")"
  best=$(best_of)
  must_have_learned
  echo "hosts: learned to $best over a cut of 2 s and a cut that ended the group"
  stop_run
  judge
  remove_hosts
}

mount --make-rprivate /
ip link set lo up
if "$secured"; then make_certificates; fi
while (($#)); do
  case $1 in
    demo | ci) "$1"; shift ;;
    cut) cut_for "${2:?}" "${3:?}"; shift 3 ;;
    delay | loss | rate) slow "$1" "${2:?}"; shift 2 ;;
    ranks) ranks_cost "${2:?}"; shift 2 ;;
    *) fail "no scenario $1; see --help" ;;
  esac
done
