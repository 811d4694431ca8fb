#include "ranks/socket_ranks.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"

// A connection between each two ranks and neither a star nor a ring. With N ranks, each sends and receives N - 1 shards
// in a reduce-scatter, an all-gather, and each half of an all-reduce, which is the least there can be; a star sends
// everything through rank 0, and a ring adds in another order for each shard. Sums are made in the order of ranks, so
// that a run repeats its bits.
//
// A call is one or more exchanges. In an exchange every rank sends every other one a header, and bytes behind it if
// there are any for that rank, and receives the same, all at once on one thread:
//   all-gather      its shard to every rank
//   reduce-scatter  to each rank that rank's part; adds what comes in the order of ranks
//   all-reduce      both of them, block by block; a short one is an all-gather whose shards every rank adds
//   broadcast       the root's data to every rank; the others send headers alone
//   barrier         headers alone
namespace syncopate {
namespace {

// Header on the wire (little-endian, as all supported hosts).
struct FrameHeader {
  static constexpr uint32_t kMagic = 0x6b6e7254;
  uint32_t magic = kMagic;
  uint8_t kind = 0, element = 0, reduction = 0, unused = 0;
  int32_t root = 0;
  int32_t rank = 0;  // the sender
  uint64_t sequence = 0;
  int64_t bytes = 0;
};
static_assert(sizeof(FrameHeader) == 32);
constexpr int64_t kHeaderBytes = sizeof(FrameHeader);

constexpr int64_t kSumBytes = 1 << 18;    // added at a time: fits a core's cache
constexpr int64_t kShardBytes = 1 << 20;  // of a block of an all-reduce; bounds the memory that it needs
constexpr int64_t kShortBytes = 1 << 12;  // an all-reduce up to this size costs less time in one exchange
constexpr absl::Duration kTellWithin = absl::Seconds(1);  // the headers of a call that failed

FrameHeader HeaderFor(const Collective& call, int32_t rank, uint64_t sequence) {
  FrameHeader header;
  header.kind = static_cast<uint8_t>(call.kind);
  header.element = static_cast<uint8_t>(call.element);
  header.reduction = static_cast<uint8_t>(call.reduction);
  header.root = call.root;
  header.rank = rank;
  header.sequence = sequence;
  header.bytes = call.bytes;
  return header;
}

Collective GetCall(const FrameHeader& header) {
  return {.kind = static_cast<Collective::Kind>(header.kind),
          .bytes = header.bytes,
          .element = static_cast<Element>(header.element),
          .reduction = static_cast<Reduction>(header.reduction),
          .root = header.root};
}

// What one exchange moves over one connection, and how far it is.
struct Leg {
  const char* from = nullptr;
  int64_t send_bytes = 0;
  char* to = nullptr;
  int64_t receive_bytes = 0;
  // `to` is `from`: a byte is received only after the one that it replaces was sent. The ranks cannot wait for each
  // other then: a rank that may not receive has sent less than the other one, whose buffer is not full then.
  bool replaces_sent = false;

  FrameHeader header = {};         // as received
  int64_t sent = 0, received = 0;  // with the header

  bool is_sent() const { return sent == kHeaderBytes + send_bytes; }
  bool is_received() const { return received == kHeaderBytes + receive_bytes; }
  // Bytes that may be received now.
  int64_t receivable() const {
    if (received < kHeaderBytes) return kHeaderBytes - received;
    return (replaces_sent ? std::min(sent, kHeaderBytes + receive_bytes) : kHeaderBytes + receive_bytes) - received;
  }
};

class SocketRank final : public Communicator {
 public:
  SocketRank(std::vector<TcpSocket> peers, int32_t rank, absl::Duration deadline)
      : peers_(std::move(peers)), rank_(rank), world_(static_cast<int32_t>(peers_.size())), deadline_(deadline) {}

  int32_t rank() const override { return rank_; }
  int32_t world() const override { return world_; }

  void Abort(const std::string& why) override {
    // Stores the reason before it closes connections, so that a thread woken by the close finds the reason.
    Break(RankLost(why));
    ShutDown();
  }

  absl::Status Perform(const Collective& call, void* in, void* out) override {
    SYNCOPATE_RETURN_IF_ERROR(broken());
    const absl::Status moved = Move(call, static_cast<char*>(in), static_cast<char*>(out));
    // Counts after an error too, so that a frame of this call is never taken for one of the next.
    ++sequence_;
    if (moved.ok()) return moved;
    Break(moved);
    // The other ranks may wait for this one alone, so they learn of the end. A call that differs needs no close: each
    // rank finds that by itself, from headers that a close could take away.
    if (absl::IsUnavailable(moved)) ShutDown();
    // After an abort the reason is its message, not the connection that it closed.
    return broken();
  }

 private:
  using Legs = std::vector<Leg>;  // by rank; this rank's own is not used
  // Called with the number of bytes that have come from all other ranks; the largest number if there are none.
  using Progress = std::function<void(int64_t bytes)>;

  absl::Status Move(const Collective& call, char* in, char* out) {
    switch (call.kind) {
      case Collective::Kind::kAllGather:
        return Gather(call, in, out, call.bytes);
      case Collective::Kind::kReduceScatter:
        return Scatter(call, in, out, call.bytes);
      case Collective::Kind::kAllReduce:
        return Reduce(call, out);
      case Collective::Kind::kBroadcast:
        return SendFromRoot(call, out);
      case Collective::Kind::kBarrier:
        break;
    }
    return Exchange(call, Legs(peers_.size()));
  }

  // all [world * bytes] := every rank's `mine` [bytes].
  absl::Status Gather(const Collective& call, const char* mine, char* all, int64_t bytes) {
    Legs legs(peers_.size());
    for (int32_t rank = 0; rank < world_; ++rank) {
      legs[static_cast<size_t>(rank)] = {
          .from = mine, .send_bytes = bytes, .to = all + rank * bytes, .receive_bytes = bytes};
    }
    CopyBytes(all + rank_ * bytes, mine, static_cast<size_t>(bytes));
    return Exchange(call, std::move(legs));
  }

  // mine [bytes] := the sum of this rank's part of every rank's `all` [world * bytes], which is overwritten.
  absl::Status Scatter(const Collective& call, char* all, char* mine, int64_t bytes) {
    Legs legs(peers_.size());
    for (int32_t rank = 0; rank < world_; ++rank) {
      char* const part = all + rank * bytes;
      legs[static_cast<size_t>(rank)] = {
          .from = part, .send_bytes = bytes, .to = part, .receive_bytes = bytes, .replaces_sent = true};
    }
    int64_t summed = 0;
    auto sum = [&](int64_t received) {
      received = std::min(received, bytes);
      // Adds small pieces while they are in the cache; whole shards would go through memory once for each rank.
      while (summed < received && (received - summed >= kSumBytes || received == bytes)) {
        const int64_t piece = std::min(kSumBytes, received - summed);
        Sum(call, all + summed, bytes, mine + summed, piece);
        summed += piece;
      }
    };
    return Exchange(call, std::move(legs), sum);
  }

  // sum [bytes] := the sum over ranks r of parts + r * stride, in the order of ranks.
  void Sum(const Collective& call, const char* parts, int64_t stride, char* sum, int64_t bytes) const {
    CopyBytes(sum, parts, static_cast<size_t>(bytes));
    for (int32_t rank = 1; rank < world_; ++rank) Combine(call, sum, parts + rank * stride, bytes);
  }

  absl::Status Reduce(const Collective& call, char* values) {
    const int64_t width = ElementBytes(call.element);
    if (call.bytes <= kShortBytes) {
      parts_.resize(static_cast<size_t>(world_ * call.bytes));
      SYNCOPATE_RETURN_IF_ERROR(Gather(call, values, parts_.data(), call.bytes));
      Sum(call, parts_.data(), call.bytes, values, call.bytes);
      return absl::OkStatus();
    }
    const int64_t block = world_ * kShardBytes;
    for (int64_t begin = 0; begin < call.bytes; begin += block) {
      const int64_t bytes = std::min(block, call.bytes - begin);
      const int64_t shard = (bytes / width + world_ - 1) / world_ * width;
      // A copy with equal shards, the last ones filled up with zeros.
      parts_.resize(static_cast<size_t>(world_ * shard));
      shard_.resize(static_cast<size_t>(shard));
      CopyBytes(parts_.data(), values + begin, static_cast<size_t>(bytes));
      std::fill(parts_.begin() + bytes, parts_.end(), 0);
      SYNCOPATE_RETURN_IF_ERROR(Scatter(call, parts_.data(), shard_.data(), shard));
      SYNCOPATE_RETURN_IF_ERROR(Gather(call, shard_.data(), parts_.data(), shard));
      CopyBytes(values + begin, parts_.data(), static_cast<size_t>(bytes));
    }
    return absl::OkStatus();
  }

  absl::Status SendFromRoot(const Collective& call, char* data) {
    Legs legs(peers_.size());
    for (int32_t rank = 0; rank < world_; ++rank) {
      Leg& leg = legs[static_cast<size_t>(rank)];
      if (rank_ == call.root) {
        leg = {.from = data, .send_bytes = call.bytes};
      } else if (rank == call.root) {
        leg = {.to = data, .receive_bytes = call.bytes};
      }
    }
    return Exchange(call, std::move(legs));
  }

  // Moves all legs at once.
  absl::Status Exchange(const Collective& call, Legs legs, const Progress& progress = nullptr) {
    const FrameHeader header = HeaderFor(call, rank_, sequence_);
    absl::Time until = Clock::Real()->Now() + deadline_;
    for (;;) {
      bool is_done = true, has_moved = false;
      int64_t received = INT64_MAX;
      for (int32_t rank = 0; rank < world_; ++rank) {
        if (rank == rank_) continue;
        Leg& leg = legs[static_cast<size_t>(rank)];
        const absl::StatusOr<bool> moved = Advance(rank, header, call, leg);
        if (!moved.ok()) {
          // Every rank must see the header of a call that differs.
          if (!absl::IsUnavailable(moved.status())) SendHeaders(header, legs);
          return Annotate(moved.status(), absl::StrCat("call ", sequence_, ", ", call.ToString()));
        }
        has_moved = has_moved || *moved;
        is_done = is_done && leg.is_sent() && leg.is_received();
        received = std::min(received, leg.received - kHeaderBytes);
      }
      if (progress != nullptr) progress(received);
      if (is_done) return absl::OkStatus();
      if (has_moved) {
        until = Clock::Real()->Now() + deadline_;
      } else {
        SYNCOPATE_RETURN_IF_ERROR(Annotate(Wait(legs, until), absl::StrCat("call ", sequence_, ", ", call.ToString())));
      }
    }
  }

  // Moves as much of one leg as is possible now; returns whether that is anything.
  absl::StatusOr<bool> Advance(int32_t rank, const FrameHeader& header, const Collective& call, Leg& leg) {
    TcpSocket& peer = peers_[static_cast<size_t>(rank)];
    bool has_moved = false;
    // Receives before it sends, so that the header of a rank that has ended since is still seen.
    if (const int64_t bytes = leg.receivable(); bytes > 0) {
      const bool in_header = leg.received < kHeaderBytes;
      char* const to =
          in_header ? reinterpret_cast<char*>(&leg.header) + leg.received : leg.to + (leg.received - kHeaderBytes);
      SYNCOPATE_ASSIGN_OR_RETURN(const int64_t received, peer.TryReceive(to, bytes));
      leg.received += received;
      has_moved = received > 0;
      if (in_header && leg.received == kHeaderBytes) SYNCOPATE_RETURN_IF_ERROR(Check(rank, leg.header, call));
    }
    if (!leg.is_sent()) {
      SYNCOPATE_ASSIGN_OR_RETURN(const int64_t sent, SendSome(peer, header, leg));
      has_moved = has_moved || sent > 0;
    }
    return has_moved;
  }

  static absl::StatusOr<int64_t> SendSome(TcpSocket& peer, const FrameHeader& header, Leg& leg) {
    if (leg.sent == 0 && leg.send_bytes > 0 && leg.send_bytes <= kShortBytes) {
      // One packet and not two, which is what a short call's time goes to.
      std::array<char, kHeaderBytes + kShortBytes> together;
      CopyBytes(together.data(), &header, sizeof(header));
      CopyBytes(together.data() + kHeaderBytes, leg.from, static_cast<size_t>(leg.send_bytes));
      SYNCOPATE_ASSIGN_OR_RETURN(leg.sent, peer.TrySend(together.data(), kHeaderBytes + leg.send_bytes));
      return leg.sent;
    }
    const bool in_header = leg.sent < kHeaderBytes;
    const char* const from =
        in_header ? reinterpret_cast<const char*>(&header) + leg.sent : leg.from + (leg.sent - kHeaderBytes);
    const int64_t end = in_header ? kHeaderBytes : kHeaderBytes + leg.send_bytes;
    SYNCOPATE_ASSIGN_OR_RETURN(const int64_t sent, peer.TrySend(from, end - leg.sent));
    leg.sent += sent;
    return sent;
  }

  // Without this check, ranks that make different calls would exchange bytes of different tensors.
  absl::Status Check(int32_t rank, const FrameHeader& header, const Collective& call) const {
    if (header.magic != FrameHeader::kMagic || header.rank != rank) {
      return Error(absl::StatusCode::kInternal, "RANK_MISMATCH",
                   absl::StrCat("rank ", rank, " sent what is no frame of a call"));
    }
    const Collective theirs = GetCall(header);
    if (theirs == call && header.sequence == sequence_) return absl::OkStatus();
    return rank > rank_ ? RankMismatch(rank, theirs, rank_, call, header.sequence)
                        : RankMismatch(rank_, call, rank, theirs, sequence_);
  }

  // Sends the headers that have not been sent yet, as far as the other ranks take them.
  void SendHeaders(const FrameHeader& header, Legs& legs) {
    const absl::Time until = Clock::Real()->Now() + kTellWithin;
    for (int32_t rank = 0; rank < world_; ++rank) {
      Leg& leg = legs[static_cast<size_t>(rank)];
      if (rank == rank_ || leg.sent >= kHeaderBytes) continue;
      const char* const rest = reinterpret_cast<const char*>(&header) + leg.sent;
      // A rank that cannot be told is lost, which it and the others notice.
      peers_[static_cast<size_t>(rank)].Send(rest, kHeaderBytes - leg.sent, until).IgnoreError();
    }
  }

  // Waits until a leg can go on.
  absl::Status Wait(const Legs& legs, absl::Time until) const {
    std::vector<pollfd> waited;
    std::string missing;
    for (int32_t rank = 0; rank < world_; ++rank) {
      const Leg& leg = legs[static_cast<size_t>(rank)];
      if (rank == rank_ || (leg.is_sent() && leg.is_received())) continue;
      short events = 0;
      if (!leg.is_sent()) events |= POLLOUT;
      if (leg.receivable() > 0) events |= POLLIN;
      const TcpSocket& peer = peers_[static_cast<size_t>(rank)];
      waited.push_back({peer.fd(), events, 0});
      absl::StrAppend(&missing, missing.empty() ? "" : ", ", peer.peer());
    }
    const absl::Duration left = until - Clock::Real()->Now();
    if (left <= absl::ZeroDuration()) return RankLost(absl::StrCat(missing, " does not answer in time"));
    const int64_t milliseconds = std::min<int64_t>(absl::ToInt64Milliseconds(left) + 1, 60'000);
    if (poll(waited.data(), waited.size(), static_cast<int>(milliseconds)) < 0 && errno != EINTR) {
      return RankLost(absl::StrCat("waiting for ranks: ", std::strerror(errno)));
    }
    return absl::OkStatus();
  }

  void ShutDown() const {
    for (const TcpSocket& peer : peers_) peer.ShutDown();
  }
  absl::Status broken() {
    MutexLock lock(&mutex_);
    return broken_;
  }
  void Break(const absl::Status& why) {
    MutexLock lock(&mutex_);
    if (broken_.ok()) broken_ = why;
  }

  std::vector<TcpSocket> peers_;  // fixed: Abort() uses them from other threads
  const int32_t rank_, world_;
  const absl::Duration deadline_;
  uint64_t sequence_ = 0;
  std::vector<char> parts_, shard_;  // of an all-reduce
  Mutex mutex_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Communicator> MakeSocketRank(std::vector<TcpSocket> peers, int32_t rank, absl::Duration deadline) {
  return std::make_unique<SocketRank>(std::move(peers), rank, deadline);
}

}  // namespace syncopate
