#!/usr/bin/env bash
# usage: scripts/protos.sh [--dir FOLDER] [--publish]
# Packs the interface for programs in other languages:
#   dist/syncopate-protos-<version>.tar.gz, unpacked in dist/protos        or, with --dir, unpacked in FOLDER alone
# In it: syncopate/v1/*.proto with the google.rpc files that they import, syncopate.protoset (all of them compiled, with
# comments) and VERSION. `protoc -I FOLDER` needs nothing else.
# --publish first makes this interface the published one, proto/published.protoset, which later changes may not break;
# it refuses one that breaks the last.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=dist/protos
archive=1
publish=0
while [ $# -gt 0 ]; do
  case $1 in
    --dir) folder=$2 archive=0; shift ;;
    --publish) publish=1 ;;
    *) sed -n 2p "$0" >&2; exit 2 ;;
  esac
  shift
done

fail() {
  echo "protos: $1" >&2
  exit 1
}

version=$(sed -n 's/^project(syncopate VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
[ -n "$version" ] || fail "no version in CMakeLists.txt"
wheels=$(compgen -G '.venv/lib/python3*/site-packages' | head -n 1) || fail "no .venv; scripts/bootstrap.sh makes it"
imported=(google/rpc/status.proto google/rpc/error_details.proto)
own=(proto/syncopate/v1/*.proto)
own=("${own[@]#proto/}")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for file in "${own[@]}"; do install -D -m 644 "proto/$file" "$work/protos/$file"; done
for file in "${imported[@]}"; do install -D -m 644 "$wheels/$file" "$work/protos/$file"; done
echo "$version" > "$work/protos/VERSION"
# Compiled from the copies, so that what is packed is known to be whole.
(cd "$work/protos" && protoc -I . --include_imports --include_source_info \
  --descriptor_set_out syncopate.protoset "${own[@]}" "${imported[@]}") || fail "protoc failed"

if [ "$publish" -eq 1 ]; then
  buf=$PWD/.venv/bin/buf
  [ -x "$buf" ] || fail "no $buf; scripts/bootstrap.sh --tests installs it"
  if [ -e proto/published.protoset ]; then
    published=$PWD/proto/published.protoset
    config=$PWD/proto/buf.yaml
    (cd "$work/protos" && "$buf" lint --config "$config" --path syncopate &&
      "$buf" breaking . --config "$config" --exclude-imports --against "$published#format=binpb") ||
      fail "not published: give the new thing a new name or number beside the old one"
  fi
  # Without comments: they change often and break nobody.
  (cd "$work/protos" && protoc -I . --include_imports --descriptor_set_out published "${own[@]}")
  install -m 644 "$work/protos/published" proto/published.protoset
  rm "$work/protos/published"
fi

mkdir -p "$(dirname "$folder")"
rm -rf "$folder"
cp -r "$work/protos" "$folder"
[ "$archive" -eq 1 ] || exit 0
name=syncopate-protos-$version
mv "$work/protos" "$work/$name"
# The same bytes from the same files, whenever and by whomever.
tar -C "$work" --sort=name --mtime='UTC 2020-01-01' --owner=0 --group=0 --numeric-owner -c "$name" |
  gzip -n > "dist/$name.tar.gz"
echo "protos: dist/$name.tar.gz, $(stat -c %s "dist/$name.tar.gz") bytes"
