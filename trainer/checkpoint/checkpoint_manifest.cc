#include "trainer/checkpoint/checkpoint_manifest.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file_system.h"
#include "base/sha256.h"
#include "base/strict_json.h"

namespace syncopate::trainer {
namespace {

using Json = nlohmann::json;

// A trainer of one rank writes the first format; one of several ranks writes the second, so that a release that knows
// only single-rank checkpoints refuses it.
constexpr char kFormat[] = "syncopate-checkpoint-1";
constexpr char kFormatOfRanks[] = "syncopate-checkpoint-2";
constexpr int32_t kMostRanks = 1 << 16;
constexpr size_t kSha256Digits = 64;

absl::Status DamagedManifest(absl::string_view what) {
  return Error(absl::StatusCode::kDataLoss, "CHECKPOINT_DAMAGED", absl::StrCat(kCheckpointManifestName, ": ", what));
}

Json ToJson(const CheckpointManifest& manifest) {
  Json files = Json::object();
  for (const auto& [name, file] : manifest.files) files[name] = {{"bytes", file.bytes}, {"sha256", file.sha256}};
  Json json = {{"files", std::move(files)},
               {"format", manifest.ranks == 1 ? kFormat : kFormatOfRanks},
               {"metadata", Json(manifest.metadata)},
               {"sha256", ""},
               {"version", {{"epoch", manifest.version.epoch}, {"step", manifest.version.step}}}};
  if (manifest.ranks != 1) json["ranks"] = manifest.ranks;
  return json;
}

// The value of `key` if `object` is an object that has it; else null.
const Json& Member(const Json& object, const char* key) {
  static const Json* const kNull = new Json;
  if (!object.is_object()) return *kNull;
  auto found = object.find(key);
  return found == object.end() ? *kNull : *found;
}

bool IsCount(const Json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
}

// Lower case only, as it is compared as text.
bool IsDigest(const Json& value) {
  if (!value.is_string()) return false;
  const std::string& text = value.get_ref<const std::string&>();
  bool digits = text.size() == kSha256Digits;
  for (char c : text) digits = digits && absl::ascii_isxdigit(c) && !absl::ascii_isupper(c);
  return digits;
}

absl::StatusOr<CheckpointManifest> FromJson(const Json& json) {
  CheckpointManifest manifest;
  const Json& epoch = Member(Member(json, "version"), "epoch");
  const Json& step = Member(Member(json, "version"), "step");
  if (!IsCount(epoch) || !IsCount(step)) return DamagedManifest("the version is missing");
  manifest.version = {epoch.get<int64_t>(), step.get<int64_t>()};

  if (const Json& ranks = Member(json, "ranks"); !ranks.is_null()) {
    if (!IsCount(ranks) || ranks.get<uint64_t>() < 2 || ranks.get<uint64_t>() > kMostRanks) {
      return DamagedManifest("the number of ranks cannot be");
    }
    manifest.ranks = ranks.get<int32_t>();
  }

  const Json& files = Member(json, "files");
  if (!files.is_object()) return DamagedManifest("the list of files is missing");
  for (const auto& [name, file] : files.items()) {
    const Json& bytes = Member(file, "bytes");
    const Json& sha256 = Member(file, "sha256");
    // Names become paths: nothing may lead out of the checkpoint's folder, and the manifest cannot list itself.
    if (!CheckFileName(name).ok() || name == kCheckpointManifestName)
      return DamagedManifest("it lists a bad file name");
    if (!IsCount(bytes) || !IsDigest(sha256))
      return DamagedManifest(absl::StrCat("size or digest of ", name, " is missing"));
    manifest.files[name] = {bytes.get<int64_t>(), sha256.get<std::string>()};
  }

  const Json& metadata = Member(json, "metadata");
  if (!metadata.is_object()) return DamagedManifest("the metadata is missing");
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) return DamagedManifest("a value of the metadata is not a string");
    manifest.metadata[key] = value.get<std::string>();
  }
  return manifest;
}

}  // namespace

absl::StatusOr<std::string> FormatCheckpointManifest(const CheckpointManifest& manifest) {
  auto bad = [](absl::string_view what) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_CHECKPOINT", absl::StrCat("checkpoint manifest: ", what));
  };
  Json json = ToJson(manifest);
  absl::StatusOr<std::string> unsigned_text = DumpJson(json, 2);
  if (!unsigned_text.ok()) return bad("the metadata is not UTF-8");
  json["sha256"] = Sha256Hex(*unsigned_text);
  SYNCOPATE_ASSIGN_OR_RETURN(std::string text, DumpJson(json, 2));
  if (static_cast<int64_t>(text.size()) > kMaxCheckpointManifestBytes) {
    return bad(absl::StrCat(text.size(), " bytes are over the limit of ", kMaxCheckpointManifestBytes,
                            "; keep large things in files"));
  }
  return text;
}

absl::StatusOr<CheckpointManifest> ParseCheckpointManifest(absl::string_view text) {
  constexpr int kDepth = 3;
  auto json = ParseStrictJson(text, {.max_bytes = kMaxCheckpointManifestBytes, .max_depth = kDepth});
  if (!json.ok()) return DamagedManifest(std::string(json.status().message()));
  const Json& format = Member(*json, "format");
  if (format.is_string() && format != kFormat && format != kFormatOfRanks &&
      absl::StartsWith(format.get_ref<const std::string&>(), "syncopate-checkpoint-")) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "CHECKPOINT_VERSION",
        absl::StrCat("the checkpoint has format ", format.get_ref<const std::string&>(), " and this program reads ",
                     kFormat, " and ", kFormatOfRanks, "; use the release that wrote it"));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(CheckpointManifest manifest, FromJson(*json));
  // Writing it again checks the format, the digest and every byte in between at once.
  absl::StatusOr<std::string> expected = FormatCheckpointManifest(manifest);
  if (!expected.ok() || *expected != text) return DamagedManifest("its digest is wrong");
  return manifest;
}

std::optional<PolicyVersion> ParseCheckpointName(const std::string& name) {
  std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(name, absl::MaxSplits("-s", 1));
  PolicyVersion version;
  bool numbers = !parts.first.empty() && parts.first[0] == 'e' &&
                 absl::SimpleAtoi(parts.first.substr(1), &version.epoch) &&
                 absl::SimpleAtoi(parts.second, &version.step);
  if (!numbers || version.epoch < 0 || version.step < 0 || version.ToString() != name) return std::nullopt;
  return version;
}

}  // namespace syncopate::trainer
