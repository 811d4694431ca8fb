#!/usr/bin/env bash
# usage: scripts/docs.sh [BUILD=build/release]
# Rewrites the parts of docs/api.md and docs/config.md that come from the .proto files. Run it after changing one.
set -euo pipefail
cd "$(dirname "$0")/.."

build=${1:-build/release}
tool=$build/bin/syncopate_api_tool
[ -x "$tool" ] || { echo "docs: no $tool; scripts/build.sh makes it" >&2; exit 1; }
"$tool" page "$build/proto/syncopate.protoset" docs/api.md
"$tool" page --config "$build/proto/syncopate.protoset" docs/config.md
