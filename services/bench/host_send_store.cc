#include "services/bench/host_send_store.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::services {

class HostSendStore::Reader final : public synchronizer::WeightReader {
 public:
  explicit Reader(std::shared_ptr<const Slot> slot) : slot_(std::move(slot)) {}
  absl::Status Read(ByteRange range, char* to) override {
    if (range.begin < 0 || range.end < range.begin || range.end > slot_->buffer.size()) {
      return Error(absl::StatusCode::kInvalidArgument, "BAD_RANGE",
                   absl::StrCat("bytes ", range.begin, " to ", range.end, " are outside the send arena"));
    }
    std::memcpy(to, slot_->buffer.data() + range.begin, range.size());
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<const Slot> slot_;
};

HostSendStore::HostSendStore(uint64_t fingerprint, int64_t bytes)
    : fingerprint_(fingerprint),
      bytes_(bytes),
      newest_(std::make_shared<Slot>(bytes)),
      older_(std::make_shared<Slot>(bytes)) {}

void HostSendStore::Stage(PolicyVersion version, const std::function<void(char* arena)>& fill) {
  std::shared_ptr<Slot> slot;
  {
    MutexLock lock(&mutex_);
    slot = std::move(older_);  // from here on nobody can open it
  }
  if (slot == nullptr || slot.use_count() > 1) slot = std::make_shared<Slot>(bytes_);
  fill(slot->buffer.data());
  slot->version = version;
  MutexLock lock(&mutex_);
  older_ = std::exchange(newest_, std::move(slot));
}

absl::StatusOr<std::unique_ptr<synchronizer::WeightReader>> HostSendStore::Open(PolicyVersion version) {
  MutexLock lock(&mutex_);
  for (const std::shared_ptr<Slot>& slot : {newest_, older_}) {
    if (slot != nullptr && slot->version == version) return std::make_unique<Reader>(slot);
  }
  return Error(absl::StatusCode::kNotFound, "VERSION_NOT_STAGED",
               absl::StrCat("version ", version.ToString(), " is not staged here (any more)"));
}

}  // namespace syncopate::services
