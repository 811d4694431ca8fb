#include "tools/records/sync_trace.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "services/wire/codec.h"

namespace syncopate::records {
namespace {

using nlohmann::json;

std::string Field(const v1::Event& event, const std::string& name) {
  auto found = event.fields().find(name);
  return found == event.fields().end() ? "" : found->second;
}

double Seconds(const v1::Event& event, const std::string& name) {
  double seconds = 0;
  return absl::SimpleAtod(Field(event, name), &seconds) ? seconds : 0;
}

struct Span {
  std::string process;
  std::string thread;
  std::string name;
  double begin = 0;  // unix seconds
  double seconds = 0;
  json arguments;
};

// Adds phases that follow each other and end at `end`; a phase that did not run leaves no span.
void AddParts(const v1::Event& event, const std::string& thread, double end,
              const std::vector<std::pair<std::string, double>>& parts, std::vector<Span>* spans) {
  json arguments = {{"version", wire::FromProto(event.version()).ToString()}};
  for (const auto& [key, value] : event.fields()) arguments[key] = value;
  double begin = end;
  for (const auto& [name, seconds] : parts) begin -= seconds;
  for (const auto& [name, seconds] : parts) {
    if (seconds > 0) spans->push_back({event.role(), thread, name, begin, seconds, arguments});
    begin += seconds;
  }
}

// Adds one receiver's part, as the synchronizer saw it.
void AddSync(const v1::Event& event, std::vector<Span>* spans) {
  std::vector<std::pair<std::string, double>> parts;
  for (const char* phase : {"stage", "prepare", "transfer", "verify", "install"}) {
    parts.emplace_back(phase, Seconds(event, absl::StrCat(phase, "_seconds")));
  }
  AddParts(event, Field(event, "replica"), event.unix_seconds(), parts, spans);
}

// Adds one phase, as a member measured it.
void AddPhase(const v1::Event& event, std::vector<Span>* spans) {
  const std::string phase = Field(event, "phase");
  const double whole = Seconds(event, "seconds");
  const double connect = std::min(whole, Seconds(event, "connect_seconds"));
  const double verify = std::min(whole - connect, Seconds(event, "verify_seconds"));
  AddParts(event, "sync", event.unix_seconds(),
           {{"connect", connect}, {phase, whole - connect - verify}, {"verify", verify}}, spans);
}

absl::StatusOr<int64_t> Choose(const std::vector<v1::Event>& events, std::optional<int64_t> wanted) {
  int64_t last = 0;
  int64_t last_good = 0;
  bool there = false;
  for (const v1::Event& event : events) {
    if (event.kind() != "sync" || event.attempt() == 0) continue;
    const bool good = Field(event, "result") == "ok";
    last = event.attempt();
    if (good) last_good = event.attempt();
    there = there || event.attempt() == wanted;
  }
  if (wanted.has_value() && there) return *wanted;
  if (!wanted.has_value() && last != 0) return last_good != 0 ? last_good : last;
  return Error(absl::StatusCode::kNotFound, "NO_SYNC",
               wanted.has_value()
                   ? absl::StrCat("the run has no sync attempt ", *wanted, "; `events --kind sync` lists them")
                   : "the run has no weight sync");
}

json GetMetadata(const char* what, int pid, int tid, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", pid}, {"tid", tid}, {"args", {{"name", name}}}};
}

std::string ToChrome(const std::vector<Span>& spans) {
  double origin = spans.front().begin;
  for (const Span& span : spans) origin = std::min(origin, span.begin);
  json events = json::array();
  std::map<std::string, int> pids;
  std::map<std::pair<std::string, std::string>, int> tids;
  for (const Span& span : spans) {
    auto [pid, new_process] = pids.emplace(span.process, static_cast<int>(pids.size()) + 1);
    if (new_process) events.push_back(GetMetadata("process_name", pid->second, 0, span.process));
    auto [tid, new_thread] = tids.emplace(std::pair(span.process, span.thread), static_cast<int>(tids.size()) + 1);
    if (new_thread) events.push_back(GetMetadata("thread_name", pid->second, tid->second, span.thread));
    events.push_back({{"name", span.name},
                      {"cat", "weight sync"},
                      {"ph", "X"},
                      {"pid", pid->second},
                      {"tid", tid->second},
                      {"ts", 1e6 * (span.begin - origin)},
                      {"dur", 1e6 * span.seconds},
                      {"args", span.arguments}});
  }
  return json{{"displayTimeUnit", "ms"}, {"traceEvents", events}}.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

absl::StatusOr<std::string> SyncTrace(const std::vector<v1::Event>& events, std::optional<int64_t> attempt) {
  SYNCOPATE_ASSIGN_OR_RETURN(const int64_t chosen, Choose(events, attempt));
  std::vector<Span> spans;
  PolicyVersion version;
  for (const v1::Event& event : events) {
    if (event.attempt() != chosen) continue;
    if (event.kind() == "sync") AddSync(event, &spans);
    if (event.kind() == "phase") AddPhase(event, &spans);
    if (event.kind() == "sync") version = wire::FromProto(event.version());
  }
  for (const v1::Event& event : events) {
    if (event.kind() != "publish" || wire::FromProto(event.version()) != version) continue;
    AddParts(event, "sync", event.unix_seconds(), {{"stage", Seconds(event, "stage_seconds")}}, &spans);
  }
  if (spans.empty()) {
    return Error(absl::StatusCode::kNotFound, "NO_SYNC", absl::StrCat("attempt ", chosen, " left no phase that ran"));
  }
  std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return std::pair(a.process, a.begin) < std::pair(b.process, b.begin);
  });
  return ToChrome(spans);
}

}  // namespace syncopate::records
