#include "services/trainer/kept_model.h"

#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/model_fingerprint.h"

namespace syncopate::trainerd {
namespace {

constexpr int64_t kMaxRecordBytes = 1 << 20;
constexpr char kStateFolder[] = "state/trainer";
constexpr char kModelRecord[] = "model.json";

using Fingerprint = std::map<std::string, std::string>;

absl::StatusOr<Fingerprint> ParseRecord(const std::string& text, const std::string& path) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  Fingerprint record;
  bool good = json.is_object();
  for (const auto& [name, digest] : json.items()) {
    good = good && digest.is_string();
    if (good) record[name] = digest.get<std::string>();
  }
  if (good) return record;
  return Error(absl::StatusCode::kDataLoss, "BAD_RECORD", absl::StrCat(path, " is no record of a model directory"));
}

// The first file of `now` that differs from the run's record; "" if there is none.
std::string FindDifference(const Fingerprint& now, const Fingerprint& kept) {
  for (const auto& [name, digest] : now) {
    const auto known = kept.find(name);
    if (known == kept.end() || known->second != digest) return name;
  }
  return "";
}

}  // namespace

absl::Status KeepModelFingerprint(FileSystem* files, const std::string& run_dir, const std::string& folder,
                                  bool begun) {
  if (folder.empty()) return absl::OkStatus();
  const absl::StatusOr<Fingerprint> now = model::FingerprintModel(folder);
  if (begun && absl::IsNotFound(now.status())) return absl::OkStatus();
  if (!now.ok()) return Annotate(now.status(), "model.path");
  const std::string state = JoinPath(run_dir, kStateFolder), path = JoinPath(state, kModelRecord);
  if (!begun) {
    SYNCOPATE_RETURN_IF_ERROR(files->CreateDirs(state));
    return WriteFileAtomically(files, path, nlohmann::json(*now).dump());
  }
  const absl::StatusOr<std::string> text = ReadFile(files, path, kMaxRecordBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  SYNCOPATE_RETURN_IF_ERROR(text.status());
  SYNCOPATE_ASSIGN_OR_RETURN(const Fingerprint kept, ParseRecord(*text, path));
  const std::string other = FindDifference(*now, kept);
  if (other.empty()) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, "FIXED_KEY",
               absl::StrCat("model.path: ", folder, " is not the model that the run in ", run_dir,
                            " was begun with, which is fixed for its whole life: ", other, " differs"));
}

}  // namespace syncopate::trainerd
