#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/manifest.h"
#include "synchronizer/messages.h"
#include "synchronizer/plan/layout.h"
#include "tests/support/status_matchers.h"

namespace syncopate::synchronizer {

using ::syncopate::testing::HasReason;

inline Manifest SmallModel(int64_t bucket_bytes = 1024) {
  auto manifest = Manifest::Create({{"embed", DType::kFloat32, {16, 8}},
                                    {"layer.weight", DType::kBFloat16, {8, 12}},
                                    {"layer.bias", DType::kFloat32, {5}},
                                    {"head", DType::kFloat32, {16, 24}}},
                                   bucket_bytes);
  SYNCOPATE_CHECK(manifest.ok());
  return *std::move(manifest);
}

// All tensors are in the wire dtype, as in a transfer between GPUs.
inline Manifest BFloat16Model() {
  auto manifest = Manifest::Create({{"embed", DType::kBFloat16, {64, 96}},
                                    {"layer.weight", DType::kBFloat16, {96, 128}},
                                    {"norm", DType::kBFloat16, {33}},
                                    {"head", DType::kBFloat16, {128, 96}}},
                                   4096);
  SYNCOPATE_CHECK(manifest.ok());
  return *std::move(manifest);
}

inline MemberId TrainerId(const std::string& incarnation, int32_t rank = 0, int32_t world = 1) {
  return {kTrainerRole, "trainer", rank, world, incarnation};
}

inline MemberId RollouterId(int index, const std::string& incarnation, int32_t rank = 0, int32_t world = 1) {
  return {kRollouterRole, absl::StrCat("rollouter-", index), rank, world, incarnation};
}

inline Hello HelloFor(const MemberId& id, std::shared_ptr<const Manifest> manifest) {
  Hello hello;
  hello.member = id;
  hello.address = absl::StrCat(id.replica_id, ":1");
  hello.manifest = std::move(manifest);
  hello.transports = {"grpc"};
  if (id.role == kTrainerRole && id.world > 1) hello.start = "start";
  return hello;
}

inline PublishedVersion VersionWith(PolicyVersion version, std::vector<uint64_t> digests = {1, 2}) {
  PublishedVersion published;
  published.version = version;
  published.digest = CombineDigests(digests);
  published.bucket_digests = std::move(digests);
  return published;
}

// Weights that depend on version, tensor and element; all are finite.
inline absl::Status FillWeights(const Manifest& manifest, uint64_t seed, char* arena) {
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    ByteRange range = manifest.ranges()[i];
    for (int64_t at = range.begin; at < range.end; at += 2) {
      // The top bit of the exponent is clear, so the number is finite.
      uint16_t word = Mix64(HashCombine(seed, i) + at) & 0xbfff;
      std::memcpy(arena + at, &word, 2);
    }
  }
  return absl::OkStatus();
}

// The contents of a rank's buffer in this layout, with weights that depend on seed, tensor and element: finite, and the
// same number in every dtype. Padding is zero.
inline std::vector<char> LayoutContents(const Manifest& manifest, const Layout& layout, int32_t rank, uint64_t seed) {
  std::vector<char> buffer(layout.arena_bytes(rank), 0);
  for (const Piece& piece : layout.pieces()) {
    if (piece.rank != rank) continue;
    const DType dtype = layout.ToDType(manifest.tensors()[piece.tensor]);
    char* to = buffer.data() + piece.offset;
    for (int64_t row = 0; row < piece.rows; ++row) {
      for (int64_t at = piece.begin; at < piece.end; ++at, to += DTypeBytes(dtype)) {
        const uint64_t element = static_cast<uint64_t>(at + row * piece.stride);
        const uint16_t half = Mix64(HashCombine(seed, piece.tensor) + element) & 0xbfff;
        const uint32_t whole = static_cast<uint32_t>(half) << 16;
        if (dtype == DType::kFloat32) std::memcpy(to, &whole, 4);
        if (dtype == DType::kBFloat16) std::memcpy(to, &half, 2);
      }
    }
  }
  return buffer;
}

// Weights likewise, except that tensors that are no adapters have the weights of `base_seed`.
inline absl::Status FillAdapters(const Manifest& manifest, uint64_t base_seed, const std::vector<TensorRange>& adapters,
                                 uint64_t seed, char* arena) {
  std::vector<char> fresh(manifest.arena_bytes(), 0);
  SYNCOPATE_RETURN_IF_ERROR(FillWeights(manifest, base_seed, arena));
  SYNCOPATE_RETURN_IF_ERROR(FillWeights(manifest, seed, fresh.data()));
  for (const TensorRange& tensors : adapters) {
    for (int32_t i = tensors.begin; i < tensors.end; ++i) {
      ByteRange range = manifest.ranges()[i];
      std::memcpy(arena + range.begin, fresh.data() + range.begin, static_cast<size_t>(range.size()));
    }
  }
  return absl::OkStatus();
}

}  // namespace syncopate::synchronizer
