#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace syncopate::trainer {

// Calls `use` with the bytes of each of `count` tensors in host memory, in order. `make` returns tensor i, contiguous and
// on the same device as all others. One in host memory is used as it is. From a GPU a tensor is copied on the thread's
// current stream while the one before it is used, to page-locked memory, of which libtorch keeps that of two tensors.
// Blocks. The first error of `use` ends it and is returned; libtorch's own are thrown.
absl::Status UseOnHost(int64_t count, const std::function<at::Tensor(int64_t i)>& make,
                       const std::function<absl::Status(int64_t i, absl::string_view bytes)>& use);

}  // namespace syncopate::trainer
