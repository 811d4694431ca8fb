#include "bench/sync/sync_case.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "model/model_config.h"
#include "synchronizer/transport/transport_traits.h"

namespace syncopate::bench {
namespace {

constexpr int32_t kMostProcesses = 64;

absl::Status BadCase(const std::string& what) { return Error(absl::StatusCode::kInvalidArgument, "BAD_CASE", what); }

absl::Status CheckChoice(const std::string& option, const std::string& value, const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return absl::OkStatus();
  return BadCase(absl::StrCat(option, " is '", value, "'; it may be ", absl::StrJoin(choices, ", ")));
}

absl::Status CheckRange(const std::string& option, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return BadCase(absl::StrCat(option, " is ", value, "; it may be ", least, " to ", most));
}

absl::Status CheckFault(const SyncCase& sync_case) {
  if (sync_case.fault.kind == BenchFault::Kind::kNone) return absl::OkStatus();
  SYNCOPATE_RETURN_IF_ERROR(
      CheckChoice("--kill or --stop", sync_case.fault.target, {"source", "receiver", "synchronizer"}));
  SYNCOPATE_RETURN_IF_ERROR(CheckChoice("--at", sync_case.fault.stage, {"prepare", "transfer", "install"}));
  if (sync_case.fault.target == "receiver" && sync_case.replicas < 2) {
    return BadCase("--kill receiver needs --replicas 2 or more, so that there are survivors to look at");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SyncCase::Validate() const {
  SYNCOPATE_RETURN_IF_ERROR(CheckRange("--sources", sources, 1, kMostProcesses));
  SYNCOPATE_RETURN_IF_ERROR(CheckRange("--replicas", replicas, 1, kMostProcesses));
  SYNCOPATE_RETURN_IF_ERROR(CheckRange("--tp", tensor_parallel, 1, 8));
  SYNCOPATE_RETURN_IF_ERROR(CheckRange("--sources and receivers together", sources + receivers(), 2, kMostProcesses));
  SYNCOPATE_RETURN_IF_ERROR(CheckRange("--layers", layers, 0, 1000));
  SYNCOPATE_RETURN_IF_ERROR(CheckRange("--lora", lora, 0, model::kMaxGpuAdapterRank));
  SYNCOPATE_RETURN_IF_ERROR(CheckRange("--answers", answers, 2, 65536));
  SYNCOPATE_RETURN_IF_ERROR(CheckRange("--answer-tokens", answer_tokens, 0, 65536));
  SYNCOPATE_RETURN_IF_ERROR(CheckRange("--syncs", syncs, 1, 100000));
  SYNCOPATE_RETURN_IF_ERROR(CheckRange("--warmup", warmup, 0, 1000));
  SYNCOPATE_RETURN_IF_ERROR(CheckChoice("--transport", transport, synchronizer::TransportChoices()));
  SYNCOPATE_RETURN_IF_ERROR(CheckChoice("--install", install, {"remap", "in_place"}));
  if (cpu && synchronizer::NeedsGpus(transport)) {
    return BadCase(absl::StrCat("--transport ", transport, " needs GPUs; with --cpu it may be grpc or auto"));
  }
  if (!cpu && transport != "auto" && !synchronizer::NeedsGpus(transport)) {
    return BadCase(
        "--transport grpc goes through host memory and is measured there: add --cpu, or use auto, ipc or nccl");
  }
  if (calm && decode) return BadCase("--calm is a case without decoding");
  if (limit < absl::Seconds(1)) return BadCase("--seconds-limit must be at least 1");
  return CheckFault(*this);
}

std::string SyncCase::ToString() const {
  return absl::StrCat(model, layers > 0 ? absl::StrCat(" of ", layers, " layers") : "",
                      lora > 0 ? absl::StrCat(" with adapters of rank ", lora) : "", ", ", sources,
                      sources == 1 ? " source -> " : " sources -> ", replicas,
                      replicas == 1 ? " replica x TP" : " replicas x TP", tensor_parallel, ", ", transport,
                      cpu ? ", host memory" : absl::StrCat(", ", install));
}

std::vector<int> PlaceProcesses(const SyncCase& sync_case, int devices) {
  const int processes =
      sync_case.sources + sync_case.receivers() + (sync_case.late_joiner ? sync_case.tensor_parallel : 0);
  std::vector<int> placed(processes, 0);
  if (devices <= 0) return placed;
  // Sources come first, so that with enough GPUs no receiver shares one with a source.
  for (int i = 0; i < processes; ++i) placed[i] = i % devices;
  return placed;
}

std::string MakeSourceLayout(const SyncCase& sync_case) {
  return absl::StrCat("units:", sync_case.sources, sync_case.cpu ? ":fp32" : ":bf16");
}

std::string MakeReceiverLayout(const SyncCase& sync_case) {
  if (sync_case.tensor_parallel == 1) return "whole";
  return absl::StrCat("tp:", sync_case.tensor_parallel, ":fused:vocab");
}

}  // namespace syncopate::bench
