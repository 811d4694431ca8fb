#!/usr/bin/env bash
# usage: deploy/image/install.sh cpu|cuda
# Makes a bare Debian 12 one that compiles the variant: Debian packages, and wheels in .venv. Needs root, a Debian
# mirror and PyPI.
set -euo pipefail
cd "$(dirname "$0")/../.."

variant=${1:-}
cuda_version=13.0.2

scripts/bootstrap.sh
install() { DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends "$@" > /dev/null; }
install chrpath
case $variant in
  cpu) ;;
  cuda)
    install ibverbs-providers  # NCCL over RDMA
    # The compiler, and what libtorch's CUDA half needs to run (cuBLAS, cuDNN, NCCL, ...): the wheels that a Python user
    # of this torch has. cuDNN's wheel has its headers too.
    .venv/bin/python3 -m pip install --quiet --disable-pip-version-check \
      torch==2.11.0 "cuda-toolkit[nvcc,cccl,crt,cudart,cupti,nvvm]==$cuda_version"
    packages=$(compgen -G "$PWD/.venv/lib/python3*/site-packages/nvidia")
    # In the wheels' places, a toolkit's: the compiler and the linker look for lib64, and for NCCL by its plain name.
    ln -s lib "$packages/cu13/lib64"
    ln -s ../../nccl/lib/libnccl.so.2 "$packages/cu13/lib/libnccl.so"
    ln -s ../../nccl/lib/libnccl.so.2 "$packages/cu13/lib/libnccl.so.2"
    ln -s ../../nccl/include/nccl.h "$packages/cu13/include/nccl.h"
    ln -s "$packages/cu13" /usr/local/cuda
    scripts/bootstrap.sh  # again: what the preset cuda takes, now that nvcc is there
    ;;
  *) sed -n 2p "$0" >&2; exit 2 ;;
esac
