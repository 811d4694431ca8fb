#include "synchronizer/plan/tensor_parallel.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace syncopate::synchronizer {
namespace {

enum class Split : uint8_t { kByAll, kRows, kVocabulary, kQueryHeads, kKeyValueHeads, kColumns, kHeadColumns };

// What a tensor's name says about it.
struct Rule {
  const char* module;      // last part of the module's name
  Split weight;            // of its weight
  Split bias;              // of its bias
  const char* fused = "";  // the module that it becomes a part of, if those are fused
  int part = 0;            // its place in there
  int parts = 1;           // how many there are
};

constexpr std::array<Rule, 9> kRules = {{
    {"q_proj", Split::kQueryHeads, Split::kQueryHeads, "qkv_proj", 0, 3},
    {"k_proj", Split::kKeyValueHeads, Split::kKeyValueHeads, "qkv_proj", 1, 3},
    {"v_proj", Split::kKeyValueHeads, Split::kKeyValueHeads, "qkv_proj", 2, 3},
    {"o_proj", Split::kHeadColumns, Split::kByAll},
    {"gate_proj", Split::kRows, Split::kRows, "gate_up_proj", 0, 2},
    {"up_proj", Split::kRows, Split::kRows, "gate_up_proj", 1, 2},
    {"down_proj", Split::kColumns, Split::kByAll},
    {"embed_tokens", Split::kVocabulary, Split::kVocabulary},
    {"lm_head", Split::kVocabulary, Split::kVocabulary},
}};

constexpr Rule kHeldByAll = {"", Split::kByAll, Split::kByAll};

// "a.b.q_proj.weight" -> {"a.b.", "q_proj", "weight"}.
struct NameParts {
  std::string prefix;
  std::string module;
  std::string leaf;
};

NameParts PartsOf(const std::string& name) {
  size_t leaf = name.rfind('.');
  if (leaf == std::string::npos) return {"", "", name};
  size_t module = leaf == 0 ? std::string::npos : name.rfind('.', leaf - 1);
  size_t begin = module == std::string::npos ? 0 : module + 1;
  return {name.substr(0, begin), name.substr(begin, leaf - begin), name.substr(leaf + 1)};
}

const Rule* FindRule(const NameParts& name) {
  for (const Rule& rule : kRules) {
    if (name.module == rule.module) return &rule;
  }
  bool by_all = absl::EndsWith(name.module, "norm") || name.module == "embed_positions";
  return by_all ? &kHeldByAll : nullptr;
}

// One rank's part of a tensor. Of equal shape on all ranks; the piece may hold less than the shape (padding).
struct Slice {
  std::vector<int64_t> shape;
  Piece piece;  // rank, tensor, begin, end, rows, stride; nothing if begin == end
};

// A local tensor and the tensors of the model whose slices make it up.
struct Unit {
  std::string name;
  std::vector<std::pair<int32_t, const Rule*>> parts;
};

class Builder {
 public:
  Builder(const Manifest& manifest, const TensorParallelOptions& options) : manifest_(manifest), options_(options) {}

  absl::StatusOr<TensorParallelLayout> Build() {
    SYNCOPATE_RETURN_IF_ERROR(FindHeadDim());
    SYNCOPATE_ASSIGN_OR_RETURN(std::vector<Unit> units, FindUnits());
    for (const Unit& unit : units) SYNCOPATE_RETURN_IF_ERROR(Add(unit));
    SYNCOPATE_ASSIGN_OR_RETURN(Layout layout,
                               Layout::Create(manifest_, options_.ranks, std::move(pieces_), std::nullopt, end_));
    return TensorParallelLayout{std::move(layout), std::move(tensors_)};
  }

 private:
  absl::Status FindHeadDim() {
    const int32_t ranks = options_.ranks;
    if (ranks != 1 && ranks != 2 && ranks != 4 && ranks != 8) {
      return BadLayout(absl::StrFormat("tensor parallelism over %d ranks; give 1, 2, 4 or 8", ranks));
    }
    if (options_.head_dim < 0) return BadLayout(absl::StrFormat("heads of %d elements", options_.head_dim));
    head_dim_ = options_.head_dim;
    for (const TensorSpec& spec : manifest_.tensors()) {
      if (head_dim_ > 0) break;
      if (PartsOf(spec.name).module == "q_norm" && !spec.shape.empty()) head_dim_ = spec.shape[0];
    }
    head_dim_known_ = head_dim_ > 0;
    if (!head_dim_known_) head_dim_ = 128;
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<Unit>> FindUnits() const {
    std::vector<Unit> units;
    std::map<std::string, size_t> fused;
    for (size_t i = 0; i < manifest_.tensors().size(); ++i) {
      const std::string& name = manifest_.tensors()[i].name;
      NameParts parts = PartsOf(name);
      const Rule* rule = FindRule(parts);
      if (rule == nullptr) {
        if (options_.ranks > 1) {
          return BadLayout(
              absl::StrFormat("%s: its name does not say how to share it out; serve this model on one rank "
                              "a replica (tp:1)",
                              name));
        }
        rule = &kHeldByAll;
      }
      bool fuse = options_.fused && rule->parts > 1;
      std::string unit_name = fuse ? parts.prefix + rule->fused + "." + parts.leaf : name;
      auto [known, fresh] = fused.emplace(unit_name, units.size());
      if (fresh) units.push_back({unit_name, {}});
      units[known->second].parts.push_back({static_cast<int32_t>(i), rule});
    }
    for (Unit& unit : units) {
      SYNCOPATE_ASSIGN_OR_RETURN(unit, InOrder(std::move(unit)));
    }
    return units;
  }

  // With its parts in their order; an error if one is missing.
  absl::StatusOr<Unit> InOrder(Unit unit) const {
    if (!options_.fused) return unit;
    std::sort(unit.parts.begin(), unit.parts.end(),
              [](const auto& a, const auto& b) { return a.second->part < b.second->part; });
    const auto& [first, rule] = unit.parts.front();
    if (static_cast<int>(unit.parts.size()) == rule->parts) return unit;
    return BadLayout(absl::StrFormat("%s has no neighbours to make up %s; leave out :fused",
                                     manifest_.tensors()[first].name, unit.name));
  }

  absl::Status Add(const Unit& unit) {
    const int64_t begin = end_;
    std::optional<TensorSpec> local;
    for (const auto& [tensor, rule] : unit.parts) {
      const TensorSpec& spec = manifest_.tensors()[tensor];
      TensorSpec part{unit.name, spec.dtype, {}};
      for (int32_t rank = 0; rank < options_.ranks; ++rank) {
        SYNCOPATE_ASSIGN_OR_RETURN(Slice slice, Cut(spec, *rule, rank));
        slice.piece.tensor = tensor;
        slice.piece.rank = rank;
        slice.piece.offset = end_;
        if (slice.piece.begin < slice.piece.end) pieces_.push_back(slice.piece);
        part.shape = std::move(slice.shape);
      }
      end_ += part.NumBytes();
      if (local) {
        SYNCOPATE_ASSIGN_OR_RETURN(local, Stack(*local, part, spec.name));
      } else {
        local = std::move(part);
      }
    }
    end_ = AlignUp(end_);
    tensors_.push_back({*std::move(local), begin});
    return absl::OkStatus();
  }

  // `below` put under `above`: rows after rows.
  static absl::StatusOr<TensorSpec> Stack(TensorSpec above, const TensorSpec& below, const std::string& name) {
    bool fits = above.dtype == below.dtype && !above.shape.empty() && above.shape.size() == below.shape.size() &&
                std::equal(above.shape.begin() + 1, above.shape.end(), below.shape.begin() + 1);
    if (!fits) return BadLayout(name + " cannot be fused: its dtype or rows are not like its neighbours'");
    above.shape[0] += below.shape[0];
    return above;
  }

  absl::StatusOr<Slice> Cut(const TensorSpec& spec, const Rule& rule, int32_t rank) const {
    Split split = PartsOf(spec.name).leaf == "bias" ? rule.bias : rule.weight;
    const bool is_whole = split == Split::kByAll || (split == Split::kVocabulary && options_.whole_vocabulary);
    if (options_.ranks == 1 || is_whole) {
      return Slice{spec.shape, {rank, 0, 0, spec.NumElements(), 0}};
    }
    if (spec.shape.empty()) return BadLayout(spec.name + " is a scalar and cannot be shared out");
    if (spec.NumElements() == 0) return BadLayout(spec.name + " is empty and cannot be shared out");
    switch (split) {
      case Split::kVocabulary:
        return CutVocabulary(spec, rank);
      case Split::kQueryHeads:
      case Split::kRows: {
        int64_t unit = split == Split::kRows ? 1 : head_dim_;
        SYNCOPATE_RETURN_IF_ERROR(CheckDivides(spec, spec.shape[0], unit));
        int64_t rows = spec.shape[0] / options_.ranks;
        return Rows(spec, rank * rows, rows);
      }
      case Split::kKeyValueHeads:
        return CutKeyValue(spec, rank);
      default: {
        if (spec.shape.size() != 2) return BadLayout(spec.name + " is no matrix and has no columns to share out");
        int64_t unit = split == Split::kColumns ? 1 : head_dim_;
        SYNCOPATE_RETURN_IF_ERROR(CheckDivides(spec, spec.shape[1], unit));
        int64_t columns = spec.shape[1] / options_.ranks;
        Piece piece{rank, 0, rank * columns, (rank + 1) * columns, 0, spec.shape[0], spec.shape[1]};
        return Slice{{spec.shape[0], columns}, piece};
      }
    }
  }

  Slice CutVocabulary(const TensorSpec& spec, int32_t rank) const {
    int64_t rows = (spec.shape[0] + options_.ranks - 1) / options_.ranks;
    int64_t first = std::min(rank * rows, spec.shape[0]);
    Slice slice = Rows(spec, first, std::min(rows, spec.shape[0] - first));
    slice.shape[0] = rows;
    return slice;
  }

  absl::StatusOr<Slice> CutKeyValue(const TensorSpec& spec, int32_t rank) const {
    int64_t heads = spec.shape[0] / head_dim_;
    bool repeated = head_dim_known_ && heads > 0 && heads < options_.ranks && options_.ranks % heads == 0 &&
                    spec.shape[0] % head_dim_ == 0;
    if (repeated) return Rows(spec, rank * heads / options_.ranks * head_dim_, head_dim_);
    SYNCOPATE_RETURN_IF_ERROR(CheckDivides(spec, spec.shape[0], head_dim_));
    int64_t rows = spec.shape[0] / options_.ranks;
    return Rows(spec, rank * rows, rows);
  }

  Slice Rows(const TensorSpec& spec, int64_t first, int64_t rows) const {
    int64_t width = spec.NumElements() / spec.shape[0];
    Slice slice{spec.shape, {0, 0, first * width, (first + rows) * width, 0}};
    slice.shape[0] = rows;
    return slice;
  }

  // Whether `extent` is so many units that each rank gets as many.
  absl::Status CheckDivides(const TensorSpec& spec, int64_t extent, int64_t unit) const {
    if (extent % (unit * options_.ranks) == 0) return absl::OkStatus();
    std::string what = unit == 1 ? absl::StrFormat("%d rows or columns", extent)
                                 : absl::StrFormat("%d elements in heads of %d", extent, unit);
    std::string remedy = "use fewer ranks a replica";
    if (unit > 1 && !head_dim_known_) {
      remedy += absl::StrFormat(", or say the size of a head if it is another (tp:%d:head64)", options_.ranks);
    }
    return BadLayout(absl::StrFormat("%s: %s cannot be shared out evenly among %d ranks; %s", spec.name, what,
                                     options_.ranks, remedy));
  }

  const Manifest& manifest_;
  const TensorParallelOptions options_;
  int64_t head_dim_ = 0;
  bool head_dim_known_ = false;
  std::vector<Piece> pieces_;
  std::vector<LocalTensor> tensors_;
  int64_t end_ = 0;  // of the arena so far
};

}  // namespace

absl::StatusOr<TensorParallelLayout> MakeTensorParallel(const Manifest& manifest,
                                                        const TensorParallelOptions& options) {
  return Builder(manifest, options).Build();
}

}  // namespace syncopate::synchronizer
