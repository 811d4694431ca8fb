#include "base/status.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace syncopate {
namespace {

constexpr char kReasonUrl[] = "syncopate/reason";
constexpr char kMetadataUrl[] = "syncopate/metadata";
// Separates keys from values and entries from each other; control characters do not occur in our metadata.
constexpr char kUnitSeparator = '\x1f';

}  // namespace

absl::Status Error(absl::StatusCode code, absl::string_view reason, absl::string_view message,
                   const ErrorMetadata& metadata) {
  absl::Status status(code, message);
  status.SetPayload(kReasonUrl, absl::Cord(reason));
  if (!metadata.empty()) {
    std::string packed;
    for (const auto& [key, value] : metadata) {
      absl::StrAppend(&packed, key, std::string(1, kUnitSeparator), value, std::string(1, kUnitSeparator));
    }
    status.SetPayload(kMetadataUrl, absl::Cord(packed));
  }
  return status;
}

std::string ErrorReason(const absl::Status& status) {
  auto payload = status.GetPayload(kReasonUrl);
  return payload.has_value() ? std::string(*payload) : std::string();
}

ErrorMetadata ErrorDetails(const absl::Status& status) {
  ErrorMetadata metadata;
  auto payload = status.GetPayload(kMetadataUrl);
  if (!payload.has_value()) return metadata;
  std::vector<std::string> parts = absl::StrSplit(std::string(*payload), kUnitSeparator);
  for (size_t i = 0; i + 1 < parts.size(); i += 2) metadata[parts[i]] = parts[i + 1];
  return metadata;
}

absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload(
      [&annotated](absl::string_view url, const absl::Cord& payload) { annotated.SetPayload(url, payload); });
  return annotated;
}

void CheckFailed(const char* file, int line, const char* condition, const std::string& detail) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s %s\n", file, line, condition, detail.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace syncopate
