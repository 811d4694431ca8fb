#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>

#include "base/status.h"

namespace syncopate::trainer {

// A stream of a GPU beside the current one, for what ranks exchange while they compute. On the CPU there is none: work
// is done where it is queued. Not thread-safe.
class SideStream {
 public:
  // A point in its order; null: everything before it is done.
  using Mark = std::shared_ptr<const c10::Event>;

  explicit SideStream(at::Device device);

  // Calls `work` with this as the current stream. What it queues comes after all that is on the current stream by now.
  // Tensors that it uses outlive what it queues.
  absl::StatusOr<Mark> Run(const std::function<absl::Status()>& work);
  // What is queued on the current stream from now on comes after `mark`. Does not block.
  void Await(const Mark& mark) const;

 private:
  const at::Device device_;
  std::optional<c10::Stream> stream_;  // none on the CPU
};

}  // namespace syncopate::trainer
