#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/mutex.h"
#include "synchronizer/transport/host_buffer.h"
#include "synchronizer/transport/weight_store.h"

namespace syncopate::services {

// One source rank's send arena in host memory: the last two versions, in wire order. A buffer that is still read when
// its turn comes is left to its readers, and a new one takes its place. Thread-safe; one thread stages.
class HostSendStore final : public synchronizer::WeightStore {
 public:
  HostSendStore(uint64_t fingerprint, int64_t bytes);

  // `fill` writes the arena, which is zero or holds an older version.
  void Stage(PolicyVersion version, const std::function<void(char* arena)>& fill);

  uint64_t fingerprint() const override { return fingerprint_; }
  absl::StatusOr<std::unique_ptr<synchronizer::WeightReader>> Open(PolicyVersion version) override;

 private:
  struct Slot {
    explicit Slot(int64_t bytes) : buffer(bytes) {}
    PolicyVersion version;
    synchronizer::HostBuffer buffer;
  };
  class Reader;

  const uint64_t fingerprint_;
  const int64_t bytes_;
  Mutex mutex_;
  std::shared_ptr<Slot> newest_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Slot> older_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncopate::services
