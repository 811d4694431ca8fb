#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/manifest.h"
#include "synchronizer/plan/layout.h"
#include "synchronizer/plan/layout_text.h"
#include "synchronizer/plan/sync_plan.h"
#include "tests/support/qwen_tensors.h"
#include "tests/support/status_matchers.h"

namespace syncopate::synchronizer {

using ::syncopate::testing::HasReason;
using Arena = std::vector<char>;

inline Manifest ManifestFor(std::vector<TensorSpec> tensors, int64_t bucket_bytes = 1024) {
  auto manifest = Manifest::Create(std::move(tensors), bucket_bytes);
  SYNCOPATE_CHECK(manifest.ok());
  return *std::move(manifest);
}

using ::syncopate::testing::AsQwen;

inline Layout MakeLayout(const Manifest& manifest, const std::string& descriptor) {
  auto layout = BuildLayout(manifest, descriptor);
  if (!layout.ok()) CheckFailed(__FILE__, __LINE__, descriptor.c_str(), layout.status().ToString());
  return *std::move(layout);
}

// The weight at one place: finite, never zero, of any magnitude.
inline float Truth(int32_t tensor, int64_t element) {
  uint64_t random = Mix64(static_cast<uint64_t>(tensor) * 1000003 + static_cast<uint64_t>(element));
  return std::bit_cast<float>(static_cast<uint32_t>((random & 0x9fffffffu) | 0x20000000u));
}

// The nearest bf16 of a finite number, ties to even, found by comparing distances.
inline uint16_t NearestBFloat16(float value) {
  auto widen = [](uint32_t bits) { return static_cast<double>(std::bit_cast<float>(bits << 16)); };
  uint32_t low = std::bit_cast<uint32_t>(value) >> 16;
  double below = std::abs(static_cast<double>(value) - widen(low));
  double above = std::abs(widen(low + 1) - static_cast<double>(value));
  bool up = above < below || (above == below && low % 2 == 1);
  return static_cast<uint16_t>(up ? low + 1 : low);
}

// The contents of each rank's buffer when every piece has its true elements, element by element; `rest` elsewhere.
inline std::vector<Arena> Filled(const Manifest& manifest, const Layout& layout, char rest) {
  std::vector<Arena> arenas;
  for (int32_t rank = 0; rank < layout.ranks(); ++rank) arenas.emplace_back(layout.arena_bytes(rank), rest);
  for (const Piece& piece : layout.pieces()) {
    if (!layout.Moves(piece.tensor)) continue;
    char* to = arenas[piece.rank].data() + piece.offset;
    bool wide = layout.ToDType(manifest.tensors()[piece.tensor]) == DType::kFloat32;
    for (int64_t row = 0; row < piece.rows; ++row) {
      for (int64_t at = piece.begin + row * piece.stride; at < piece.end + row * piece.stride; ++at) {
        float truth = Truth(piece.tensor, at);
        uint16_t rounded = NearestBFloat16(truth);
        std::memcpy(to, wide ? static_cast<const void*>(&truth) : &rounded, wide ? 4 : 2);
        to += wide ? 4 : 2;
      }
    }
  }
  return arenas;
}

inline std::vector<Arena> Packed(const SyncPlan& plan, const std::vector<Arena>& shards) {
  std::vector<Arena> sends;
  for (int32_t source = 0; source < plan.sources(); ++source) {
    sends.emplace_back(plan.send_bytes(source), 0);
    PackOnHost(plan.pack(source), shards[source].data(), sends.back().data());
  }
  return sends;
}

inline std::vector<Arena> Carried(const SyncPlan& plan, const std::vector<Arena>& sends, const Layout& destination) {
  std::vector<Arena> arenas;
  for (int32_t rank = 0; rank < destination.ranks(); ++rank) arenas.emplace_back(destination.arena_bytes(rank), 0);
  for (const Copy& copy : plan.copies()) {
    SYNCOPATE_CHECK(copy.source_offset + copy.bytes <= static_cast<int64_t>(sends[copy.source].size()));
    SYNCOPATE_CHECK(copy.destination_offset + copy.bytes <= static_cast<int64_t>(arenas[copy.destination].size()));
    std::memcpy(arenas[copy.destination].data() + copy.destination_offset,
                sends[copy.source].data() + copy.source_offset, copy.bytes);
  }
  return arenas;
}

// Random models and layouts, a pure function of the seed.
class RandomCases {
 public:
  explicit RandomCases(uint64_t seed) : random_(seed) {}

  int64_t Between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }

  template <typename T>
  T OneOf(const std::vector<T>& choices) {
    return choices[Between(0, static_cast<int64_t>(choices.size()) - 1)];
  }

  int64_t BucketBytes() { return Manifest::kAlignment * Between(1, 16); }

  // A model with any names, shapes and dtypes; empty tensors and scalars are among them.
  Manifest AnyModel() {
    std::vector<TensorSpec> tensors;
    for (int64_t i = Between(1, 6); i > 0; --i) {
      TensorSpec spec{absl::StrCat("t", i), OneOf<DType>({DType::kFloat32, DType::kBFloat16}), {}};
      for (int64_t d = Between(0, 3); d > 0; --d) spec.shape.push_back(Between(0, 9) == 0 ? 0 : Between(1, 40));
      while (spec.NumElements() > 4000) spec.shape.pop_back();
      tensors.push_back(spec);
    }
    return ManifestFor(std::move(tensors), BucketBytes());
  }

  // A model with the names and shapes of a Qwen. With heads of `head_dim`, every split over 1, 2, 4 and 8 ranks is
  // possible.
  Manifest QwenModel(int64_t head_dim) {
    const DType dtype = OneOf<DType>({DType::kFloat32, DType::kBFloat16});
    const int64_t hidden = Between(3, 20);
    const int64_t key = head_dim * OneOf<int64_t>({1, 2, 4, 8, 16});
    const int64_t query = head_dim * 8 * Between(1, 2);
    const int64_t intermediate = 8 * Between(1, 4);
    const int64_t vocabulary = Between(9, 40);
    const bool bias = Between(0, 1) == 0;
    std::vector<TensorSpec> tensors{{"model.embed_tokens.weight", dtype, {vocabulary, hidden}}};
    for (int64_t layer = Between(1, 3); layer > 0; --layer) {
      const std::string prefix = absl::StrCat("model.layers.", layer, ".");
      for (const auto& [name, rows] : {std::pair{"q_proj", query}, {"k_proj", key}, {"v_proj", key}}) {
        tensors.push_back({absl::StrCat(prefix, "self_attn.", name, ".weight"), dtype, {rows, hidden}});
        if (bias) tensors.push_back({absl::StrCat(prefix, "self_attn.", name, ".bias"), dtype, {rows}});
      }
      tensors.push_back({prefix + "self_attn.o_proj.weight", dtype, {hidden, query}});
      tensors.push_back({prefix + "mlp.gate_proj.weight", dtype, {intermediate, hidden}});
      tensors.push_back({prefix + "mlp.up_proj.weight", dtype, {intermediate, hidden}});
      tensors.push_back({prefix + "mlp.down_proj.weight", dtype, {hidden, intermediate}});
      tensors.push_back({prefix + "input_layernorm.weight", dtype, {hidden}});
    }
    tensors.push_back({"model.norm.weight", dtype, {hidden}});
    if (Between(0, 1) == 0) tensors.push_back({"lm_head.weight", dtype, {vocabulary, hidden}});
    return ManifestFor(AsQwen(std::move(tensors), head_dim), BucketBytes());
  }

  std::string AnyShards(const Manifest& manifest) {
    bool narrow = true;  // bf16 shards can only feed a bf16 model
    for (const TensorSpec& spec : manifest.tensors()) narrow &= spec.dtype == DType::kBFloat16;
    std::string kind = OneOf<std::string>({"whole", "buckets", "units", "flat", "layers", "fsdp2", "replicated"});
    std::string text = absl::StrCat(kind, ":", Between(1, 8));
    return kind == "whole" || kind == "buckets" ? text : text + (narrow && Between(0, 1) == 0 ? ":bf16" : ":fp32");
  }

  std::string AnyServing() {
    std::string text = absl::StrCat("tp:", OneOf<int>({1, 2, 4, 8}));
    if (Between(0, 1) == 0) text += ":fused";
    return Between(0, 1) == 0 ? text : text + ":vocab";
  }

  // Each tensor is divided at random places or into columns, its pieces on random ranks in random order, some of them
  // twice.
  Layout Scattered(const Manifest& manifest) {
    int32_t ranks = static_cast<int32_t>(Between(1, 4));
    std::vector<Piece> pieces;
    for (size_t i = 0; i < manifest.tensors().size(); ++i) {
      std::vector<Piece> cut = Between(0, 1) == 0 ? Lengths(manifest.tensors()[i]) : Columns(manifest.tensors()[i]);
      for (Piece piece : cut) {
        piece.tensor = static_cast<int32_t>(i);
        for (int64_t copies = Between(0, 4) == 0 ? 2 : 1; copies > 0; --copies) {
          piece.rank = static_cast<int32_t>(Between(0, ranks - 1));
          pieces.push_back(piece);
        }
      }
    }
    if (Between(0, 1) == 0) std::shuffle(pieces.begin(), pieces.end(), random_);
    std::vector<int64_t> used(ranks, 0);
    for (Piece& piece : pieces) {
      piece.offset = used[piece.rank];
      int64_t bytes = piece.elements() * DTypeBytes(manifest.tensors()[piece.tensor].dtype);
      used[piece.rank] = (piece.offset + bytes + 3) / 4 * 4 + 4 * OneOf<int64_t>({0, 0, 1, 30, 80});
    }
    auto layout = Layout::Create(manifest, ranks, std::move(pieces));
    SYNCOPATE_CHECK(layout.ok());
    return *std::move(layout);
  }

 private:
  std::vector<Piece> Lengths(const TensorSpec& spec) {
    std::vector<Piece> pieces;
    int64_t elements = spec.NumElements();
    for (int64_t at = 0; at < elements;) {
      int64_t end = std::min(elements, at + Between(1, std::max<int64_t>(1, elements / 2)));
      pieces.push_back({0, 0, at, end, 0});
      at = end;
    }
    return pieces;
  }

  std::vector<Piece> Columns(const TensorSpec& spec) {
    if (spec.shape.size() < 2 || spec.NumElements() == 0) return Lengths(spec);
    std::vector<Piece> pieces;
    int64_t width = spec.NumElements() / spec.shape[0];
    for (int64_t at = 0; at < width;) {
      int64_t end = std::min(width, at + Between(1, width));
      pieces.push_back({0, 0, at, end, 0, spec.shape[0], width});
      at = end;
    }
    return pieces;
  }

  std::mt19937_64 random_;
};

}  // namespace syncopate::synchronizer
