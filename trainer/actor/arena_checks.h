#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "base/manifest.h"
#include "base/status.h"
#include "trainer/actor/flat_shards.h"

// Digests and checks of a whole arena, without copying it to the host. Arenas are flat float32 tensors of
// manifest.arena_bytes() bytes, contiguous, on any device. Each call waits for the device once, and may throw
// c10::Error.
namespace syncopate::trainer {

// Returns the same as DigestBuckets (base/digest.h) for the same bytes.
std::vector<uint64_t> BucketDigests(const Manifest& manifest, const at::Tensor& arena);

// DATA_LOSS (reason NON_FINITE) naming the first tensor that contains a NaN or an infinity, and the element.
absl::Status CheckFinite(const Manifest& manifest, const at::Tensor& arena);

// The two functions above as they run on a GPU, with torch operators alone; on the CPU plain loops are faster.
std::vector<uint64_t> BucketDigestsByOperators(const Manifest& manifest, const at::Tensor& arena);
absl::Status CheckFiniteByOperators(const Manifest& manifest, const at::Tensor& arena);

// Digests of an arena that is sharded over ranks. SumsOfPieces returns, for each bucket, what this rank's words add to
// the sum of which the bucket's digest is made, [buckets] int64; DigestsOfSums returns the digests from the sums over
// all ranks. `numbers`: this rank's elements from element `first` on, whole units of them, in float32 or in bfloat16,
// which count as the same numbers in float32; pieces of other elements are left out.
at::Tensor SumsOfPieces(const Manifest& manifest, const FlatShards& shards, const at::Tensor& numbers,
                        int64_t first = 0);
// SumsOfTensors returns what tensors [0, tensors.size()) of the manifest add to these sums, each flat in memory of its
// own, in float32 or in bfloat16. What lies behind a tensor in an arena, up to the next one, counts as zeros.
at::Tensor SumsOfTensors(const Manifest& manifest, const std::vector<at::Tensor>& tensors);
std::vector<uint64_t> DigestsOfSums(const Manifest& manifest, const at::Tensor& sums);
// The index of the first tensor with a non-finite number in this rank's shard; nullopt if all are finite.
std::optional<size_t> FirstNonFinitePiece(const Manifest& manifest, const FlatShards& shards, const at::Tensor& local);
// The error that CheckFinite returns for this tensor.
absl::Status NotFinite(const TensorSpec& spec);

}  // namespace syncopate::trainer
