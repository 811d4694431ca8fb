#include "trainer/checkpoint/best_checkpoint.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/strict_json.h"
#include "trainer/checkpoint/checkpoint_manifest.h"

namespace syncopate::trainer {
namespace {

constexpr size_t kRemembered = 64;
constexpr int64_t kMaxFileBytes = 4096;

absl::StatusOr<BestCheckpoint::Score> Parse(const std::string& text) {
  SYNCOPATE_ASSIGN_OR_RETURN(const nlohmann::json json, ParseStrictJson(text, {.max_bytes = kMaxFileBytes}));
  auto number = [&](const char* key) {
    return json.contains(key) && json[key].is_number() ? json[key].get<double>() : 0.0;
  };
  const std::string name =
      json.contains("checkpoint") && json["checkpoint"].is_string() ? json["checkpoint"].get<std::string>() : "";
  const auto version = ParseCheckpointName(name);
  if (!version.has_value()) {
    return Error(absl::StatusCode::kDataLoss, "BAD_BEST", absl::StrCat("it names no checkpoint but '", name, "'"));
  }
  BestCheckpoint::Score score{*version, number("reward_mean")};
  if (json.contains("exact")) score.exact = number("exact");
  return score;
}

// Forgets the oldest ones.
template <typename Container>
void Limit(Container* container) {
  while (container->size() > kRemembered) container->erase(container->begin());
}

}  // namespace

absl::StatusOr<BestCheckpoint::Score> BestCheckpoint::ReadScore() const {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string text,
                             ReadFile(store_->files(), JoinPath(store_->root(), kFile), kMaxFileBytes));
  return Parse(text);
}

void BestCheckpoint::Load() {
  absl::StatusOr<Score> score = ReadScore();
  if (score.ok()) {
    best_ = *score;
    // The trainer that wrote the file may have died before it removed the best checkpoint before that.
    const absl::Status removed = store_->RemoveBestUnless(best_->version);
    if (!removed.ok()) SYNCOPATE_LOG(kWarning, "an older best checkpoint stays: %s", removed.ToString());
  } else if (!absl::IsNotFound(score.status())) {
    SYNCOPATE_LOG(kWarning, "%s of %s cannot be read and is made anew: %s", kFile, store_->root(),
                  score.status().ToString());
  }
}

absl::Status BestCheckpoint::AddScore(const Score& score) {
  scores_[score.version] = score;
  Limit(&scores_);
  return Consider(score.version);
}

absl::Status BestCheckpoint::AddSaved(const PolicyVersion& version) {
  saved_.insert(version);
  Limit(&saved_);
  return Consider(version);
}

absl::Status BestCheckpoint::Consider(const PolicyVersion& version) {
  auto found = scores_.find(version);
  if (found == scores_.end() || saved_.count(version) == 0) return absl::OkStatus();
  const Score& score = found->second;
  const bool is_better = !best_.has_value() || score.reward_mean > best_->reward_mean ||
                         (score.reward_mean == best_->reward_mean && version > best_->version);
  // Pruning may have been faster than the evaluation.
  if (!is_better || !store_->Contains(version)) return absl::OkStatus();
  nlohmann::json json = {{"checkpoint", version.ToString()}, {"reward_mean", score.reward_mean}};
  if (score.exact.has_value()) json["exact"] = *score.exact;
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string text, DumpJson(json));
  SYNCOPATE_RETURN_IF_ERROR(
      WriteFileAtomically(store_->files(), JoinPath(store_->root(), kFile), absl::StrCat(text, "\n")));
  best_ = score;
  SYNCOPATE_LOG(kInfo, "the best checkpoint is %s: mean reward %.4f", version.ToString(), score.reward_mean);
  return store_->RemoveBestUnless(version);
}

}  // namespace syncopate::trainer
