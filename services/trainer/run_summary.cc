#include "services/trainer/run_summary.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "services/codec/codec.h"
#include "services/rpc/channel.h"
#include "syncopate/v1/rollout.grpc.pb.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"

namespace syncopate::services {
namespace {

using nlohmann::json;

constexpr absl::Duration kPatience = absl::Seconds(1);
constexpr int32_t kSyncs = 1000;

std::vector<v1::SyncRecord> AskSyncs(v1::SynchronizerService::Stub& stub) {
  grpc::ClientContext context;
  context.set_deadline(CallDeadline(kPatience));
  v1::WatchSyncsRequest request;
  request.set_last(kSyncs);
  std::unique_ptr<grpc::ClientReader<v1::WatchSyncsResponse>> stream = stub.WatchSyncs(&context, request);
  std::vector<v1::SyncRecord> records;
  v1::WatchSyncsResponse response;
  while (stream->Read(&response)) records.push_back(response.record());
  const absl::Status status = FromGrpc(stream->Finish());
  if (!status.ok()) SYNCOPATE_LOG(kWarning, "the summary lacks weight syncs: %s", status.ToString());
  return records;
}

void AskRollouter(const v1::MemberStatus& member, RunWitnesses& witnesses) {
  auto channel = MakeChannel(member.address());
  absl::Status status = channel.status();
  if (status.ok()) {
    auto stub = v1::RolloutService::NewStub(*channel);
    auto answer =
        CallUnary(stub.get(), &v1::RolloutService::Stub::GetStatus, v1::RolloutServiceGetStatusRequest(), kPatience);
    status = answer.status();
    if (status.ok()) witnesses.rollouters.push_back(*std::move(answer));
  }
  if (!status.ok()) {
    SYNCOPATE_LOG(kWarning, "the summary lacks %s: %s", member.member().replica_id(), status.ToString());
  }
}

// The q-quantile of `values` by nearest rank; 0 if there are none.
double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

json SyncSummary(const std::vector<v1::SyncRecord>& syncs, json* pauses) {
  std::vector<double> total_ms, pause_ms;
  int64_t failed = 0, bytes = 0, relabelled = 0;
  for (const v1::SyncRecord& sync : syncs) {
    bytes += sync.bytes();
    if (sync.result() == "relabelled") ++relabelled;
    if (sync.result() != "ok" && sync.result() != "relabelled") {
      ++failed;
      continue;
    }
    auto total = sync.seconds().find("total");
    if (total != sync.seconds().end()) total_ms.push_back(1000 * total->second);
    pause_ms.push_back(1000 * sync.pause_seconds());
  }
  *pauses = {{"p50", Quantile(pause_ms, 0.5)}, {"max", Quantile(pause_ms, 1)}};
  return {{"count", syncs.size()},
          {"failed", failed},
          {"relabelled", relabelled},
          {"total_ms",
           {{"p50", Quantile(total_ms, 0.5)}, {"p99", Quantile(total_ms, 0.99)}, {"max", Quantile(total_ms, 1)}}},
          {"bytes", bytes}};
}

json GroupSummary(const trainer::GroupLedger::Counters& groups) {
  return {{"generated", groups.accepted + groups.failed + groups.duplicate + groups.expired},
          {"acked", groups.accepted},
          {"trained", groups.trained},
          {"dropped",
           {{"stale", groups.dropped_stale},
            {"filtered", groups.filtered},
            {"failed", groups.failed},
            {"expired", groups.expired},
            {"rolled_back", groups.rolled_back}}},
          {"duplicate", groups.duplicate},
          {"reissued", groups.reissued}};
}

}  // namespace

RunWitnesses AskWitnesses(const std::string& synchronizer_address) {
  RunWitnesses witnesses;
  auto channel = MakeChannel(synchronizer_address);
  if (!channel.ok()) return witnesses;
  auto stub = v1::SynchronizerService::NewStub(*channel);
  witnesses.syncs = AskSyncs(*stub);
  auto members =
      CallUnary(stub.get(), &v1::SynchronizerService::Stub::ListMembers, v1::ListMembersRequest(), kPatience);
  if (!members.ok()) {
    SYNCOPATE_LOG(kWarning, "the summary lacks rollouters: %s", members.status().ToString());
    return witnesses;
  }
  for (const v1::MemberStatus& member : members->members()) {
    const bool alive = member.state() == v1::MEMBER_STATE_ALIVE || member.state() == v1::MEMBER_STATE_SUSPECT;
    if (alive && member.member().role() == v1::ROLE_ROLLOUTER) AskRollouter(member, witnesses);
  }
  return witnesses;
}

json MakeSummary(const SummaryInput& input, const json& figures, const RunWitnesses& witnesses) {
  json pauses;
  json summary = {{"status", input.status},
                  {"steps", figures.at("steps")},
                  {"wall_seconds", input.wall_seconds},
                  {"eval", figures.at("eval")},
                  {"syncs", SyncSummary(witnesses.syncs, &pauses)},
                  {"groups", GroupSummary(input.data.groups)},
                  {"staleness", figures.at("staleness")}};
  summary["pause_ms"] = pauses;
  summary["staleness"]["bound"] = input.data.staleness_bound;
  int64_t generated = 0;
  double busy = 0, idle = 0;
  summary["rollouters"] = json::array();
  for (const auto& rollouter : witnesses.rollouters) {
    generated += rollouter.generated_tokens();
    busy += rollouter.busy_seconds();
    idle += rollouter.idle_seconds();
    summary["rollouters"].push_back({{"id", rollouter.member().replica_id()},
                                     {"incarnation", rollouter.member().incarnation()},
                                     {"groups", rollouter.groups_submitted()},
                                     {"version", FromProto(rollouter.serving()).ToString()}});
  }
  summary["tokens"] = {{"generated", generated}, {"trained", figures.at("trained_tokens")}};
  summary["idle"] = {{"trainer", figures.at("idle")}, {"rollouters", busy + idle > 0 ? idle / (busy + idle) : 0.0}};
  return summary;
}

}  // namespace syncopate::services
