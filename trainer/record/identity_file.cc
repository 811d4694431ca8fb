#include "trainer/record/identity_file.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::trainer {
namespace {

constexpr int64_t kMaxIdentityBytes = 4096;

}  // namespace

absl::StatusOr<IdentityFile::Identity> IdentityFile::Read() const {
  absl::StatusOr<std::string> text = ReadFile(files_, path_, kMaxIdentityBytes);
  if (absl::IsNotFound(text.status())) return Identity{};
  SYNCOPATE_RETURN_IF_ERROR(text.status());
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("run_id") || !json["run_id"].is_string() || !json.contains("epoch") ||
      !json["epoch"].is_number_integer()) {
    return Error(absl::StatusCode::kDataLoss, "BAD_IDENTITY",
                 absl::StrCat(path_, " is damaged; remove it to take the epoch from the synchronizer alone"));
  }
  return Identity{json["run_id"].get<std::string>(), json["epoch"].get<int64_t>()};
}

absl::Status IdentityFile::Write(const Identity& identity) const {
  const nlohmann::json json = {{"run_id", identity.run_id}, {"epoch", identity.epoch}};
  return WriteFileAtomically(files_, path_, json.dump() + "\n");
}

}  // namespace syncopate::trainer
