#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>

#include "base/status.h"

namespace syncopate::trainer {

// A second stream of a GPU, on which ranks exchange data while the current stream computes. On the CPU there is no
// stream: Run() does the work at once. Not thread-safe.
class SideStream {
 public:
  // A point in the stream's order; null: everything before it is done.
  using Mark = std::shared_ptr<const c10::Event>;

  explicit SideStream(at::Device device);

  // Calls `work` with this stream as the current one. Its operations start after those that are on the caller's current
  // stream now. Tensors that `work` uses must live until the returned mark has been reached.
  absl::StatusOr<Mark> Run(const std::function<absl::Status()>& work);
  // Makes the current stream wait for `mark`: operations queued from now on start after it. Does not block.
  void Await(const Mark& mark) const;

 private:
  const at::Device device_;
  std::optional<c10::Stream> stream_;  // none on the CPU
};

}  // namespace syncopate::trainer
