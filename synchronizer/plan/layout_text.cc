#include "synchronizer/plan/layout_text.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "synchronizer/plan/shard_layouts.h"
#include "synchronizer/plan/tensor_parallel.h"

namespace syncopate::synchronizer {
namespace {

// A descriptor comes from a peer; the limit bounds the memory that a wrong one can cost.
constexpr int32_t kMaxRanks = 4096;

absl::Status Refuse(const std::string& text, const std::string& problem) {
  return BadLayout(
      absl::StrFormat("layout \"%s\": %s; give whole, buckets:T, units:T, flat:T, layers:T, fsdp2:T or replicated:T "
                      "(with :fp32 or :bf16), or "
                      "tp:P with :fused and :vocab",
                      text, problem));
}

// The parts of a descriptor, read one after the other.
class Words {
 public:
  explicit Words(const std::string& text) : text_(text), words_(absl::StrSplit(text, ':')) {}

  const std::string& kind() const { return words_.front(); }
  bool done() const { return next_ == words_.size(); }

  absl::StatusOr<int32_t> Ranks(std::optional<int32_t> otherwise = std::nullopt) {
    if (done() && otherwise) return *otherwise;
    if (done()) return Refuse(text_, "the number of ranks is missing");
    int32_t ranks = 0;
    bool number = absl::SimpleAtoi(words_[next_], &ranks) && ranks >= 1 && ranks <= kMaxRanks;
    if (!number) return Refuse(text_, absl::StrFormat("\"%s\" is no number of ranks", words_[next_]));
    ++next_;
    return ranks;
  }

  std::optional<DType> OptionalDType() {
    if (Accept("fp32")) return DType::kFloat32;
    if (Accept("bf16")) return DType::kBFloat16;
    return std::nullopt;
  }

  bool Accept(const std::string& word) {
    if (done() || words_[next_] != word) return false;
    ++next_;
    return true;
  }

  // An error if a part is left over.
  absl::Status End() const {
    return done() ? absl::OkStatus() : Refuse(text_, absl::StrFormat("\"%s\" means nothing here", words_[next_]));
  }

 private:
  const std::string& text_;
  const std::vector<std::string> words_;
  size_t next_ = 1;
};

absl::StatusOr<Layout> BuildTensorParallel(const Manifest& manifest, Words words) {
  TensorParallelOptions options;
  SYNCOPATE_ASSIGN_OR_RETURN(options.ranks, words.Ranks());
  options.fused = words.Accept("fused");
  options.whole_vocabulary = words.Accept("vocab");
  SYNCOPATE_RETURN_IF_ERROR(words.End());
  SYNCOPATE_ASSIGN_OR_RETURN(TensorParallelLayout made, MakeTensorParallel(manifest, options));
  return std::move(made.layout);
}

using ShardLayout = absl::StatusOr<Layout> (*)(const Manifest&, int32_t, std::optional<DType>);

ShardLayout FindShardLayout(const std::string& kind) {
  static constexpr std::pair<const char*, ShardLayout> kKinds[] = {{"units", UnitShardsLayout},
                                                                   {"flat", FlatLayout},
                                                                   {"layers", FlatLayersLayout},
                                                                   {"fsdp2", RowShardsLayout},
                                                                   {"replicated", ReplicatedLayout}};
  for (const auto& [name, make] : kKinds) {
    if (kind == name) return make;
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<Layout> BuildLayout(const Manifest& manifest, const std::string& descriptor) {
  Words words(descriptor);
  if (words.kind() == "tp") return BuildTensorParallel(manifest, words);
  if (words.kind() == "whole" || words.kind() == "buckets") {
    bool whole = words.kind() == "whole";
    SYNCOPATE_ASSIGN_OR_RETURN(int32_t ranks, whole ? words.Ranks(/*otherwise=*/1) : words.Ranks());
    SYNCOPATE_RETURN_IF_ERROR(words.End());
    return whole ? Layout::Whole(manifest, ranks) : Layout::FlatShards(manifest, ranks);
  }
  // The remaining kinds share one grammar: ranks, then an optional dtype.
  ShardLayout make = FindShardLayout(words.kind());
  if (make == nullptr) return Refuse(descriptor, absl::StrFormat("\"%s\" is no kind of layout", words.kind()));
  SYNCOPATE_ASSIGN_OR_RETURN(int32_t ranks, words.Ranks());
  std::optional<DType> dtype = words.OptionalDType();
  SYNCOPATE_RETURN_IF_ERROR(words.End());
  return make(manifest, ranks, dtype);
}

}  // namespace syncopate::synchronizer
