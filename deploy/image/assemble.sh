#!/usr/bin/env bash
# usage: deploy/image/assemble.sh BUILD_FOLDER VARIANT=cpu|cuda OUT
# Collects what an image holds from a finished build on this system, in folder OUT (emptied first), by layers:
#   OUT/libraries   everything that is not ours: the closure of shared libraries, who owns them, and /etc
#   OUT/programs    the four programs, examples, the bill of materials
#   OUT/state       the one folder that the programs may write to, empty
# Nothing but what the programs load is taken: no shell, no interpreter, no package manager. Each library's package
# leaves its dpkg status (as distroless images do, so scanners find it) or wheel metadata, and its licence. Needs root,
# for ldconfig. Prints one line.
set -euo pipefail
source_root=$(cd "$(dirname "$0")/../.." && pwd)

[ $# -eq 3 ] || { sed -n 2p "$0" >&2; exit 2; }
build=$(realpath "$1")
variant=$2
out=$3
programs=(syncopate syncopate-synchronizer syncopate-trainer syncopate-rollouter)
multiarch=usr/lib/x86_64-linux-gnu
# What libtorch's CUDA half loads by name, beside what it is linked with.
loaded_by_name='lib(cudnn_[a-z_]*|nvrtc(-builtins)?|nvJitLink|cublasLt|cusparseLt|caffe2_nvrtc|torch_cuda_linalg)\.so.*'
# What NCCL loads by name where there is RDMA: the verbs and each network card's part of them.
verbs=(/usr/lib/x86_64-linux-gnu/{libibverbs.so.1,lib{efa,mana,mlx4,mlx5}.so.1,libibverbs/*.so})
# What a GPU host's driver brings.
of_the_driver='^lib(cuda|nvidia-ml)\.so'

fail() {
  echo "assemble: $1" >&2
  exit 1
}

case $variant in
  cpu | cuda) ;;
  *) fail "the variant is cpu or cuda, not '$variant'" ;;
esac
for tool in chrpath strip ldconfig python3 dpkg-query; do
  command -v "$tool" > /dev/null || fail "needs $tool; scripts/bootstrap.sh --tests installs it"
done
for program in "${programs[@]}"; do
  [ -x "$build/bin/$program" ] || fail "no $build/bin/$program; scripts/build.sh makes it"
done
site_packages=$(realpath --quiet --canonicalize-existing "$source_root"/.venv/lib/python3*/site-packages) ||
  fail "no wheels under $source_root/.venv; scripts/bootstrap.sh installs them"

umask 022
rm -rf "$out"
mkdir -p "$out"/{libraries,programs,state}
libraries=$out/libraries
contents=$out/contents.tsv  # path in the image, package that it comes from: for the bill of materials
: > "$contents"

note() { printf '%s\t%s\n' "$1" "$2" >> "$contents"; }

# Puts file $1 (what links point to) at path $2 of layer $3, readable by all and writable by its owner.
place() {
  install -D --mode="$(if [ -x "$1" ]; then echo 755; else echo 644; fi)" "$1" "$3/$2"
}

# --- wheels: the layout of site-packages stays, because the libraries find each other by it ---------------------------

# The wheel that brought a file of site-packages, as the name of its .dist-info folder.
wheel_of() {
  local record
  record=$(grep --files-with-matches --fixed-strings "$1," "$site_packages"/*.dist-info/RECORD | head -n 1) || true
  [ -n "$record" ] || fail "$site_packages/$1 is of no wheel"
  basename "$(dirname "$record")"
}

place_wheel_library() {
  local path=${1#"$site_packages"/} wheel
  wheel=$(wheel_of "$path")
  place "$1" "usr/lib/syncopate/$path" "$libraries"
  note "/usr/lib/syncopate/$path" "$wheel"
  [ -e "$libraries/usr/lib/syncopate/$wheel" ] && return
  local file
  while read -r file; do
    place "$file" "usr/lib/syncopate/$wheel/${file#"$site_packages/$wheel"/}" "$libraries"
  done < <(find "$site_packages/$wheel" -type f '(' -name METADATA -o -ipath '*licen[cs]e*' -o -iname 'NOTICE*' ')')
}

# --- distribution packages -------------------------------------------------------------------------------------------

# The package that owns file $1. dpkg may know a file of /usr/lib under /lib.
package_of() {
  local path found
  for path in "$1" "${1#/usr}" "/usr$1"; do
    if found=$(dpkg-query --search "$path" 2> /dev/null); then
      found=${found%%: *}
      echo "${found%%,*}"
      return
    fi
  done
  fail "$1 is of no package: the bill of materials could not name it"
}

place_distribution_library() {
  local name=$1 path package target
  path=$(realpath "$2")
  package=$(package_of "$path")
  case $2 in
    */ld-linux-*) target=usr/lib64/$name ;;
    */libibverbs/*) target=$multiarch/libibverbs/$name ;;
    *) target=$multiarch/$name ;;
  esac
  place "$path" "$target" "$libraries"
  note "/$target" "$package"
  package=${package%%:*}
  local status=$libraries/var/lib/dpkg/status.d/$package
  [ -e "$status" ] && return
  mkdir -p "$(dirname "$status")"
  dpkg-query --status "$package" > "$status"
  place "$(realpath "/usr/share/doc/$package/copyright")" "usr/share/doc/$package/copyright" "$libraries"
}

# --- the closure -----------------------------------------------------------------------------------------------------

# "name path" of each library that program or library $1 loads when it starts.
closure_of() {
  ldd "$1" | awk '$2 == "=>" && $3 == "not" {print $1, "missing"}
                  $2 == "=>" && $3 ~ /^\// {print $1, $3}
                  $1 ~ /^\/.*ld-linux/ {n = split($1, parts, "/"); print parts[n], $1}'
}

list_libraries() {
  local program
  for program in "${programs[@]}"; do closure_of "$build/bin/$program"; done
  [ "$variant" = cuda ] || return 0
  local library
  while read -r library; do
    echo "$(basename "$library") $library"
    closure_of "$library"
  done < <(find "$site_packages/torch/lib" "$site_packages/nvidia" -regextype posix-extended -regex ".*/$loaded_by_name"
    printf '%s\n' "${verbs[@]}")
}

if [ "$variant" = cuda ] && [ ! -e "${verbs[0]}" ]; then
  fail "no ${verbs[0]}, without which NCCL finds no RDMA: install ibverbs-providers"
fi
while read -r name path; do
  if [ "$path" = missing ]; then
    [[ $name =~ $of_the_driver ]] && continue
    fail "the programs need $name, which is not on this system"
  fi
  case $(realpath "$path") in
    "$site_packages"/*) place_wheel_library "$(realpath "$path")" ;;
    *) place_distribution_library "$name" "$path" ;;
  esac
done < <(list_libraries | LC_ALL=C sort --unique --key=1,1)

# --- the rest of the system ------------------------------------------------------------------------------------------

ln -s usr/lib "$libraries/lib"
ln -s usr/lib64 "$libraries/lib64"
mkdir -p "$libraries"/{etc/ld.so.conf.d,proc,sys,dev,run,var/lib/syncopate} && mkdir -m 1777 "$libraries/tmp"
rmdir "$libraries/var/lib/syncopate"
place "$(realpath /etc/os-release)" etc/os-release "$libraries"
if [ "$variant" = cuda ]; then cp -r /etc/libibverbs.d "$libraries/etc/"; fi
cat > "$libraries/etc/passwd" << 'END'
root:x:0:0:root:/:/usr/sbin/nologin
syncopate:x:65532:65532:syncopate:/var/lib/syncopate:/usr/sbin/nologin
END
printf 'root:x:0:\nsyncopate:x:65532:\n' > "$libraries/etc/group"
echo 'hosts: files dns' > "$libraries/etc/nsswitch.conf"
echo 'include /etc/ld.so.conf.d/*.conf' > "$libraries/etc/ld.so.conf"
{
  echo "/$multiarch"
  cut -f1 "$contents" | grep '^/usr/lib/syncopate/' | xargs --no-run-if-empty -n 1 dirname | LC_ALL=C sort --unique
} > "$libraries/etc/ld.so.conf.d/syncopate.conf"
ldconfig -X -r "$libraries" 2> /dev/null
rm -rf "$libraries/var/cache"

# --- our own ---------------------------------------------------------------------------------------------------------

version=$(sed -n 's/^project(syncopate VERSION \([0-9.]*\).*/\1/p' "$source_root/CMakeLists.txt")
[ -n "$version" ] || fail "no version in CMakeLists.txt"
mkdir -p "$out/programs/usr/bin" "$out/programs/usr/share/syncopate"
for program in "${programs[@]}"; do
  target=$out/programs/usr/bin/$program
  strip --strip-unneeded -o "$target" "$build/bin/$program"
  # The build tree's library folders; in the image the loader's cache knows where everything is.
  chrpath --delete "$target" > /dev/null
  note "/usr/bin/$program" syncopate
done
install -D --mode=644 --target-directory="$out/programs/usr/share/syncopate/examples" "$source_root"/deploy/examples/*.yaml
chmod -R u=rwX,go=rX "$out/programs"
python3 "$source_root/deploy/image/sbom.py" --version "$version" --variant "$variant" --contents "$contents" \
  "$out/libraries" "$out/programs" > "$out/sbom.spdx.json"
place "$out/sbom.spdx.json" usr/share/syncopate/sbom.spdx.json "$out/programs"

find "$out" -exec touch --no-dereference --date=@0 {} +  # the same build gives the same bytes
mib() { echo "$(($(du -sb "$1" | cut -f1) >> 20)) MiB"; }
echo "assemble: $variant, $(grep -c . "$contents") binaries;" \
  "libraries $(mib "$libraries"), programs $(mib "$out/programs")"
