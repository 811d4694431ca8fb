#include "trainer/data/reward_failures.h"

#include "absl/strings/str_cat.h"
#include "base/reasons.h"
#include "base/status.h"
#include "base/utf8.h"

namespace syncopate::trainer {
namespace {

constexpr size_t kMaxReasonBytes = 500;

}  // namespace

std::string OneLine(absl::string_view text, size_t most_bytes) {
  std::string line = ReplaceMalformed(text.substr(0, most_bytes));
  for (char& byte : line) {
    if (static_cast<unsigned char>(byte) < 0x20 || byte == 0x7F) byte = ' ';
  }
  return line;
}

void RewardFailures::Add(bool failed) {
  recent_.push_back(failed);
  figures_.recent_failed += failed ? 1 : 0;
  if (recent_.size() > kRecent) {
    figures_.recent_failed -= recent_.front() ? 1 : 0;
    recent_.pop_front();
  }
  figures_.recent = static_cast<int64_t>(recent_.size());
  figures_.alarm = recent_.size() >= kFewest && 2 * figures_.recent_failed >= figures_.recent;
}

void RewardFailures::AddJudged() {
  ++figures_.judged;
  Add(/*failed=*/false);
}

void RewardFailures::AddFailed(const absl::Status& why) {
  ++figures_.failed;
  figures_.last = OneLine(why.message(), kMaxReasonBytes);
  if (figures_.first.empty()) figures_.first = figures_.last;
  Add(/*failed=*/true);
}

absl::Status RewardFailures::verdict() const {
  if (most_ == 0 || any_judged() || figures_.failed < most_) return absl::OkStatus();
  return Error(absl::StatusCode::kInternal, reason::kRewardFailed,
               absl::StrCat("the reward of each of the first ", figures_.failed, " groups has failed (",
                            "reward.max_failures ", most_, "), the last: ", figures_.last));
}

}  // namespace syncopate::trainer
