#include "base/daemon/exit_code.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::daemon {
namespace {

constexpr std::pair<const char*, int> kCodes[] = {
    // The process was asked to stop before it had started.
    {"STOPPED", kExitDone},
    // A restart would fail for the same reason.
    {"BAD_ADAPTER", kExitBadConfig},
    {"BAD_ADDRESS", kExitBadConfig},
    {"BAD_CERTIFICATE", kExitBadConfig},
    {"BAD_COMMAND_LINE", kExitBadConfig},
    {"BAD_CONFIG", kExitBadConfig},
    {"BAD_KEY", kExitBadConfig},
    {"BAD_MODEL", kExitBadConfig},
    {"BAD_MODEL_CONFIG", kExitBadConfig},
    {"BAD_OPTIONS", kExitBadConfig},
    {"BAD_SAFETENSORS", kExitBadConfig},
    {"BAD_SECURITY", kExitBadConfig},
    {"BAD_SPIFFE_ID", kExitBadConfig},
    {"BAD_WEIGHTS", kExitBadConfig},
    {reason::kBaseMismatch, kExitBadConfig},
    {"CONFIG_NOT_READABLE", kExitBadConfig},
    {reason::kDtypeMismatch, kExitBadConfig},
    {"FIXED_KEY", kExitBadConfig},
    {"INSECURE_BIND", kExitBadConfig},
    {reason::kLayoutMismatch, kExitBadConfig},
    {"LORA_RANK_ON_GPU", kExitBadConfig},
    {"MISSING_WEIGHTS", kExitBadConfig},
    {reason::kModelMismatch, kExitBadConfig},
    {"NO_ADAPTER", kExitBadConfig},
    {"NO_CUDA", kExitBadConfig},
    {"NO_MODEL", kExitBadConfig},
    {"NO_ROLE", kExitBadConfig},
    {"NO_SUCH_ENVIRONMENT", kExitBadConfig},
    {"NO_SUCH_REWARD", kExitBadConfig},
    {"RUN_DIR_TAKEN", kExitBadConfig},
    {"TOO_MANY_RANKS", kExitBadConfig},
    {"UNKNOWN_MODEL", kExitBadConfig},
    // A restart would take the place back from its new owner.
    {reason::kFenced, kExitFenced},
    {"REPLACED", kExitFenced},
    // This process cannot recover, but a new one can. A new trainer publishes versions of a new epoch, which no version
    // that was published before can block.
    {reason::kAbortStuck, kExitLostPeer},
    {reason::kCopyStuck, kExitLostPeer},
    {"DIGEST_CHANGED", kExitLostPeer},
    {reason::kDiskStuck, kExitLostPeer},
    {"MODEL_CHANGED", kExitLostPeer},
    {reason::kNotJoined, kExitLostPeer},
    {"RANK_LOST", kExitLostPeer},
    {"RANK_MISMATCH", kExitLostPeer},
    {"SYNCHRONIZER_LOST", kExitLostPeer},
    {"SYNC_FAILING", kExitLostPeer},
    {"TURN_STUCK", kExitLostPeer},
    {"VERSION_ORDER", kExitLostPeer},
    {reason::kWeightsDamaged, kExitLostPeer},
};

}  // namespace

int ToExitCode(const absl::Status& status) {
  if (status.ok()) return kExitDone;
  const std::string reason = ErrorReason(status);
  const auto* known =
      std::find_if(std::begin(kCodes), std::end(kCodes), [&](const auto& code) { return reason == code.first; });
  return known == std::end(kCodes) ? kExitFailed : known->second;
}

}  // namespace syncopate::daemon
