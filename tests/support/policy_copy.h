#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <iterator>
#include <vector>

#include "trainer/step/policy.h"

namespace syncopate::testing {

// A copy on the host of all that a policy trains. Tests compare it, damage it and restore from it.
class PolicyCopy final : public trainer::PolicySource {
 public:
  explicit PolicyCopy(const trainer::Policy& policy) : manifest_(policy.trained()), updates_(policy.updates()) {
    for (trainer::PolicyPart part : trainer::kPolicyParts) {
      std::vector<float>& arena = arena_of(part);
      arena.resize(static_cast<size_t>(manifest_.arena_bytes()) / sizeof(float));
      for (size_t i = 0; i < manifest_.tensors().size(); ++i) {
        char* place = reinterpret_cast<char*>(arena.data()) + manifest_.ranges()[i].begin;
        EXPECT_TRUE(policy
                        .WriteTensor(part, i,
                                     [&place](absl::string_view piece) {
                                       std::memcpy(place, piece.data(), piece.size());
                                       place += piece.size();
                                       return absl::OkStatus();
                                     })
                        .ok());
      }
    }
  }

  void Read(trainer::PolicyPart part, size_t index, int64_t begin, int64_t count,
            const std::function<void(absl::string_view)>& use) const override {
    const float* const tensor = arenas_[static_cast<size_t>(part)].data() +
                                manifest_.ranges()[index].begin / static_cast<int64_t>(sizeof(float));
    use({reinterpret_cast<const char*>(tensor + begin), static_cast<size_t>(count) * sizeof(float)});
  }
  int64_t updates() const override { return updates_; }

  // Whether a snapshot has these numbers, of several ranks those of its shard. Rank 0 alone has a copy of a policy.
  bool IsHeldBy(const trainer::PolicySnapshot& snapshot) const {
    int64_t seen = 0;
    for (trainer::PolicyPart part : trainer::kPolicyParts) {
      for (const trainer::PolicySnapshot::Piece& piece : snapshot.pieces) {
        const absl::string_view held = snapshot.Bytes(part, piece);
        const char* const mine = reinterpret_cast<const char*>(arenas_[static_cast<size_t>(part)].data()) +
                                 manifest_.ranges()[piece.tensor].begin +
                                 piece.begin * static_cast<int64_t>(sizeof(float));
        if (std::memcmp(held.data(), mine, held.size()) != 0) return false;
        seen += piece.count;
      }
    }
    int64_t elements = 0;
    for (const TensorSpec& spec : manifest_.tensors()) elements += spec.NumElements();
    const bool is_whole = seen == static_cast<int64_t>(std::size(trainer::kPolicyParts)) * elements;
    return snapshot.updates == updates_ && (is_whole || (snapshot.world > 1 && seen > 0));
  }

  // The copy is laid out by the manifest.
  const std::vector<float>& parameters() const { return arenas_[0]; }
  std::vector<float>& arena_of(trainer::PolicyPart part) { return arenas_[static_cast<size_t>(part)]; }

  friend bool operator==(const PolicyCopy& a, const PolicyCopy& b) {
    if (a.updates_ != b.updates_) return false;
    for (size_t part = 0; part < std::size(a.arenas_); ++part) {
      const auto &x = a.arenas_[part], &y = b.arenas_[part];
      // Bits are compared, so that a NaN equals itself.
      if (x.size() != y.size() || std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) != 0) return false;
    }
    return true;
  }

 private:
  const Manifest manifest_;
  std::vector<float> arenas_[std::size(trainer::kPolicyParts)];
  int64_t updates_;
};

// A policy in arenas that the caller owns, laid out by a manifest.
class ArenaSource final : public trainer::PolicySource {
 public:
  ArenaSource(const Manifest& manifest, const void* parameters, const void* first_moment, const void* second_moment,
              int64_t updates)
      : manifest_(manifest), arenas_{parameters, first_moment, second_moment}, updates_(updates) {}

  void Read(trainer::PolicyPart part, size_t index, int64_t begin, int64_t count,
            const std::function<void(absl::string_view)>& use) const override {
    const char* const tensor =
        static_cast<const char*>(arenas_[static_cast<size_t>(part)]) + manifest_.ranges()[index].begin;
    use({tensor + static_cast<size_t>(begin) * sizeof(float), static_cast<size_t>(count) * sizeof(float)});
  }
  int64_t updates() const override { return updates_; }

 private:
  const Manifest& manifest_;
  const void* const arenas_[std::size(trainer::kPolicyParts)];
  const int64_t updates_;
};

}  // namespace syncopate::testing
