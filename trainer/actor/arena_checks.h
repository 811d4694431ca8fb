#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "base/manifest.h"
#include "base/status.h"
#include "trainer/actor/flat_shards.h"

// What is asked of a whole arena without copying it to the host. Arenas are flat float32 tensors of
// manifest.arena_bytes() bytes, contiguous, on any device. Each call waits for the device once, and may throw
// c10::Error.
namespace syncopate::trainer {

// What DigestBuckets (base/digest.h) gives for the same bytes.
std::vector<uint64_t> BucketDigests(const Manifest& manifest, const at::Tensor& arena);

// DATA_LOSS (reason NON_FINITE) naming the first tensor that holds a NaN or an infinity, and the element.
absl::Status CheckFinite(const Manifest& manifest, const at::Tensor& arena);

// As these two do it on a GPU, with operators alone; on the CPU, too, but slower than plain loops.
std::vector<uint64_t> BucketDigestsByOperators(const Manifest& manifest, const at::Tensor& arena);
absl::Status CheckFiniteByOperators(const Manifest& manifest, const at::Tensor& arena);

// The same of an arena that ranks hold in shards, from the arena of one of them. Of each bucket what its words of this
// rank add to the sum that its digest is made of; the digests from the sums over all ranks. [buckets] int64
at::Tensor SumsOfPieces(const Manifest& manifest, const FlatShards& shards, const at::Tensor& local);
std::vector<uint64_t> DigestsOfSums(const Manifest& manifest, const at::Tensor& sums);
// The first tensor of which this rank holds a number that is not finite.
std::optional<size_t> FirstNonFinitePiece(const Manifest& manifest, const FlatShards& shards, const at::Tensor& local);
// What CheckFinite says of it.
absl::Status NotFinite(const TensorSpec& spec);

}  // namespace syncopate::trainer
