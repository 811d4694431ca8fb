#include "trainer/actor/arena_checks.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_format.h"
#include "base/digest.h"
#include "base/finite.h"
#include "base/mix64.h"
#include "base/reasons.h"

namespace syncopate::trainer {
namespace {

constexpr int64_t kWordBytes = 8;
constexpr int64_t kFloatBytes = 4;
// Of buckets that are digested by one row of operators: what these allocate stays below three times as much.
constexpr int64_t kDigestedAtOnceBytes = 64 << 20;

// Mix64 of each number, in place. ATen has no unsigned 64-bit arithmetic: sums and products of int64 wrap to the same
// bits, and the arithmetic shift is made a logical one by a mask.
void MixInPlace(at::Tensor& x) {
  constexpr int64_t kLow31 = 0x7fffffff;  // what is left of 64 bits after a shift by 33
  auto fold = [&x] { x.bitwise_xor_(at::bitwise_right_shift(x, 33).bitwise_and_(kLow31)); };
  fold();
  x.mul_(static_cast<int64_t>(0xff51afd7ed558ccdULL));
  fold();
  x.mul_(static_cast<int64_t>(0xc4ceb9fe1a85ec53ULL));
  fold();
}

// Per bucket of `words` [buckets, words of one], the sum that its digest is the mix of, but for the size. [buckets]
at::Tensor SumsOfBuckets(const at::Tensor& words, const at::Tensor& positions) {
  at::Tensor mixed = words + positions;
  MixInPlace(mixed);
  return mixed.sum(1);
}

absl::Status NotFinite(const TensorSpec& spec, int64_t element) {
  return Error(absl::StatusCode::kDataLoss, reason::kNonFinite,
               absl::StrFormat("element %d of %s is not finite; these weights must not be served", element, spec.name),
               {{"tensor", spec.name}});
}

at::Tensor TensorOf(const Manifest& manifest, const at::Tensor& arena, size_t index) {
  return arena.narrow(0, manifest.ranges()[index].begin / kFloatBytes, manifest.tensors()[index].NumElements());
}

}  // namespace

std::vector<uint64_t> BucketDigestsByOperators(const Manifest& manifest, const at::Tensor& arena) {
  at::NoGradGuard no_grad;
  const at::Tensor words = arena.view(at::kLong);
  const int64_t total = words.numel();
  const int64_t each = std::min(total, manifest.bucket_bytes() / kWordBytes);
  // The word at i of a bucket is mixed with (i + 1) * kDigestStride added.
  const at::Tensor positions =
      at::arange(1, each + 1, words.options()).mul_(static_cast<int64_t>(kDigestStride)).unsqueeze(0);
  std::vector<at::Tensor> sums;
  const int64_t whole = total / each;
  const int64_t at_once = std::max<int64_t>(1, kDigestedAtOnceBytes / (each * kWordBytes));
  for (int64_t begin = 0; begin < whole; begin += at_once) {
    const int64_t count = std::min(at_once, whole - begin);
    sums.push_back(SumsOfBuckets(words.narrow(0, begin * each, count * each).view({count, each}), positions));
  }
  if (const int64_t rest = total - whole * each; rest > 0) {
    sums.push_back(SumsOfBuckets(words.narrow(0, whole * each, rest).unsqueeze(0), positions.narrow(1, 0, rest)));
  }
  return DigestsOfSums(manifest, at::cat(sums));
}

std::vector<uint64_t> DigestsOfSums(const Manifest& manifest, const at::Tensor& sums) {
  const at::Tensor all = sums.cpu();
  std::vector<uint64_t> digests;
  for (size_t i = 0; i < manifest.buckets().size(); ++i) {
    const auto sum = static_cast<uint64_t>(all.data_ptr<int64_t>()[i]);
    digests.push_back(Mix64(sum + static_cast<uint64_t>(manifest.buckets()[i].size())));
  }
  return digests;
}

at::Tensor SumsOfPieces(const Manifest& manifest, const FlatShards& shards, const at::Tensor& local) {
  at::NoGradGuard no_grad;
  constexpr int64_t kWordFloats = kWordBytes / kFloatBytes;
  const at::Tensor words = local.view(at::kLong);
  at::Tensor sums = at::zeros({static_cast<int64_t>(manifest.buckets().size())}, words.options());
  for (size_t i = 0; i < manifest.buckets().size(); ++i) {
    const int64_t begin = manifest.buckets()[i].begin / kFloatBytes;
    // Cuts are at multiples of 256 bytes: no word lies across one.
    for (const FlatShards::Piece& piece : shards.PiecesOf(begin, manifest.buckets()[i].size() / kFloatBytes)) {
      const int64_t first = (piece.whole_begin - begin) / kWordFloats + 1, count = piece.count / kWordFloats;
      const at::Tensor positions =
          at::arange(first, first + count, words.options()).mul_(static_cast<int64_t>(kDigestStride)).unsqueeze(0);
      const at::Tensor held = words.narrow(0, piece.local_begin / kWordFloats, count).unsqueeze(0);
      sums.narrow(0, static_cast<int64_t>(i), 1).add_(SumsOfBuckets(held, positions));
    }
  }
  return sums;
}

std::optional<size_t> FirstNonFinitePiece(const Manifest& manifest, const FlatShards& shards, const at::Tensor& local) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const int64_t begin = manifest.ranges()[i].begin / kFloatBytes;
    for (const FlatShards::Piece& piece : shards.PiecesOf(begin, manifest.tensors()[i].NumElements())) {
      if (!at::isfinite(local.narrow(0, piece.local_begin, piece.count)).all().item<bool>()) return i;
    }
  }
  return std::nullopt;
}

absl::Status NotFinite(const TensorSpec& spec) {
  return Error(absl::StatusCode::kDataLoss, reason::kNonFinite,
               absl::StrFormat("%s is not finite; these weights must not be served", spec.name),
               {{"tensor", spec.name}});
}

std::vector<uint64_t> BucketDigests(const Manifest& manifest, const at::Tensor& arena) {
  if (arena.is_cpu()) return DigestBuckets(manifest, arena.data_ptr());
  return BucketDigestsByOperators(manifest, arena);
}

absl::Status CheckFiniteByOperators(const Manifest& manifest, const at::Tensor& arena) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> finite;
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    finite.push_back(at::isfinite(TensorOf(manifest, arena, i)).all());
  }
  const at::Tensor all = at::stack(finite).cpu();
  for (size_t i = 0; i < finite.size(); ++i) {
    if (all.data_ptr<bool>()[i]) continue;
    const at::Tensor bad = at::isfinite(TensorOf(manifest, arena, i)).logical_not_().nonzero();
    return NotFinite(manifest.tensors()[i], bad.flatten()[0].item<int64_t>());
  }
  return absl::OkStatus();
}

absl::Status CheckFinite(const Manifest& manifest, const at::Tensor& arena) {
  if (!arena.is_cpu()) return CheckFiniteByOperators(manifest, arena);
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const at::Tensor tensor = TensorOf(manifest, arena, i);
    const std::optional<int64_t> bad =
        FindNonFinite(static_cast<const char*>(tensor.data_ptr()), tensor.numel(), kFloat32Exponent);
    if (bad.has_value()) return NotFinite(manifest.tensors()[i], *bad);
  }
  return absl::OkStatus();
}

}  // namespace syncopate::trainer
