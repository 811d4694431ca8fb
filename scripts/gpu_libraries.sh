# . scripts/gpu_libraries.sh FOLDER: lets programs of FOLDER, the bin folder of a build or of an unpacked bundle, find the
# libraries that they link: a bundle's own, then those of the torch of python3 and of the CUDA runtime that it brings. Where
# there is no torch, programs that need it do not start.
# shellcheck shell=bash
library_path=
if [ -d "$1/../lib" ]; then library_path=$(realpath "$1/../lib"); fi
torch=$(python3 -c 'import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")' \
  2> /dev/null)
if [ -n "$torch" ]; then
  library_path=$library_path:$torch/lib
  for vendor in "$(dirname "$torch")"/nvidia/*/lib; do library_path=$library_path:$vendor; done
fi
export LD_LIBRARY_PATH=$library_path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# NVLink multicast can put the GPUs of a shared host out of service.
export NCCL_NVLS_ENABLE=0
