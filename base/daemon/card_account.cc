#include "base/daemon/card_account.h"

#include <algorithm>
#include <numeric>

#include "base/log.h"

namespace syncopate::daemon {

int64_t SumOwners(const CardOwners& owners) {
  return std::accumulate(owners.begin(), owners.end(), int64_t{0},
                         [](int64_t sum, const auto& owner) { return sum + owner.second; });
}

absl::Status CardAccount::Begin(int64_t own, std::shared_ptr<const void> exclusive) {
  SYNCOPATE_ASSIGN_OR_RETURN(const CardReading now, read_());
  MutexLock lock(&mutex_);
  begun_ = now.used - own;
  exclusive_ = std::move(exclusive);
  return absl::OkStatus();
}

absl::Status CardAccount::End(int64_t own) {
  std::shared_ptr<const void> exclusive;  // freed after the lock
  std::optional<int64_t> begun;
  {
    MutexLock lock(&mutex_);
    begun = std::exchange(begun_, std::nullopt);
    exclusive = std::exchange(exclusive_, nullptr);
  }
  if (!begun.has_value()) return absl::OkStatus();
  SYNCOPATE_ASSIGN_OR_RETURN(const CardReading now, read_());
  const int64_t measured = std::max<int64_t>(now.used - own - *begun, 0);
  MutexLock lock(&mutex_);
  if (first_.has_value()) {
    growth_ = std::max(growth_, measured);
  } else {
    first_ = measured;
  }
  return absl::OkStatus();
}

int64_t CardAccount::context_bytes() const {
  MutexLock lock(&mutex_);
  return ContextBytes();
}

absl::StatusOr<CardOwners> CardAccount::List(CardOwners own) const {
  SYNCOPATE_ASSIGN_OR_RETURN(const CardReading now, read_());
  own.emplace_back(kContextOwner, context_bytes());
  own.emplace_back(kOtherOwners, now.used - SumOwners(own));
  return own;
}

void EndMeasurement(CardAccount* card, int64_t own) {
  if (const absl::Status ended = card->End(own); !ended.ok()) {
    SYNCOPATE_LOG(kWarning, "what context and libraries take of the GPU is not measured: %s", ended.ToString());
  } else {
    SYNCOPATE_LOG(kInfo, "context and libraries take %d MiB of the GPU", card->context_bytes() >> 20);
  }
}

}  // namespace syncopate::daemon
