#include "trainer/actor/arena_checks.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_format.h"
#include "base/digest.h"
#include "base/finite.h"
#include "base/mix64.h"
#include "base/reasons.h"
#include "model/ops.h"

namespace syncopate::trainer {
namespace {

constexpr int64_t kWordBytes = 8;
constexpr int64_t kFloatBytes = 4;
absl::Status NotFinite(const TensorSpec& spec, int64_t element) {
  return Error(absl::StatusCode::kDataLoss, reason::kNonFinite,
               absl::StrFormat("element %d of %s is not finite; these weights must not be served", element, spec.name),
               {{"tensor", spec.name}});
}

at::Tensor GetTensor(const Manifest& manifest, const at::Tensor& arena, size_t index) {
  return arena.narrow(0, manifest.ranges()[index].begin / kFloatBytes, manifest.tensors()[index].NumElements());
}

at::Tensor NoSums(const Manifest& manifest, at::Device device) {
  return at::zeros({static_cast<int64_t>(manifest.buckets().size())}, at::TensorOptions(at::kLong).device(device));
}

std::vector<uint64_t> BucketDigestsBy(const model::Ops& ops, const Manifest& manifest, const at::Tensor& arena) {
  at::NoGradGuard no_grad;
  const at::Tensor words = arena.view(at::kLong), sums = NoSums(manifest, arena.device());
  std::vector<model::Ops::DigestRun> runs;
  for (const ByteRange& bucket : manifest.buckets()) {
    runs.push_back({bucket.begin / kWordBytes, bucket.size() / kWordBytes, 0, static_cast<int64_t>(runs.size())});
  }
  ops.AddDigestSums(words, runs, sums);
  return DigestsOfSums(manifest, sums);
}

}  // namespace

std::vector<uint64_t> BucketDigestsByOperators(const Manifest& manifest, const at::Tensor& arena) {
  return BucketDigestsBy(model::AtenOps(), manifest, arena);
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

at::Tensor SumsOfPieces(const Manifest& manifest, const FlatShards& shards, const at::Tensor& numbers, int64_t first) {
  at::NoGradGuard no_grad;
  constexpr int64_t kWordFloats = kWordBytes / kFloatBytes;
  const bool is_rounded = numbers.scalar_type() == at::kBFloat16;
  const at::Tensor words = is_rounded ? numbers : numbers.view(at::kLong);
  const at::Tensor sums = NoSums(manifest, numbers.device());
  std::vector<model::Ops::DigestRun> runs;
  for (size_t i = 0; i < manifest.buckets().size(); ++i) {
    const int64_t begin = manifest.buckets()[i].begin / kFloatBytes;
    // Cuts are at multiples of 256 bytes: no word lies across one. A piece is of one unit.
    for (const FlatShards::Piece& piece : shards.MakePieces(begin, manifest.buckets()[i].size() / kFloatBytes)) {
      if (piece.local_begin < first || piece.local_begin >= first + numbers.numel()) continue;
      runs.push_back({(piece.local_begin - first) / kWordFloats, piece.count / kWordFloats,
                      (piece.whole_begin - begin) / kWordFloats, static_cast<int64_t>(i)});
    }
  }
  model::OpsFor(numbers.device()).AddDigestSums(words, runs, sums);
  return sums;
}

at::Tensor SumsOfTensors(const Manifest& manifest, const std::vector<at::Tensor>& tensors) {
  at::NoGradGuard no_grad;
  using Run = model::Ops::DigestRun;
  const model::Ops& ops = model::OpsFor(tensors.front().device());
  const at::Tensor sums = NoSums(manifest, tensors.front().device());
  // Adds the runs of words [begin, end) of the arena, the first of which is word 0 of what is summed.
  const auto add_runs = [&manifest](int64_t begin, int64_t end, bool advances, std::vector<Run>* runs) {
    for (size_t i = 0; i < manifest.buckets().size(); ++i) {
      const ByteRange& bucket = manifest.buckets()[i];
      const int64_t from = std::max(begin, bucket.begin / kWordBytes), to = std::min(end, bucket.end / kWordBytes);
      if (from >= to) continue;
      runs->push_back(
          {advances ? from - begin : 0, to - from, from - bucket.begin / kWordBytes, static_cast<int64_t>(i)});
    }
  };
  std::vector<Run> gaps;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool is_last = i + 1 == manifest.tensors().size();
    const int64_t end = (is_last ? manifest.arena_bytes() : manifest.ranges()[i + 1].begin) / kWordBytes;
    // A word has two numbers.
    const at::Tensor numbers = tensors[i].numel() % 2 == 0 ? tensors[i] : at::constant_pad_nd(tensors[i], {0, 1});
    const int64_t begin = manifest.ranges()[i].begin / kWordBytes, behind = begin + numbers.numel() / 2;
    std::vector<Run> runs;
    add_runs(begin, behind, /*advances=*/true, &runs);
    ops.AddDigestSums(numbers.scalar_type() == at::kBFloat16 ? numbers : numbers.view(at::kLong), runs, sums);
    add_runs(behind, end, /*advances=*/false, &gaps);
  }
  int64_t longest = 0;
  for (const Run& gap : gaps) longest = std::max(longest, gap.count);
  if (longest > 0) ops.AddDigestSums(at::zeros({longest}, sums.options()), gaps, sums);
  return sums;
}

std::optional<size_t> FirstNonFinitePiece(const Manifest& manifest, const FlatShards& shards, const at::Tensor& local) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const int64_t begin = manifest.ranges()[i].begin / kFloatBytes;
    for (const FlatShards::Piece& piece : shards.MakePieces(begin, manifest.tensors()[i].NumElements())) {
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
  return BucketDigestsBy(model::OpsFor(arena.device()), manifest, arena);
}

absl::Status CheckFiniteByOperators(const Manifest& manifest, const at::Tensor& arena) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> finite;
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    finite.push_back(at::isfinite(GetTensor(manifest, arena, i)).all());
  }
  const at::Tensor all = at::stack(finite).cpu();
  for (size_t i = 0; i < finite.size(); ++i) {
    if (all.data_ptr<bool>()[i]) continue;
    const at::Tensor bad = at::isfinite(GetTensor(manifest, arena, i)).logical_not_().nonzero();
    return NotFinite(manifest.tensors()[i], bad.flatten()[0].item<int64_t>());
  }
  return absl::OkStatus();
}

absl::Status CheckFinite(const Manifest& manifest, const at::Tensor& arena) {
  if (!arena.is_cpu()) return CheckFiniteByOperators(manifest, arena);
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const at::Tensor tensor = GetTensor(manifest, arena, i);
    const std::optional<int64_t> bad =
        FindNonFinite(static_cast<const char*>(tensor.data_ptr()), tensor.numel(), kFloat32Exponent);
    if (bad.has_value()) return NotFinite(manifest.tensors()[i], *bad);
  }
  return absl::OkStatus();
}

}  // namespace syncopate::trainer
