#!/usr/bin/env bash
# usage: scripts/bundle.sh [--dir FOLDER] [--with-tests] [--build FOLDER=build/cuda]
# Packs a CUDA build for hosts that have a GPU, its driver and a Python with torch 2.11, and nothing to compile with:
#   dist/syncopate-<version>-linux-x86_64.tar.zst        or, with --dir, the same unpacked in FOLDER (emptied first)
# In it: the programs, stripped; the libraries of this distribution that they need; `syncopate.sh ARGS...`, which runs
# the command line, and `env.sh`, which a shell can source to run any of the programs; examples; benchmarks with their
# peers; with --with-tests the GPU tests too. libc and libstdc++ are the host's: they may be newer, not older. torch, CUDA
# and NCCL are those of the host's torch. Builds nothing: scripts/build.sh cuda does. Prints one line.
set -euo pipefail
cd "$(dirname "$0")/.."

max_bytes=$((60 << 20))
build=build/cuda
folder=
with_tests=0
while [ $# -gt 0 ]; do
  case $1 in
    --dir) folder=$2; shift ;;
    --build) build=$2; shift ;;
    --with-tests) with_tests=1 ;;
    *) sed -n 2,3p "$0" >&2; exit 2 ;;
  esac
  shift
done

fail() {
  echo "bundle: $1" >&2
  exit 1
}

version=$(sed -n 's/^project(syncopate VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
[ -n "$version" ] || fail "no version in CMakeLists.txt"
programs=()
for name in syncopate syncopate-synchronizer syncopate-trainer syncopate-rollouter syncopate-generate syncopate-serve \
  syncopate-bench-ceiling syncopate-bench-decode syncopate-bench-generate syncopate-bench-train; do
  [ -x "$build/bin/$name" ] || fail "no $build/bin/$name; scripts/build.sh cuda makes it"
  programs+=("$build/bin/$name")
done
if [ "$with_tests" -eq 1 ]; then
  mapfile -t tests < <(find "$build/bin" -maxdepth 1 -name '*_gpu_test' -type f | sort)
  [ "${#tests[@]}" -gt 0 ] || fail "no GPU tests in $build/bin; scripts/build.sh cuda makes them"
  programs+=("${tests[@]}")
fi

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
name=syncopate-$version-linux-x86_64
tree=$root/$name
mkdir -p "$tree/bin" "$tree/lib" "$tree/scripts" "$tree/bench" "$tree/deploy"

# What the host brings: the C and C++ libraries, the driver, and what comes with its torch.
host_has='^(ld-linux|libc|libm|libdl|librt|libpthread|libresolv|libutil|libstdc\+\+|libgcc_s|libcuda|libnccl|libcu(dart|blas|blasLt|dnn[a-z_]*|fft|rand|solver|sparse|sparseLt|file|pti)|libnv[A-Za-z0-9_]*|libtorch[a-z_]*|libc10[a-z_]*|libgomp-[0-9a-f]+|libshm|libcaffe2[a-z_]*)([-.]|$)'
for program in "${programs[@]}"; do
  strip --strip-unneeded -o "$tree/bin/$(basename "$program")" "$program"
  while read -r library path; do
    [[ $library =~ $host_has ]] && continue
    [ "$path" != missing ] || fail "$program needs $library, which is not on this machine"
    [ -e "$tree/lib/$library" ] || cp --dereference "$path" "$tree/lib/$library"
  done < <(ldd "$program" | awk '$2 == "=>" && $3 == "not" {print $1, "missing"} $2 == "=>" && $3 ~ /^\// {print $1, $3}')
done

cp -r bench/peers bench/*.sh bench/*.py "$tree/bench/"
find "$tree/bench" -name __pycache__ -prune -exec rm -rf {} +
cp -r deploy/examples "$tree/deploy/"
cp scripts/gpu_tests.sh scripts/gpu_libraries.sh "$tree/scripts/"
if [ "$with_tests" -eq 1 ]; then
  mkdir -p "$tree/tests/gpu"
  cp tests/gpu/*.sh "$tree/tests/gpu/"
fi
cat > "$tree/env.sh" << 'ENV'
# . env.sh: lets the programs in bin/ find their libraries: this bundle's, then those of the torch of python3.
# SYNCOPATE_PYTHON names another Python.
syncopate_root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
syncopate_libraries=$("${SYNCOPATE_PYTHON:-python3}" - << 'PYTHON'
import glob
import importlib.metadata
import importlib.util
import os
import sys

spec = importlib.util.find_spec("torch")  # does not import it
if spec is None:
    sys.exit("syncopate: this Python has no torch; pip install torch==2.11.0")
version = importlib.metadata.version("torch")
if not version.startswith("2.11."):
    sys.exit(f"syncopate: torch is {version}, and 2.11 is needed; pip install torch==2.11.0")
torch = spec.submodule_search_locations[0]
vendor = sorted(glob.glob(os.path.join(os.path.dirname(torch), "nvidia", "*", "lib")))
print(":".join([os.path.join(torch, "lib"), *vendor]))
PYTHON
) || return 1
export LD_LIBRARY_PATH=$syncopate_root/lib:$syncopate_libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PATH=$syncopate_root/bin:$PATH
ENV
cat > "$tree/syncopate.sh" << 'RUN'
#!/usr/bin/env bash
# syncopate.sh ARGS...: `syncopate ARGS...` of this bundle. See env.sh.
. "$(dirname "$(realpath "$0")")/env.sh" || exit 1
exec syncopate "$@"
RUN
chmod +x "$tree/syncopate.sh"

if [ -n "$folder" ]; then
  bytes=$(du -sb "$tree" | cut -f1)
  rm -rf "$folder"
  mkdir -p "$(dirname "$folder")"
  mv "$tree" "$folder"
  echo "bundle: $folder, $((bytes >> 20)) MiB, ${#programs[@]} programs, $(find "$folder/lib" -type f | wc -l) libraries"
  exit 0
fi
mkdir -p dist
archive=dist/$name.tar.zst
tar -C "$root" --use-compress-program='zstd -19 --threads=0' -cf "$archive" "$name"
bytes=$(stat --format=%s "$archive")
[ "$bytes" -le "$max_bytes" ] || fail "$archive is $((bytes >> 20)) MiB, over the limit of $((max_bytes >> 20))"
echo "bundle: $archive, $((bytes >> 20)) MiB, ${#programs[@]} programs"
