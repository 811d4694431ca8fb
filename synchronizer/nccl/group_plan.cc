#include "synchronizer/nccl/group_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/status.h"

namespace syncopate::synchronizer::nccl {
namespace {

using Kind = Transmission::Kind;

std::vector<Copy> OfPair(const std::vector<Copy>& copies, int32_t source, int32_t slice) {
  std::vector<Copy> chosen;
  std::ranges::copy_if(copies, std::back_inserter(chosen), [source, slice](const Copy& copy) {
    return copy.source == source && copy.destination == slice && copy.bytes > 0;
  });
  return chosen;
}

ByteRange SentRange(const Copy& copy) { return {copy.source_offset, copy.source_offset + copy.bytes}; }
ByteRange ReceivedRange(const Copy& copy) { return {copy.destination_offset, copy.destination_offset + copy.bytes}; }

// Adds the parts of one pair to the rounds of one seat: part i to round i.
void AddMessages(const std::vector<std::vector<Copy>>& parts, Kind kind, int32_t peer, std::vector<Round>& rounds,
                 size_t seat) {
  bool sends = kind == Kind::kSend;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (rounds.size() <= i) rounds.push_back({seat, {}});
    for (const Copy& copy : parts[i]) {
      rounds[i].messages.push_back({kind, peer, sends ? SentRange(copy) : ReceivedRange(copy)});
    }
  }
}

std::vector<Round> BroadcastRounds(const std::vector<std::vector<Copy>>& parts, bool source, size_t seat) {
  std::vector<Round> rounds;
  for (const std::vector<Copy>& part : parts) {
    Round round{seat, {}};
    for (const Copy& copy : part) {
      round.messages.push_back({Kind::kBroadcast, 0, source ? SentRange(copy) : ReceivedRange(copy)});
    }
    rounds.push_back(std::move(round));
  }
  return rounds;
}

// The bytes for the first of `rounds` rounds that carry `bytes`: shares decrease evenly towards the last round, but
// stay at least `least` if there are enough bytes.
int64_t ShareOfNext(int64_t bytes, int64_t rounds, int64_t least) {
  if (rounds <= 1) return bytes;
  const int64_t equal = (bytes + rounds - 1) / rounds;
  return std::max(equal, std::min(2 * bytes / (rounds + 1), bytes - (rounds - 1) * least));
}

void Append(std::vector<Round> rounds, GroupPlan& plan) { std::ranges::move(rounds, std::back_inserter(plan.rounds)); }

}  // namespace

absl::Status RoundOptions::Validate() const {
  if (max_rounds >= 1 && max_rounds <= 1024 && min_message_bytes >= Manifest::kAlignment) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
               "1 to 1024 rounds of messages of at least 256 bytes are possible");
}

// In P2P rounds the k-th part of every pair moves at the same time. In broadcasts a source serves its slices in
// ascending order, and a receiver receives from the sources in ascending order: part (s, p) waits only for (s, p - 1)
// and (s - 1, p), so there is no circular wait.
GroupPlan PlanOfSource(const GroupShape& shape, int32_t rank, const std::vector<Copy>& copies,
                       const RoundOptions& options) {
  GroupPlan plan;
  if (!shape.broadcasts()) {
    plan.seats = {{0, shape.sources + shape.receivers(), rank}};
    for (int32_t receiver = 0; receiver < shape.receivers(); ++receiver) {
      std::vector<Copy> pair = OfPair(copies, rank, receiver % shape.world);
      AddMessages(CutIntoRounds(pair, options), Kind::kSend, shape.sources + receiver, plan.rounds, 0);
    }
    return plan;
  }
  for (int32_t slice = 0; slice < shape.world; ++slice) {
    plan.seats.push_back({rank * shape.world + slice, 1 + shape.replicas, 0});
    Append(BroadcastRounds(CutIntoRounds(OfPair(copies, rank, slice), options), true, plan.seats.size() - 1), plan);
  }
  return plan;
}

GroupPlan PlanOfReceiver(const GroupShape& shape, int32_t receiver, const std::vector<Copy>& copies,
                         const RoundOptions& options) {
  GroupPlan plan;
  const int32_t slice = receiver % shape.world;
  if (!shape.broadcasts()) {
    plan.seats = {{0, shape.sources + shape.receivers(), shape.sources + receiver}};
    for (int32_t source = 0; source < shape.sources; ++source) {
      AddMessages(CutIntoRounds(OfPair(copies, source, slice), options), Kind::kReceive, source, plan.rounds, 0);
    }
    return plan;
  }
  for (int32_t source = 0; source < shape.sources; ++source) {
    plan.seats.push_back({source * shape.world + slice, 1 + shape.replicas, 1 + receiver / shape.world});
    Append(BroadcastRounds(CutIntoRounds(OfPair(copies, source, slice), options), false, plan.seats.size() - 1), plan);
  }
  return plan;
}

std::vector<Round> WarmUp(const GroupPlan& plan, const GroupShape& shape, bool source, int64_t bytes) {
  std::vector<Round> rounds;
  for (size_t seat = 0; seat < plan.seats.size(); ++seat) {
    if (shape.broadcasts()) {
      rounds.push_back({seat, {{Kind::kBroadcast, 0, {0, bytes}}}});
      continue;
    }
    Round round{seat, {}};
    int32_t first = source ? shape.sources : 0;
    int32_t count = source ? shape.receivers() : shape.sources;
    for (int32_t peer = first; peer < first + count; ++peer) {
      round.messages.push_back({source ? Kind::kSend : Kind::kReceive, peer, {0, bytes}});
    }
    rounds.push_back(std::move(round));
  }
  return rounds;
}

std::vector<std::vector<Copy>> CutIntoRounds(const std::vector<Copy>& copies, const RoundOptions& options) {
  int64_t total = 0;
  for (const Copy& copy : copies) total += copy.bytes;
  std::vector<std::vector<Copy>> rounds;
  if (total == 0) return rounds;
  int64_t left = std::clamp<int64_t>(total / options.min_message_bytes, 1, options.max_rounds);  // number of rounds
  int64_t room = 0;                                                                              // bytes, last round
  for (Copy rest : copies) {
    while (rest.bytes > 0) {
      if (room <= 0) {
        rounds.emplace_back();
        room = ShareOfNext(total, left--, options.min_message_bytes);
      }
      // A part begins at an aligned address if its copy does.
      int64_t aligned = (room + Manifest::kAlignment - 1) / Manifest::kAlignment * Manifest::kAlignment;
      int64_t bytes = std::min(rest.bytes, aligned);
      Copy part = rest;
      part.bytes = bytes;
      rounds.back().push_back(part);
      rest.source_offset += bytes;
      rest.destination_offset += bytes;
      rest.bytes -= bytes;
      room -= bytes;
      total -= bytes;
    }
  }
  return rounds;
}

}  // namespace syncopate::synchronizer::nccl
