#include "services/trainer/run_summary.h"

#include <future>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/log.h"
#include "services/rpc/channel.h"
#include "services/telemetry/sync_outcome.h"
#include "services/telemetry/words.h"
#include "services/wire/codec.h"
#include "syncopate/v1/rollout.grpc.pb.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"

namespace syncopate::trainerd {
namespace {

using nlohmann::json;

constexpr absl::Duration kPatience = absl::Seconds(1);

absl::StatusOr<v1::RolloutServiceGetStatusResponse> AskRollouter(
    const std::string& address, const std::shared_ptr<const auth::TransportSecurity>& security) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto channel, rpc::MakeChannel(address, {.security = security, .peer_role = "rollouter"}));
  auto stub = v1::RolloutService::NewStub(channel);
  return rpc::CallUnary(stub.get(), &v1::RolloutService::Stub::GetStatus, v1::RolloutServiceGetStatusRequest(),
                        kPatience);
}

// All at once, each on a thread of its own: this happens once in a run.
std::vector<v1::RolloutServiceGetStatusResponse> AskRollouters(
    const std::vector<v1::MemberStatus>& members, const std::shared_ptr<const auth::TransportSecurity>& security) {
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

json SyncSummary(const telemetry::SyncTally& syncs) {
  const telemetry::SyncTally::Times& total = syncs.total();
  return {{"count", syncs.count()},
          {"failed", syncs.Count(telemetry::SyncOutcome::kFailed)},
          {"relabelled", syncs.Count(telemetry::SyncOutcome::kRelabelled)},
          {"superseded", syncs.Count(telemetry::SyncOutcome::kSuperseded)},
          {"total_ms",
           {{"p50", absl::ToDoubleMilliseconds(total.Quantile(0.5))},
            {"p99", absl::ToDoubleMilliseconds(total.Quantile(0.99))},
            {"max", absl::ToDoubleMilliseconds(total.longest)}}},
          {"bytes", syncs.bytes()}};
}

json GroupSummary(const trainer::TrainingSums& groups, const trainer::FlowSums& flow) {
  return {{"generated", groups.accepted + flow.failed + flow.duplicate + flow.expired},
          {"acked", groups.accepted},
          {"trained", groups.trained},
          {"dropped",
           {{"stale", groups.dropped_stale},
            {"filtered", groups.filtered},
            {"failed", flow.failed},
            {"expired", flow.expired},
            {"rolled_back", groups.rolled_back},
            {"skipped", groups.skipped}}},
          {"duplicate", flow.duplicate},
          {"invalid", json(flow.invalid)},
          {"reissued", flow.reissued}};
}

// One rollouter process at the end of the run.
struct RollouterFigures {
  std::string replica_id;
  std::string incarnation;
  PolicyVersion version;
  trainer::RolloutRoster::Work work;
  bool answered = false;  // these are its figures now, not those it gave last
};

std::vector<RollouterFigures> FiguresOf(const trainer::RolloutRoster& roster, const RunWitnesses& witnesses) {
  std::vector<RollouterFigures> figures;
  std::map<std::string, size_t> by_incarnation;
  for (const v1::RolloutServiceGetStatusResponse& status : witnesses.rollouters) {
    by_incarnation[status.member().incarnation()] = figures.size();
    figures.push_back({status.member().replica_id(),
                       status.member().incarnation(),
                       wire::FromProto(status.serving()),
                       {.generated_tokens = status.generated_tokens(),
                        .groups_submitted = status.groups_submitted(),
                        .busy_seconds = status.busy_seconds(),
                        .idle_seconds = status.idle_seconds()},
                       true});
  }
  for (const trainer::RolloutRoster::Entry& entry : roster.entries()) {
    if (by_incarnation.contains(entry.member.incarnation)) continue;
    figures.push_back({entry.member.replica_id, entry.member.incarnation, entry.serving, entry.work, false});
  }
  return figures;
}

// Adds "rollouters", "tokens" and "idle".
void AddRollouters(const SummaryInput& input, const RunWitnesses& witnesses, json* summary) {
  trainer::RolloutRoster::Work all = input.flow.roster.earlier();
  (*summary)["rollouters"] = json::array();
  for (const RollouterFigures& one : FiguresOf(input.flow.roster, witnesses)) {
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
  (*summary)["tokens"] = {{"generated", all.generated_tokens},
                          {"trained", input.data.sums.staleness.total_tokens() + input.data.sums.supervised_tokens}};
  const trainer::RunFigures& figures = input.flow.figures;
  (*summary)["idle"] = {{"trainer", telemetry::Share(figures.wait_seconds, figures.step_seconds)},
                        {"rollouters", telemetry::Share(all.idle_seconds, all.busy_seconds + all.idle_seconds)}};
}

}  // namespace

RunWitnesses AskWitnesses(const std::string& synchronizer_address,
                          const std::shared_ptr<const auth::TransportSecurity>& security) {
  RunWitnesses witnesses;
  auto channel = rpc::MakeChannel(synchronizer_address, {.security = security, .peer_role = "synchronizer"});
  if (!channel.ok()) return witnesses;
  auto stub = v1::SynchronizerService::NewStub(*channel);
  v1::SynchronizerServiceGetStatusRequest request;
  request.set_with_syncs(true);
  auto status = rpc::CallUnary(stub.get(), &v1::SynchronizerService::Stub::GetStatus, request, kPatience);
  if (status.ok()) {
    witnesses.syncs = telemetry::SyncTally::FromProto(status->syncs());
  } else {
    SYNCOPATE_LOG(kWarning, "the summary lacks weight syncs: %s", status.status().ToString());
  }
  auto members =
      rpc::CallUnary(stub.get(), &v1::SynchronizerService::Stub::ListMembers, v1::ListMembersRequest(), kPatience);
  if (!members.ok()) {
    SYNCOPATE_LOG(kWarning, "the summary lacks rollouters: %s", members.status().ToString());
    return witnesses;
  }
  std::vector<v1::MemberStatus> rollouters;
  for (const v1::MemberStatus& member : members->members()) {
    const bool alive = member.state() == v1::MEMBER_STATE_ALIVE || member.state() == v1::MEMBER_STATE_SUSPECT;
    // Of a replica of several ranks the first one answers.
    const bool answers = member.member().role() == v1::ROLE_ROLLOUTER && member.member().rank() == 0;
    if (alive && answers) rollouters.push_back(member);
  }
  witnesses.rollouters = AskRollouters(rollouters, security);
  return witnesses;
}

json MakeSummary(const SummaryInput& input, const RunWitnesses& witnesses) {
  auto or_null = [](const std::optional<double>& figure) { return figure.has_value() ? json(*figure) : json(); };
  const trainer::StalenessTally& staleness = input.data.sums.staleness;
  const trainer::RunFigures& evaluations = input.flow.figures;
  const telemetry::SyncTally::Times& pause = witnesses.syncs.pause();
  json summary = {
      {"status", input.status},
      {"steps", input.data.version.step},
      {"wall_seconds", input.flow.wall_seconds},
      {"eval",
       {{"best", or_null(evaluations.best_reward)},
        {"last", or_null(evaluations.last_reward)},
        {"exact", {{"best", or_null(evaluations.best_exact)}, {"last", or_null(evaluations.last_exact)}}}}},
      {"syncs", SyncSummary(witnesses.syncs)},
      {"pause_ms",
       {{"p50", absl::ToDoubleMilliseconds(pause.Quantile(0.5))}, {"max", absl::ToDoubleMilliseconds(pause.longest)}}},
      {"groups", GroupSummary(input.data.sums, input.flow)},
      {"staleness",
       {{"mean", staleness.Mean()},
        {"max", staleness.Max()},
        {"violations", staleness.violating_groups},
        {"bound", input.data.staleness_bound}}}};
  AddRollouters(input, witnesses, &summary);
  return summary;
}

}  // namespace syncopate::trainerd
