#include "tools/ctl/answers.h"

#include <google/protobuf/util/json_util.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/console/text_table.h"
#include "base/console/words.h"
#include "base/status.h"
#include "services/wire/codec.h"
#include "synchronizer/sync_outcome.h"

namespace syncopate::ctl {
namespace {

constexpr auto kRight = TextTable::Align::kRight;

double Seconds(const v1::SyncRecord& record, const std::string& phase) {
  auto found = record.seconds().find(phase);
  return found == record.seconds().end() ? 0 : found->second;
}

// Returns "full", "lora", "full+lora", "lora+mapped", or "-" if nothing was sent or mapped.
std::string GetKinds(const v1::SyncRecord& record) {
  std::vector<std::string> kinds;
  for (const char* kind : {"full", "lora", "delta", "mapped"}) {
    auto found = record.bytes_by_kind().find(kind);
    if (found != record.bytes_by_kind().end() && found->second > 0) kinds.push_back(kind);
  }
  return kinds.empty() ? "-" : absl::StrJoin(kinds, "+");
}

// Returns ", from ranks 1,024 + 512"; "" unless several ranks have sent.
std::string GetSources(const v1::SyncRecord& record) {
  if (record.bytes_by_source_size() < 2) return "";
  std::vector<std::string> bytes;
  for (const int64_t one : record.bytes_by_source()) bytes.push_back(Thousands(one));
  return absl::StrCat(", from trainer ranks ", absl::StrJoin(bytes, " + "));
}

std::string ComputeRate(const v1::SyncRecord& record) {
  const double rate = record.gigabytes_per_second();
  return rate > 0 ? absl::StrFormat("%.*f", rate < 10 ? 2 : 1, rate) : "-";
}

std::string LocalDate(double unix_seconds) {
  if (unix_seconds <= 0) return "-";
  const absl::Time time = absl::FromUnixMicros(static_cast<int64_t>(1e6 * unix_seconds));
  return absl::FormatTime("%Y-%m-%d %H:%M:%E3S", time, absl::LocalTimeZone());
}

// A sentence about checkpoints that could not be saved; "" if none.
std::string FailedCheckpoints(const v1::TrainerServiceGetStatusResponse& status) {
  if (status.failed_checkpoints() == 0) return "";
  std::string text = absl::StrCat(status.failed_checkpoints(), " checkpoints failed");
  if (!status.checkpoint_error().empty()) absl::StrAppend(&text, ", the newest with ", status.checkpoint_error());
  return text;
}

}  // namespace

std::string ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  // Scripts read this: an omitted 0 would look like a field that does not exist.
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  SYNCOPATE_CHECK(google::protobuf::util::MessageToJsonString(message, &json, options).ok());
  return json;
}

std::string StateName(v1::MemberState state) {
  constexpr size_t kPrefix = sizeof("MEMBER_STATE_") - 1;
  std::string name = v1::MemberState_Name(state);
  // A newer daemon may have more states: their number has no name here.
  return name.size() > kPrefix ? absl::AsciiStrToLower(name.substr(kPrefix)) : absl::StrCat(state);
}

std::string Summary(const v1::SynchronizerServiceGetStatusResponse& status) {
  return absl::StrCat(status.trainers_alive(), " trainer and ", status.rollouters_alive(),
                      " rollouter(s) alive, syncs ", status.syncs_ok(), " ok, ", status.syncs_failed(), " failed, ",
                      status.syncs_superseded(), " superseded, ", status.attempts_under_way(), " under way, up ",
                      Clocked(status.uptime_seconds()));
}

std::string Summary(const v1::TrainerServiceGetStatusResponse& status) {
  const std::string failed = FailedCheckpoints(status);
  return absl::StrFormat("step %d/%d, %d groups queued, %d leased, staleness %.2f mean, %d max (bound %d)%s",
                         status.version().step(), status.steps_total(), status.queued_groups(), status.leased_groups(),
                         status.mean_staleness(), status.max_staleness_seen(), status.staleness_bound(),
                         failed.empty() ? "" : ", " + failed);
}

std::string Summary(const v1::RolloutServiceGetStatusResponse& status) {
  double whole = status.busy_seconds() + status.idle_seconds();
  return absl::StrCat(status.running_sequences(), " running, ", status.waiting_sequences(), " waiting, ",
                      Thousands(status.groups_submitted()), " groups, ", Thousands(status.generated_tokens()),
                      " tokens, idle ", Percent(Share(status.idle_seconds(), whole)));
}

std::string ToTable(const v1::ListMembersResponse& members) {
  TextTable table(
      {{"MEMBER"}, {"STATE"}, {"SERVES"}, {"ADDRESS"}, {"METRICS"}, {"SILENT", kRight}, {"INCARNATION"}, {"DETAIL"}});
  for (const auto& member : members.members()) {
    std::string detail = member.detail();
    if (member.attempt() != 0)
      absl::StrAppend(&detail, detail.empty() ? "" : "; ", "in sync attempt ", member.attempt());
    std::string rank = member.member().world() > 1 ? absl::StrCat("/", member.member().rank()) : "";
    table.AddRow({member.member().replica_id() + rank, StateName(member.state()), wire::VersionText(member.serving()),
                  member.address(), member.metrics_address(), absl::StrFormat("%.1f s", member.silent_seconds()),
                  member.member().incarnation().substr(0, 8), detail});
  }
  return table.ToString();
}

std::string ToTable(const v1::ListVersionsResponse& versions) {
  TextTable table({{"VERSION"}, {"DIGEST"}, {"SERVED BY", kRight}, {"PUBLISHED"}});
  for (const auto& version : versions.versions()) {
    table.AddRow({wire::VersionText(version.version()), absl::StrFormat("%016x", version.digest()),
                  absl::StrCat(version.served_by()), LocalDate(version.published_unix_seconds())});
  }
  return table.ToString();
}

std::string ToTable(const v1::GenerateResponse& answer) {
  TextTable table({{"POSITION", kRight}, {"TOKEN", kRight}, {"LOGPROB", kRight}, {"VERSION"}});
  for (int i = 0; i < answer.tokens_size(); ++i) {
    std::string version = "-";
    for (const auto& span : answer.spans()) {
      if (i >= span.begin() && i < span.end()) version = wire::VersionText(span.version());
    }
    double logprob = i < answer.logprobs_size() ? answer.logprobs(i) : 0;
    table.AddRow({absl::StrCat(i), absl::StrCat(answer.tokens(i)), absl::StrFormat("%.4f", logprob), version});
  }
  return table.ToString();
}

// The failures of rewards, as a sentence for people; "" if none has failed.
std::string RewardFaults(const v1::RewardFailures& rewards) {
  if (rewards.failed() == 0) return "";
  std::string text = absl::StrCat(Thousands(rewards.failed()), " groups got no reward, ", rewards.recent_failed(),
                                  " of the last ", rewards.recent(), "; the first: ", rewards.first(), "\n");
  if (rewards.last() != rewards.first()) absl::StrAppend(&text, "the last: ", rewards.last(), "\n");
  return text;
}

std::string ToText(const v1::TrainerServiceGetStatusResponse& status) {
  const auto& why = status.explanation();
  std::string text =
      absl::StrFormat("trainer       %s at %s, step %d of %d\n", status.state(), wire::VersionText(status.version()),
                      status.version().step(), status.steps_total());
  absl::StrAppendFormat(&text, "waiting for   %s, since %.1f s%s\n", why.waiting_for(), why.since_seconds(),
                        why.rollouter().empty() ? "" : absl::StrCat(", on ", why.rollouter()));
  if (!why.detail().empty()) absl::StrAppend(&text, "because       ", why.detail(), "\n");
  if (!why.unblocked_by().empty()) absl::StrAppend(&text, "ends when     ", why.unblocked_by(), "\n");
  absl::StrAppendFormat(
      &text,
      "a group takes %.3f s on average, %.3f s at most; a step comes every %.3f s\n"
      "to keep the trainer busy: staleness.target_staleness about %.1f, max_staleness at least %.1f\n",
      why.mean_group_seconds(), why.longest_group_seconds(), why.step_interval_seconds(),
      why.suggested_target_staleness(), why.suggested_max_staleness());
  if (const std::string failed = FailedCheckpoints(status); !failed.empty()) absl::StrAppend(&text, failed, "\n");
  TextTable table({{"ROLLOUTER"},
                   {"SERVES"},
                   {"LAG", kRight},
                   {"LEASED", kRight},
                   {"CREDITS", kRight},
                   {"ACCEPTED", kRight},
                   {"INVALID", kRight},
                   {"RETURNED", kRight},
                   {"STREAM"}});
  std::string faults = RewardFaults(status.reward_failures());
  for (const auto& rollouter : status.rollouters()) {
    const bool quarantined = rollouter.quarantine_seconds() > 0;
    table.AddRow({rollouter.replica_id(), wire::VersionText(rollouter.serving()),
                  absl::StrCat(rollouter.publish_lag_steps()), absl::StrCat(rollouter.leased_groups()),
                  absl::StrCat(rollouter.credits()), Thousands(rollouter.accepted_groups()),
                  Thousands(rollouter.invalid_groups()), Thousands(rollouter.returned_groups()),
                  quarantined ? absl::StrFormat("quarantined %.0f s", rollouter.quarantine_seconds())
                  : rollouter.stalled_groups() > 0 ? "stalled"
                  : rollouter.connected()          ? "connected"
                                                   : "broken"});
    if (rollouter.stalled_groups() > 0) {
      absl::StrAppendFormat(&faults, "%s gets no prompts: %d groups were taken from it as they came no further\n",
                            rollouter.replica_id(), rollouter.stalled_groups());
    }
    if (!rollouter.no_rewards().empty()) {
      absl::StrAppend(&faults, rollouter.replica_id(), " asks for no work: ", rollouter.no_rewards(), "\n");
    }
    if (rollouter.last_fault().empty()) continue;
    absl::StrAppend(&faults, rollouter.replica_id(), quarantined ? " gets no prompts: " : ": ", rollouter.last_fault(),
                    "\n");
  }
  return absl::StrCat(text, table.ToString(), faults);
}

namespace {

std::string LimitText(const v1::Sizing& sizing) {
  const std::string idle =
      absl::StrFormat("it waits for groups %.0f %% of its time", 100 * sizing.trainer_idle_ratio());
  if (sizing.limit() == "trainer") return absl::StrCat("the trainer: ", idle);
  if (sizing.limit() == "rollouters") return absl::StrCat("the rollouters: the trainer could do more, ", idle);
  return absl::StrCat("staleness: both sides wait, as its settings let little work be outstanding; of the trainer, ",
                      idle);
}

}  // namespace

std::string ToText(const v1::Sizing& sizing) {
  std::string text = absl::StrFormat(
      "limit         %s\n"
      "a group       takes %.3f s on average, %.3f s at most; a step without waiting takes %.3f s\n"
      "slots         %d rollouters work on %.1f groups each at once\n",
      LimitText(sizing), sizing.mean_group_seconds(), sizing.longest_group_seconds(), sizing.step_seconds(),
      sizing.rollouters(), sizing.slots_per_rollouter());
  TextTable table({{"ROLLOUTERS", kRight}, {"STEPS/S", kRight}, {""}});
  auto add = [&table](int64_t rollouters, double rate, const std::string& note) {
    table.AddRow({absl::StrCat(rollouters), absl::StrFormat("%.3f", rate), note});
  };
  if (sizing.rollouters() > 1) add(sizing.rollouters() - 1, sizing.steps_per_second_one_fewer(), "predicted");
  add(sizing.rollouters(), sizing.steps_per_second(), "now");
  add(sizing.rollouters() + 1, sizing.steps_per_second_one_more(), "predicted");
  absl::StrAppend(&text, table.ToString());
  absl::StrAppendFormat(&text,
                        "as staleness is set, %d rollouters give 95 %% of what any number could; a trainer that never "
                        "waits makes %.3f steps/s\n"
                        "with staleness.target_staleness %.2f and max_staleness %d, %d rollouters give %.3f steps/s\n",
                        sizing.useful_rollouters(), sizing.steps_per_second_most(), sizing.target_staleness(),
                        sizing.max_staleness(), sizing.advised_rollouters(), sizing.advised_steps_per_second());
  return text;
}

// Rows are printed one by one as syncs end, so widths are fixed: a table would need all rows first.
std::string SyncHeading() {
  return absl::StrFormat("%-16s %-10s %-14s %-6s %-14s %14s %-9s %7s %9s %9s %9s %9s %9s %9s %9s  %s\n", "ATTEMPT",
                         "VERSION", "RECEIVER", "BY", "RESULT", "BYTES", "KIND", "GB/S", "STAGE", "PREPARE", "TRANSFER",
                         "VERIFY", "INSTALL", "TOTAL", "PAUSE", "WHY");
}

std::string SyncRow(const v1::SyncRecord& record) {
  auto phase = [&record](const std::string& name) { return Milliseconds(Seconds(record, name)); };
  const bool failed = synchronizer::ClassifySyncResult(record.result()) == synchronizer::SyncOutcome::kFailed ||
                      record.result() == "not_connected";
  return absl::StrFormat("%-16d %-10s %-14s %-6s %-14s %14s %-9s %7s %9s %9s %9s %9s %9s %9s %9s  %s\n",
                         record.attempt(), wire::VersionText(record.version()), record.replica_id(), record.transport(),
                         record.result(), Thousands(record.bytes()), GetKinds(record), ComputeRate(record),
                         phase("stage"), phase("prepare"), phase("transfer"), phase("verify"), phase("install"),
                         phase("total"), Milliseconds(record.pause_seconds()),
                         failed ? record.detail() : record.transport_reason() + GetSources(record));
}

}  // namespace syncopate::ctl
