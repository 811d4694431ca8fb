#!/usr/bin/env bash
# usage: scripts/demo.sh [section.key=value ...]
# From a fresh Debian 12 or Ubuntu 24.04 to a finished run: installs what is missing, builds five programs, and lets
# a trainer, two rollouters and a synchronizer learn to reverse four symbols from nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/bootstrap.sh
if [ ! -x build/release/bin/syncopate-trainer ]; then
  echo "build release: about ten minutes on two cores the first time"
fi
scripts/build.sh release syncopate syncopate-synchronizer syncopate-trainer syncopate-rollouter syncopate-generate
exec build/release/bin/syncopate run deploy/examples/reverse.yaml "$@"
