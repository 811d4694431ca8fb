#include "base/daemon/daemon_endpoints.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/status.h"

namespace syncopate::daemon {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kMaxFileBytes = 1 << 20;

json ToJson(const DaemonEndpoint& endpoint) {
  return {{"role", endpoint.role},       {"index", endpoint.index}, {"grpc", endpoint.grpc},
          {"metrics", endpoint.metrics}, {"pid", endpoint.pid},     {"name", endpoint.Name()}};
}

std::string GetPath(const std::string& run_dir, const std::string& name) {
  return (fs::path(run_dir) / "endpoints" / (name + ".json")).string();
}

bool HasText(const json& object, const char* key) { return object.contains(key) && object[key].is_string(); }
bool HasInteger(const json& object, const char* key) { return object.contains(key) && object[key].is_number_integer(); }

// "" if the name is <role>-<index>, which most daemons have: they then compare equal to endpoints made from role and
// index.
std::string OwnName(const json& object) {
  if (!HasText(object, "name")) return "";
  std::string name = object["name"].get<std::string>();
  const std::string usual = absl::StrCat(object["role"].get<std::string>(), "-", object["index"].get<int64_t>());
  return name == usual ? "" : name;
}

absl::StatusOr<DaemonEndpoint> FromJson(const json& object, const std::string& path) {
  bool whole = object.is_object() && HasText(object, "role") && HasText(object, "grpc") && HasText(object, "metrics") &&
               HasInteger(object, "index") && HasInteger(object, "pid");
  if (!whole) {
    return Error(absl::StatusCode::kDataLoss, "BAD_ENDPOINT",
                 absl::StrCat(path, " does not contain an endpoint; remove it and restart that daemon"));
  }
  return DaemonEndpoint{object["role"].get<std::string>(), object["index"].get<int64_t>(),
                        object["grpc"].get<std::string>(), object["metrics"].get<std::string>(),
                        object["pid"].get<int64_t>(),      OwnName(object)};
}

absl::StatusOr<json> ReadJson(const std::string& path) {
  auto text = ReadFile(FileSystem::Real(), path, kMaxFileBytes);
  if (absl::IsNotFound(text.status())) {
    return Error(absl::StatusCode::kNotFound, "NO_ENDPOINT",
                 absl::StrCat("there is no ", path, "; is the run started?"));
  }
  if (!text.ok()) return text.status();
  json parsed = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) {
    return Error(absl::StatusCode::kDataLoss, "BAD_ENDPOINT", absl::StrCat(path, " is not JSON"));
  }
  return parsed;
}

absl::StatusOr<std::vector<DaemonEndpoint>> ReadFolder(const std::string& run_dir) {
  std::vector<DaemonEndpoint> endpoints;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::path(run_dir) / "endpoints", error)) {
    if (entry.path().extension() != ".json") continue;
    SYNCOPATE_ASSIGN_OR_RETURN(DaemonEndpoint endpoint, ReadDaemonEndpoint(entry.path().string()));
    endpoints.push_back(std::move(endpoint));
  }
  if (endpoints.empty()) {
    return Error(absl::StatusCode::kNotFound, "NO_ENDPOINT",
                 absl::StrCat(run_dir, " contains no endpoints: no daemon of that run has started"));
  }
  return endpoints;
}

absl::StatusOr<std::vector<DaemonEndpoint>> ReadUnion(const std::string& path) {
  SYNCOPATE_ASSIGN_OR_RETURN(json parsed, ReadJson(path));
  if (!parsed.is_array()) {
    return Error(absl::StatusCode::kDataLoss, "BAD_ENDPOINT", absl::StrCat(path, " does not contain a list"));
  }
  std::vector<DaemonEndpoint> endpoints;
  for (const json& object : parsed) {
    SYNCOPATE_ASSIGN_OR_RETURN(DaemonEndpoint endpoint, FromJson(object, path));
    endpoints.push_back(std::move(endpoint));
  }
  return endpoints;
}

}  // namespace

std::string DaemonEndpoint::Name() const { return name.empty() ? absl::StrCat(role, "-", index) : name; }

std::string EndpointPath(const std::string& run_dir, const std::string& role, int64_t index) {
  return GetPath(run_dir, absl::StrCat(role, "-", index));
}

std::string RanksSecretPath(const std::string& run_dir) {
  return (fs::path(run_dir) / kRanksFolder / "endpoints" / "trainer-0.secret").string();
}

absl::Status WriteRanksSecret(const std::string& run_dir, const std::string& secret) {
  const std::string path = RanksSecretPath(run_dir);
  SYNCOPATE_RETURN_IF_ERROR(FileSystem::Real()->CreateDirs(fs::path(path).parent_path().string()));
  return WriteFileAtomically(FileSystem::Real(), path, secret);  // FileSystem gives every file mode 0600
}

absl::StatusOr<std::string> ReadRanksSecret(const std::string& run_dir) {
  auto secret = ReadFile(FileSystem::Real(), RanksSecretPath(run_dir), kMaxFileBytes);
  return absl::IsNotFound(secret.status()) ? std::string() : secret;
}

absl::Status WriteDaemonEndpoint(const std::string& run_dir, const DaemonEndpoint& endpoint) {
  std::string path = GetPath(run_dir, endpoint.Name());
  SYNCOPATE_RETURN_IF_ERROR(FileSystem::Real()->CreateDirs(fs::path(path).parent_path().string()));
  // Atomically, because other processes poll this file and must never read a part of it.
  return WriteFileAtomically(FileSystem::Real(), path, ToJson(endpoint).dump() + "\n");
}

absl::StatusOr<DaemonEndpoint> ReadDaemonEndpoint(const std::string& path) {
  SYNCOPATE_ASSIGN_OR_RETURN(json parsed, ReadJson(path));
  return FromJson(parsed, path);
}

absl::Status WriteRunEndpoints(const std::string& run_dir, const std::vector<DaemonEndpoint>& endpoints) {
  json list = json::array();
  for (const DaemonEndpoint& endpoint : endpoints) list.push_back(ToJson(endpoint));
  std::string path = (fs::path(run_dir) / "endpoints.json").string();
  return WriteFileAtomically(FileSystem::Real(), path, list.dump(2) + "\n");
}

absl::StatusOr<std::vector<DaemonEndpoint>> ReadRunEndpoints(const std::string& run_dir) {
  std::string path = (fs::path(run_dir) / "endpoints.json").string();
  // The supervisor writes the union; daemons that were started by hand have only written their own files.
  std::error_code ignored;  // a file that cannot be looked up counts as missing
  auto endpoints = fs::exists(path, ignored) ? ReadUnion(path) : ReadFolder(run_dir);
  if (!endpoints.ok()) return endpoints.status();
  auto order = [](const DaemonEndpoint& a, const DaemonEndpoint& b) {
    return std::tie(a.role, a.index, a.name) < std::tie(b.role, b.index, b.name);
  };
  std::sort(endpoints->begin(), endpoints->end(), order);
  return endpoints;
}

absl::StatusOr<std::string> FindNewestRun(const std::string& runs_dir) {
  std::string newest;
  fs::file_time_type written;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(runs_dir, error)) {
    // Compares the times of files that daemons write at their start. The time of the run directory itself also changes
    // when a person copies a file into it.
    for (const char* name : {"endpoints.json", "endpoints"}) {
      std::error_code missing;
      auto time = fs::last_write_time(entry.path() / name, missing);
      if (missing || (!newest.empty() && time <= written)) continue;
      newest = entry.path().string();
      written = time;
    }
  }
  if (newest.empty()) {
    return Error(absl::StatusCode::kNotFound, "NO_RUN",
                 absl::StrCat("no run under ", runs_dir, "; name one with --run DIR or a daemon with --target"));
  }
  return newest;
}

}  // namespace syncopate::daemon
