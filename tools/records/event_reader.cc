#include "tools/records/event_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/record_log.h"
#include "services/wire/codec.h"

namespace syncopate::records {
namespace {

constexpr char kSuffix[] = ".binlog";

absl::Status ReadOne(FileSystem* files, const std::string& path, RunEvents* into) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto reader, RecordReader::Open(files, path));
  while (true) {
    SYNCOPATE_ASSIGN_OR_RETURN(std::optional<std::string> record, reader.Next());
    if (!record.has_value()) break;
    v1::Event event;
    if (event.ParseFromString(*record)) {
      into->events.push_back(std::move(event));
    } else {
      into->warnings.push_back(absl::StrCat(path, ": a record is no event"));
    }
  }
  if (!reader.damage().empty()) into->warnings.push_back(absl::StrCat(path, ": ", reader.damage()));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RunEvents> ReadRunEvents(FileSystem* files, const std::string& run_dir) {
  const std::string folder = JoinPath(run_dir, "events");
  absl::StatusOr<std::vector<std::string>> names = files->List(folder);
  if (absl::IsNotFound(names.status())) {
    return Error(absl::StatusCode::kNotFound, "NO_EVENTS", absl::StrCat(run_dir, " contains no event logs"));
  }
  SYNCOPATE_RETURN_IF_ERROR(names.status());
  RunEvents all;
  for (const std::string& name : *names) {
    if (!absl::EndsWith(name, kSuffix)) continue;
    const absl::Status read = ReadOne(files, JoinPath(folder, name), &all);
    if (!read.ok()) all.warnings.push_back(absl::StrCat(name, ": ", std::string(read.message())));
  }
  std::stable_sort(all.events.begin(), all.events.end(),
                   [](const v1::Event& a, const v1::Event& b) { return a.unix_seconds() < b.unix_seconds(); });
  return all;
}

std::string ToJson(const v1::Event& event) {
  nlohmann::json json = {{"unix_seconds", event.unix_seconds()},
                         {"daemon", event.role()},
                         {"kind", event.kind()},
                         {"version", wire::FromProto(event.version()).ToString()}};
  if (event.attempt() != 0) json["attempt"] = event.attempt();
  for (const auto& [key, value] : event.fields()) json[key] = value;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace syncopate::records
