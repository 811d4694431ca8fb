#include "synchronizer/plan/payload.h"

#include <set>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace syncopate::synchronizer {
namespace {

std::string WhyBase(const ReceiverWeights& receiver) {
  return receiver.base_present ? "its sleep freed the base weights" : "it has no base weights yet";
}

absl::Status CheckNames(const Manifest& manifest, std::set<std::string> adapters) {
  for (const TensorSpec& spec : manifest.tensors()) adapters.erase(spec.name);
  if (adapters.empty()) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "UNKNOWN_TENSOR",
               absl::StrFormat("%s is named as an adapter but is not among the model's tensors", *adapters.begin()));
}

}  // namespace

bool NeedsBase(const ReceiverWeights& receiver) {
  return !receiver.base_present || (receiver.sleep_level == 2 && receiver.free_cache_engine && receiver.slept);
}

absl::StatusOr<Payload> DecidePayload(const Manifest& manifest, const OfferedWeights& offered,
                                      const ReceiverWeights& receiver) {
  const std::set<std::string> adapters(offered.adapters.begin(), offered.adapters.end());
  SYNCOPATE_RETURN_IF_ERROR(CheckNames(manifest, adapters));
  Payload payload;
  if (!NeedsBase(receiver) && receiver.digest == offered.digest) {
    payload.reason = "it serves these weights already";
    return payload;
  }
  payload.base = NeedsBase(receiver) || adapters.empty();
  payload.adapters = !adapters.empty();
  payload.reason = NeedsBase(receiver) ? WhyBase(receiver)
                   : adapters.empty()  ? "all weights have changed"
                                       : "only the adapters have changed";
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const TensorSpec& spec = manifest.tensors()[i];
    bool adapter = adapters.count(spec.name) > 0;
    if (!adapter && !payload.base) continue;
    payload.tensors.push_back(static_cast<int32_t>(i));
    (adapter ? payload.bytes.lora : payload.bytes.full) += spec.NumBytes();
  }
  return payload;
}

}  // namespace syncopate::synchronizer
