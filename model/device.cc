#include "model/device.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace syncopate::model {
namespace {

constexpr char kPrefix[] = "cuda:";

absl::Status Missing(absl::string_view reason, const DeviceRequest& request, const std::string& what) {
  return Error(absl::StatusCode::kFailedPrecondition, reason,
               absl::StrCat(request.key, " is ", request.wanted, ", but ", what, "; or set ", request.key, "=cpu"));
}

}  // namespace

bool IsCuda(const std::string& device) { return device == "cuda" || absl::StartsWith(device, kPrefix); }

absl::StatusOr<std::string> ChooseDevice(const DeviceRequest& request, const Hardware& hardware) {
  const std::string& wanted = request.wanted;
  if (wanted == "cpu" || (wanted == "auto" && hardware.gpus == 0)) return std::string("cpu");
  int index = -1;
  const bool numbered = absl::StartsWith(wanted, kPrefix);
  const bool known = numbered ? absl::SimpleAtoi(wanted.substr(sizeof(kPrefix) - 1), &index) && index >= 0
                              : wanted == "auto" || wanted == "cuda";
  if (!known) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_DEVICE",
                 absl::StrCat(request.key, " is '", wanted, "'; it can be auto, cpu, cuda or cuda:N"));
  }
  if (!hardware.built_with_cuda) {
    return Missing("NO_CUDA", request,
                   "this build has no CUDA: build the preset 'cuda', or take the binaries of the bundle");
  }
  if (hardware.gpus == 0) {
    return Missing(
        "NO_GPU", request,
        "the driver gives this process no GPU: nvidia-smi should list one, the driver must know CUDA 13, and "
        "a container must be given the GPU");
  }
  if (!numbered) {
    const int64_t rest = hardware.gpus - request.reserved;
    const bool leaves = rest >= request.together;
    return absl::StrCat(kPrefix, leaves ? request.reserved + request.member % rest : request.member % hardware.gpus);
  }
  if (index >= hardware.gpus) {
    return Missing("NO_GPU", request,
                   absl::StrCat("this process sees ", hardware.gpus, " of them, cuda:0 to cuda:", hardware.gpus - 1));
  }
  return wanted;
}

}  // namespace syncopate::model
