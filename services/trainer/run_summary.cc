#include "services/trainer/run_summary.h"

#include <algorithm>
#include <future>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "services/codec/codec.h"
#include "services/report/sync_outcome.h"
#include "services/report/words.h"
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

absl::StatusOr<v1::RolloutServiceGetStatusResponse> AskRollouter(
    const std::string& address, const std::shared_ptr<const TransportSecurity>& security) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto channel, MakeChannel(address, {.security = security, .peer_role = "rollouter"}));
  auto stub = v1::RolloutService::NewStub(channel);
  return CallUnary(stub.get(), &v1::RolloutService::Stub::GetStatus, v1::RolloutServiceGetStatusRequest(), kPatience);
}

// All at once, each on a thread of its own: this happens once in a run.
std::vector<v1::RolloutServiceGetStatusResponse> AskRollouters(
    const std::vector<v1::MemberStatus>& members, const std::shared_ptr<const TransportSecurity>& security) {
  std::vector<std::future<absl::StatusOr<v1::RolloutServiceGetStatusResponse>>> answers;
  for (const v1::MemberStatus& member : members) {
    answers.push_back(std::async(std::launch::async, AskRollouter, member.address(), security));
  }
  std::vector<v1::RolloutServiceGetStatusResponse> given;
  for (size_t i = 0; i < members.size(); ++i) {
    auto answer = answers[i].get();
    if (answer.ok()) {
      given.push_back(*std::move(answer));
    } else {
      SYNCOPATE_LOG(kWarning, "%s does not answer, the summary has what it said last: %s",
                    members[i].member().replica_id(), answer.status().ToString());
    }
  }
  return given;
}

// The q-quantile of `values` by nearest rank; 0 if there are none.
double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

json SyncSummary(const std::vector<v1::SyncRecord>& syncs, json* pauses) {
  std::vector<double> total_ms, pause_ms;
  std::map<SyncOutcome, int64_t> outcomes;
  int64_t bytes = 0;
  int64_t count = 0;
  for (const v1::SyncRecord& sync : syncs) {
    const SyncOutcome outcome = SyncOutcomeOf(sync.result());
    if (outcome == SyncOutcome::kRehearsed) continue;
    ++count;
    bytes += sync.bytes();
    ++outcomes[outcome];
    if (outcome != SyncOutcome::kDone && outcome != SyncOutcome::kRelabelled) continue;
    auto total = sync.seconds().find("total");
    if (total != sync.seconds().end()) total_ms.push_back(1000 * total->second);
    pause_ms.push_back(1000 * sync.pause_seconds());
  }
  *pauses = {{"p50", Quantile(pause_ms, 0.5)}, {"max", Quantile(pause_ms, 1)}};
  return {{"count", count},
          {"failed", outcomes[SyncOutcome::kFailed]},
          {"relabelled", outcomes[SyncOutcome::kRelabelled]},
          {"superseded", outcomes[SyncOutcome::kSuperseded]},
          {"total_ms",
           {{"p50", Quantile(total_ms, 0.5)}, {"p99", Quantile(total_ms, 0.99)}, {"max", Quantile(total_ms, 1)}}},
          {"bytes", bytes}};
}

json GroupSummary(const TrainingData::Status& data) {
  const trainer::GroupLedger::Counters& groups = data.groups;
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
          {"invalid", json(data.invalid)},
          {"reissued", groups.reissued}};
}

// One rollouter process at the end of the run.
struct RollouterFigures {
  std::string replica_id;
  std::string incarnation;
  PolicyVersion version;
  RolloutRoster::Work work;
  bool answered = false;  // these are its figures now, not those it gave last
};

std::vector<RollouterFigures> FiguresOf(const RolloutRoster& roster, const RunWitnesses& witnesses) {
  std::vector<RollouterFigures> figures;
  std::map<std::string, size_t> by_incarnation;
  for (const v1::RolloutServiceGetStatusResponse& status : witnesses.rollouters) {
    by_incarnation[status.member().incarnation()] = figures.size();
    figures.push_back({status.member().replica_id(),
                       status.member().incarnation(),
                       FromProto(status.serving()),
                       {.generated_tokens = status.generated_tokens(),
                        .groups_submitted = status.groups_submitted(),
                        .busy_seconds = status.busy_seconds(),
                        .idle_seconds = status.idle_seconds()},
                       true});
  }
  for (const RolloutRoster::Entry& entry : roster.entries()) {
    if (by_incarnation.contains(entry.member.incarnation)) continue;
    figures.push_back({entry.member.replica_id, entry.member.incarnation, entry.serving, entry.work, false});
  }
  return figures;
}

// Adds "rollouters", "tokens" and "idle".
void AddRollouters(const SummaryInput& input, const json& figures, const RunWitnesses& witnesses, json* summary) {
  RolloutRoster::Work all = input.roster.earlier();
  (*summary)["rollouters"] = json::array();
  for (const RollouterFigures& one : FiguresOf(input.roster, witnesses)) {
    all.generated_tokens += one.work.generated_tokens;
    all.busy_seconds += one.work.busy_seconds;
    all.idle_seconds += one.work.idle_seconds;
    (*summary)["rollouters"].push_back({{"id", one.replica_id},
                                        {"incarnation", one.incarnation},
                                        {"alive", one.answered},
                                        {"groups", one.work.groups_submitted},
                                        {"tokens", one.work.generated_tokens},
                                        {"version", one.version.ToString()}});
  }
  (*summary)["tokens"] = {{"generated", all.generated_tokens}, {"trained", figures.at("trained_tokens")}};
  (*summary)["idle"] = {{"trainer", figures.at("idle")},
                        {"rollouters", Share(all.idle_seconds, all.busy_seconds + all.idle_seconds)}};
}

}  // namespace

RunWitnesses AskWitnesses(const std::string& synchronizer_address,
                          const std::shared_ptr<const TransportSecurity>& security) {
  RunWitnesses witnesses;
  auto channel = MakeChannel(synchronizer_address, {.security = security, .peer_role = "synchronizer"});
  if (!channel.ok()) return witnesses;
  auto stub = v1::SynchronizerService::NewStub(*channel);
  witnesses.syncs = AskSyncs(*stub);
  auto members =
      CallUnary(stub.get(), &v1::SynchronizerService::Stub::ListMembers, v1::ListMembersRequest(), kPatience);
  if (!members.ok()) {
    SYNCOPATE_LOG(kWarning, "the summary lacks rollouters: %s", members.status().ToString());
    return witnesses;
  }
  std::vector<v1::MemberStatus> rollouters;
  for (const v1::MemberStatus& member : members->members()) {
    const bool alive = member.state() == v1::MEMBER_STATE_ALIVE || member.state() == v1::MEMBER_STATE_SUSPECT;
    if (alive && member.member().role() == v1::ROLE_ROLLOUTER) rollouters.push_back(member);
  }
  witnesses.rollouters = AskRollouters(rollouters, security);
  return witnesses;
}

json MakeSummary(const SummaryInput& input, const json& figures, const RunWitnesses& witnesses) {
  json pauses;
  json summary = {{"status", input.status},
                  {"steps", figures.at("steps")},
                  {"wall_seconds", input.wall_seconds},
                  {"eval", figures.at("eval")},
                  {"syncs", SyncSummary(witnesses.syncs, &pauses)},
                  {"groups", GroupSummary(input.data)},
                  {"staleness", figures.at("staleness")}};
  summary["pause_ms"] = pauses;
  summary["staleness"]["bound"] = input.data.staleness_bound;
  AddRollouters(input, figures, witnesses, &summary);
  return summary;
}

}  // namespace syncopate::services
