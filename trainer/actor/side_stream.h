#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "base/status.h"

namespace syncopate::trainer {

// A stream of a GPU beside the current one, for what goes on while a step computes: exchanges of ranks, and reads of
// the weights. On the CPU there is none: work is done where it is queued. Not thread-safe, but for RunAfter() on one
// thread.
class SideStream {
 public:
  // The priority of this stream's kernels against those of the current stream.
  enum class Priority : uint8_t { kHigh, kLow };
  // A point in its order; null: everything before it is done.
  using Mark = std::shared_ptr<const c10::Event>;

  explicit SideStream(at::Device device, Priority priority = Priority::kHigh);

  // Calls `work` with this stream as the current one. Its operations start after those that are on the caller's current
  // stream now. Tensors that `work` uses must live until the returned mark has been reached.
  absl::StatusOr<Mark> Run(const std::function<absl::Status()>& work);
  // The end of what is queued on the current stream.
  Mark MarkCurrent() const;
  // Calls `work` with this as the current stream of the calling thread. What it queues comes after `mark` alone.
  absl::Status RunAfter(const Mark& mark, const std::function<absl::Status()>& work) const;
  // What is queued on the current stream from now on comes after `mark`. Does not block.
  void Await(const Mark& mark) const;

 private:
  const at::Device device_;
  std::optional<c10::Stream> stream_;  // none on the CPU
};

}  // namespace syncopate::trainer
