#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace syncopate::trainer {

// The borders of pieces of [begin, end), ascending, with begin and end: no piece has more than `most` elements, which is
// positive, or elements on both sides of `border`. Of an empty range there is one border.
std::vector<int64_t> CutPieces(int64_t begin, int64_t border, int64_t end, int64_t most);

// Calls `use` with the bytes of each of `count` tensors in host memory, in order. `make` returns tensor i, contiguous and
// on the same device as all others. One in host memory is used as it is. From a GPU a tensor is copied on the thread's
// current stream while the one before it is used, to page-locked memory, which libtorch keeps for later copies: two or
// three buffers, of a power of two. Blocks, and when it returns or throws no copy is under way. The first error of `use`
// ends it and is returned; libtorch's own are thrown.
absl::Status UseOnHost(int64_t count, const std::function<at::Tensor(int64_t i)>& make,
                       const std::function<absl::Status(int64_t i, absl::string_view bytes)>& use);

}  // namespace syncopate::trainer
