#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "base/policy_version.h"
#include "base/status.h"

namespace syncopate::trainer {

constexpr char kCheckpointManifestName[] = "manifest.json";
constexpr int64_t kMaxCheckpointManifestBytes = 4 << 20;

struct CheckpointFile {
  int64_t bytes = 0;
  std::string sha256;  // 64 lower-case hexadecimal digits
  friend bool operator==(const CheckpointFile&, const CheckpointFile&) = default;
};

// What one checkpoint consists of. As text:
//
//   {"files":    {"model.safetensors": {"bytes": 123, "sha256": "..."}, ...},
//    "format":   "syncopate-checkpoint-1",
//    "metadata": {"run_id": "...", ...},
//    "sha256":   the digest of this text with this value empty,
//    "version":  {"epoch": 1, "step": 20}}
//
// of one that several ranks have written the format is "syncopate-checkpoint-2", and "ranks": 2 says how many;
// keys sorted, indented by two: there is one text for one manifest, and any other is refused.
struct CheckpointManifest {
  PolicyVersion version;
  std::map<std::string, CheckpointFile> files;
  std::map<std::string, std::string> metadata;
  int32_t ranks = 1;  // of the trainer that wrote it
  friend bool operator==(const CheckpointManifest&, const CheckpointManifest&) = default;
};

// INVALID_ARGUMENT (reason BAD_CHECKPOINT) if the metadata is not UTF-8 or the text would be over the limit.
absl::StatusOr<std::string> FormatCheckpointManifest(const CheckpointManifest& manifest);

// Trusts nothing in `text`. DATA_LOSS (reason CHECKPOINT_DAMAGED) says what is wrong; FAILED_PRECONDITION (reason
// CHECKPOINT_VERSION) if it was written in another format.
absl::StatusOr<CheckpointManifest> ParseCheckpointManifest(absl::string_view text);

// The version of a folder named "e3-s20"; nullopt for any other name, also for other spellings of the same numbers.
std::optional<PolicyVersion> ParseCheckpointName(const std::string& name);

}  // namespace syncopate::trainer
