#!/usr/bin/env bash
# usage: deploy/image/build.sh [--variant cpu|cuda] [--build FOLDER] [--tag NAME] [--output FILE]
# Builds the image of deploy/image/Containerfile with buildah alone, no registry and no daemon. The system that it is
# compiled on is made from a Debian mirror by mmdebstrap, and kept for the next time; or, with --build, this system is
# taken with what scripts/build.sh made in FOLDER (build/release, build/cuda), in seconds. Writes
#   dist/syncopate-<version>-<variant>.oci.tar      (--output FILE) for skopeo copy, podman load, ctr images import
#   dist/syncopate-<version>-<variant>.spdx.json    the bill of materials, which the image holds too
# and leaves the image in build/image/storage under --tag (localhost/syncopate:<version>-<variant>), for
# deploy/image/run.py. The same commit gives the same bytes. Needs root. Prints one line.
set -euo pipefail
cd "$(dirname "$0")/../.."

max_cpu_bytes=$((1 << 30))
distribution=bookworm
mirror=http://deb.debian.org/debian
variant=cpu
build=
name=
output=
while [ $# -gt 0 ]; do
  case $1 in
    --variant) variant=${2:-}; shift ;;
    --build) build=${2:-}; shift ;;
    --tag) name=${2:-}; shift ;;
    --output) output=${2:-}; shift ;;
    *) sed -n 2p "$0" >&2; exit 2 ;;
  esac
  shift
done
work=build/image
log=$work/build.log
mkdir -p "$work" dist

fail() {
  echo "image: $1" >&2
  tail -n 20 "$log" >&2
  exit 1
}

[[ $variant = cpu || $variant = cuda ]] || fail "the variant is cpu or cuda, not '$variant'"
[ "$(id -u)" -eq 0 ] || fail "needs root, for the owners of the files in the image"
for tool in buildah mmdebstrap chrpath; do
  command -v "$tool" > /dev/null || fail "needs $tool; scripts/bootstrap.sh --tests installs it"
done
# One at a time: the storage and the folders are shared.
exec 9> "$work/lock"
flock --timeout 3600 9 || fail "another build has held $work/lock for an hour"
: > "$log"

version=$(sed -n 's/^project(syncopate VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
revision=$(git rev-parse HEAD 2>> "$log" || echo unknown)
[ -z "$(git status --porcelain --untracked-files=no 2>> "$log")" ] || revision=$revision-dirty
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>> "$log" || echo 0)
export SOURCE_DATE_EPOCH
created=$(date --utc --date="@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
name=${name:-localhost/syncopate:$version-$variant}
output=${output:-dist/syncopate-$version-$variant.oci.tar}
started=$SECONDS

buildah() { command buildah --root "$PWD/$work/storage" --runroot "$PWD/$work/run" "$@"; }

# image_of NAME FOLDER|TAR: an image that holds just that.
image_of() {
  local container
  container=$(buildah from scratch) &&
    buildah add --quiet "$container" "$2" / >> "$log" 2>&1 &&
    buildah commit --quiet --rm --timestamp 0 "$container" "$1" >> "$log" 2>&1
}

# The image of a bare Debian with all that compiling needs, made once for each install.sh and bootstrap.sh.
make_system() {
  local base=localhost/syncopate-base:$distribution former
  if ! buildah inspect --type image "$base" &> /dev/null; then
    local root=$work/$distribution.tar
    SOURCE_DATE_EPOCH=0 mmdebstrap --variant=apt --include=ca-certificates "$distribution" "$root" "$mirror" \
      >> "$log" 2>&1 || fail "mmdebstrap could not make a $distribution root from $mirror"
    image_of "$base" "$root" || fail "could not make an image of $root"
    rm "$root"
  fi
  for former in $(buildah images --format '{{.Name}}:{{.Tag}}' | grep "^localhost/syncopate-system:$variant-"); do
    buildah rmi "$former" >> "$log" 2>&1
  done
  buildah bud --quiet "${builder[@]}" --build-arg "BASE=$base" --build-arg "VARIANT=$variant" \
    --target system --tag "$1" --file deploy/image/Containerfile . >> "$log" 2>&1 || fail "the system could not be made"
}

arguments=(
  --build-arg "VARIANT=$variant" --build-arg "VERSION=$version" --build-arg "REVISION=$revision"
  --build-arg "CREATED=$created" --build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH"
)
# Isolation by chroot works inside containers too, and reaches the network as this system does: with the same
# authorities and settings of pip. Objects compiled before are found again.
mkdir -p "$work/ccache"
builder=(
  --ignorefile deploy/image/Containerfile.dockerignore
  --isolation chroot --volume "$PWD/$work/ccache:/root/.cache/ccache"
)
for file in /etc/ssl/certs/ca-certificates.crt /etc/pip.conf; do
  [ ! -e "$file" ] || builder+=(--volume "$file:$file:ro")
done
if [ -n "$build" ]; then
  deploy/image/assemble.sh "$build" "$variant" "$work/assembled/image" >> "$log" 2>&1 ||
    fail "$build could not be assembled"
  image_of localhost/syncopate-assembled "$work/assembled" || fail "could not make the first stage of $work/assembled"
  arguments+=(--build-arg ASSEMBLED=localhost/syncopate-assembled)
else
  made_by=$(cat scripts/bootstrap.sh deploy/image/install.sh | sha256sum | cut -c1-12)
  system=localhost/syncopate-system:$variant-$made_by
  buildah inspect --type image "$system" &> /dev/null || make_system "$system"
  arguments+=(--build-arg "SYSTEM=$system" --build-arg ASSEMBLED=build)  # buildah 1.28 misses a default of ARG here
fi
# No times in the layers: where the libraries are the same, so is their layer, and a registry has it.
buildah bud --quiet --layers --force-rm --timestamp 0 "${builder[@]}" "${arguments[@]}" \
  --tag "$name" --file deploy/image/Containerfile . >> "$log" 2>&1 || fail "the build failed, see $log"

mkdir -p "$(dirname "$output")"
container=$(buildah from --pull-never "$name")
trap 'buildah rm "$container" >> "$log" 2>&1' EXIT
root=$(buildah mount "$container")
bytes=$(du --summarize --bytes "$root" | cut -f1)
cp "$root/usr/share/syncopate/sbom.spdx.json" "${output%.oci.tar}.spdx.json"
[ "$variant" != cpu ] || [ "$bytes" -le "$max_cpu_bytes" ] ||
  fail "the image holds $((bytes >> 20)) MiB, over the limit of $((max_cpu_bytes >> 20))"
rm -f "$output"
buildah push --quiet "$name" "oci-archive:$output:$name" >> "$log" 2>&1 || fail "could not write $output"
{
  buildah rmi localhost/syncopate-assembled
  buildah rmi --prune  # what former builds left
} >> "$log" 2>&1 || true
echo "image: $name, $((bytes >> 20)) MiB, $output $(($(stat --format=%s "$output") >> 20)) MiB," \
  "in $((SECONDS - started)) s"
