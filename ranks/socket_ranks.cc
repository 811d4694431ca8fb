#include "ranks/socket_ranks.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/sha256.h"

// A star and not a ring: there are few ranks on host memory, sums must be made in the order of ranks (so that a run
// repeats its bits), and rank 0 can compare all calls before it accepts data.
namespace syncopate {
namespace {

// Header of a frame on the wire (little-endian, as all supported hosts):
//   magic  kind element reduction is_error  root  rank  sequence(8)  bytes(8)  payload(8)
// `payload` bytes follow; in a frame with is_error they are the message, and `root` is the status code.
struct FrameHeader {
  static constexpr uint32_t kMagic = 0x6b6e7253;
  uint32_t magic = kMagic;
  uint8_t kind = 0, element = 0, reduction = 0, is_error = 0;
  int32_t root = 0;
  int32_t rank = 0;
  uint64_t sequence = 0;
  int64_t bytes = 0;
  int64_t payload = 0;
};
static_assert(sizeof(FrameHeader) == 40);

constexpr int64_t kLongestWords = 4096;
constexpr int64_t kSumBytes = 1 << 18;  // received and then summed at a time: fits a core's cache
constexpr absl::Duration kLookEvery = absl::Milliseconds(100);  // between calls of go_on
constexpr absl::Duration kGreetingWithin = absl::Seconds(5);

FrameHeader HeaderFor(const Collective& call, int32_t rank, uint64_t sequence, int64_t payload) {
  FrameHeader header;
  header.kind = static_cast<uint8_t>(call.kind);
  header.element = static_cast<uint8_t>(call.element);
  header.reduction = static_cast<uint8_t>(call.reduction);
  header.root = call.root;
  header.rank = rank;
  header.sequence = sequence;
  header.bytes = call.bytes;
  header.payload = payload;
  return header;
}

Collective GetCall(const FrameHeader& header) {
  return {.kind = static_cast<Collective::Kind>(header.kind),
          .bytes = header.bytes,
          .element = static_cast<Element>(header.element),
          .reduction = static_cast<Reduction>(header.reduction),
          .root = header.root};
}

absl::Status BadFrame(const std::string& peer) {
  return Error(absl::StatusCode::kInternal, "RANK_MISMATCH", absl::StrCat(peer, " sent what is no frame of a call"));
}

// Common part of MiddleRank and OuterRank: the number of the next call, and why the group is broken.
class SocketRank : public Communicator {
 public:
  SocketRank(std::vector<TcpSocket> peers, int32_t rank, int32_t world, absl::Duration deadline)
      : peers_(std::move(peers)), rank_(rank), world_(world), deadline_(deadline) {}

  int32_t rank() const override { return rank_; }
  int32_t world() const override { return world_; }

  void Abort(const std::string& why) override {
    // Stores the reason before it closes connections, so that a thread woken by the close finds the reason.
    Break(RankLost(why));
    for (const TcpSocket& peer : peers_) peer.ShutDown();
  }

  absl::Status Perform(const Collective& call, void* in, void* out) override {
    SYNCOPATE_RETURN_IF_ERROR(broken());
    const absl::Status moved = Move(call, static_cast<char*>(in), static_cast<char*>(out));
    // Counts after an error too, so that a frame of this call is never taken for one of the next.
    ++sequence_;
    if (!moved.ok()) Break(moved);
    // After an abort the reason is its message, not the connection that it closed.
    return moved.ok() ? moved : broken();
  }

 protected:
  virtual absl::Status Move(const Collective& call, char* in, char* out) = 0;

  absl::Time Until() const { return Clock::Real()->Now() + deadline_; }
  uint64_t sequence() const { return sequence_; }
  std::vector<TcpSocket>& peers() { return peers_; }

 private:
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
  Mutex mutex_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
};

class MiddleRank final : public SocketRank {
 public:
  // peers[r - 1] is rank r.
  MiddleRank(std::vector<TcpSocket> peers, int32_t world, absl::Duration deadline)
      : SocketRank(std::move(peers), 0, world, deadline) {}

 protected:
  absl::Status Move(const Collective& call, char* in, char* out) override {
    const absl::Status done = Exchange(call, in, out);
    if (!done.ok()) Complain(done);
    return done;
  }

 private:
  absl::Status Exchange(const Collective& call, char* in, char* out) {
    const absl::Time until = Until();
    Begin(call, in, out);
    for (int32_t rank = 1; rank < world(); ++rank) {
      SYNCOPATE_RETURN_IF_ERROR(
          Annotate(ReceiveFrom(rank, call, in, out, until), absl::StrCat("call ", sequence(), ", ", call.ToString())));
    }
    for (int32_t rank = 1; rank < world(); ++rank) {
      const auto [bytes, from] = Answer(call, rank, in, out);
      const FrameHeader header = HeaderFor(call, 0, sequence(), bytes);
      TcpSocket& peer = peers()[static_cast<size_t>(rank - 1)];
      SYNCOPATE_RETURN_IF_ERROR(peer.Send(&header, sizeof(header), until).status());
      SYNCOPATE_RETURN_IF_ERROR(peer.Send(from, bytes, until).status());
    }
    // Copies rank 0's part only after the others have been sent theirs, which follow it in `in`.
    if (call.kind == Collective::Kind::kReduceScatter) CopyBytes(out, in, static_cast<size_t>(call.bytes));
    return absl::OkStatus();
  }

  // Copies rank 0's own part of an all-gather.
  static void Begin(const Collective& call, char* in, char* out) {
    if (call.kind == Collective::Kind::kAllGather) CopyBytes(out, in, static_cast<size_t>(call.bytes));
  }

  absl::Status ReceiveFrom(int32_t rank, const Collective& call, char* in, char* out, absl::Time until) {
    TcpSocket& peer = peers()[static_cast<size_t>(rank - 1)];
    FrameHeader header;
    SYNCOPATE_RETURN_IF_ERROR(peer.Receive(&header, sizeof(header), until));
    if (header.magic != FrameHeader::kMagic || header.rank != rank) return BadFrame(peer.peer());
    // Without this check, ranks that make different calls would exchange bytes of different tensors.
    if (!(GetCall(header) == call) || header.sequence != sequence()) {
      return RankMismatch(rank, GetCall(header), call, header.sequence);
    }
    const int64_t bytes = call.bytes_in(rank, world());
    if (header.payload != bytes) return BadFrame(peer.peer());
    switch (call.kind) {
      case Collective::Kind::kAllGather:
        return peer.Receive(out + rank * call.bytes, bytes, until);
      case Collective::Kind::kBroadcast:
        return peer.Receive(out, bytes, until);
      case Collective::Kind::kReduceScatter:
      case Collective::Kind::kAllReduce:
        break;
      case Collective::Kind::kBarrier:
        return absl::OkStatus();
    }
    // Sums in place in `in`, rank after rank: the order of the sum is that of the ranks.
    part_.resize(static_cast<size_t>(kSumBytes));
    for (int64_t begin = 0; begin < bytes; begin += kSumBytes) {
      const int64_t size = std::min(kSumBytes, bytes - begin);
      // Receives small pieces and sums them while they are in the cache; a whole gradient would go through memory.
      SYNCOPATE_RETURN_IF_ERROR(peer.Receive(part_.data(), size, until));
      Combine(call, in + begin, part_.data(), size);
    }
    return absl::OkStatus();
  }

  struct Part {
    int64_t bytes = 0;
    const char* from = nullptr;
  };
  Part Answer(const Collective& call, int32_t rank, const char* in, const char* out) const {
    if (call.kind == Collective::Kind::kReduceScatter) return {call.bytes, in + rank * call.bytes};
    if (call.kind == Collective::Kind::kBroadcast && rank == call.root) return {};
    return {call.bytes_out(world()), out};
  }

  // Sends the error to the other ranks, as far as they can be reached.
  void Complain(const absl::Status& why) {
    const std::string words = std::string(why.message()).substr(0, kLongestWords);
    FrameHeader header;
    header.is_error = 1;
    header.sequence = sequence();
    header.root = static_cast<int32_t>(why.code());
    header.payload = static_cast<int64_t>(words.size());
    // Uses its own deadline, because the call's may have passed.
    const absl::Time until = Clock::Real()->Now() + absl::Seconds(1);
    for (TcpSocket& peer : peers()) {
      auto told = peer.Send(&header, sizeof(header), until);
      if (told.ok()) told = peer.Send(words.data(), header.payload, until);
      if (!told.ok()) SYNCOPATE_LOG(kDebug, "%s was not told: %s", peer.peer(), std::string(told.status().message()));
    }
  }

  std::vector<char> part_;
};

class OuterRank final : public SocketRank {
 public:
  OuterRank(TcpSocket middle, int32_t rank, int32_t world, absl::Duration deadline)
      : SocketRank(Only(std::move(middle)), rank, world, deadline) {}

 protected:
  absl::Status Move(const Collective& call, char* in, char* out) override {
    TcpSocket& middle = peers()[0];
    const absl::Time until = Until();
    const int64_t bytes = call.bytes_in(rank(), world());
    const FrameHeader header = HeaderFor(call, rank(), sequence(), bytes);
    // Rank 0 answers early only with an error, so a readable socket stops the sending.
    SYNCOPATE_ASSIGN_OR_RETURN(bool sent, middle.Send(&header, sizeof(header), until, /*stop_if_readable=*/true));
    if (sent) {
      SYNCOPATE_RETURN_IF_ERROR(middle.Send(in, bytes, until, /*stop_if_readable=*/true).status());
    }
    FrameHeader answer;
    SYNCOPATE_RETURN_IF_ERROR(middle.Receive(&answer, sizeof(answer), until));
    if (answer.magic != FrameHeader::kMagic) return BadFrame(middle.peer());
    if (answer.is_error != 0) return ReceiveComplaint(answer, until);
    const bool has_it = call.kind == Collective::Kind::kBroadcast && rank() == call.root;
    const int64_t expected = has_it ? 0 : call.bytes_out(world());
    if (!(GetCall(answer) == call) || answer.sequence != sequence() || answer.payload != expected) {
      return BadFrame(middle.peer());
    }
    return middle.Receive(out, expected, until);
  }

 private:
  static std::vector<TcpSocket> Only(TcpSocket socket) {
    std::vector<TcpSocket> sockets;
    sockets.push_back(std::move(socket));
    return sockets;
  }

  absl::Status ReceiveComplaint(const FrameHeader& header, absl::Time until) {
    if (header.payload < 0 || header.payload > kLongestWords) return BadFrame(peers()[0].peer());
    std::string words(static_cast<size_t>(header.payload), '\0');
    SYNCOPATE_RETURN_IF_ERROR(peers()[0].Receive(words.data(), header.payload, until));
    if (header.root == static_cast<int32_t>(absl::StatusCode::kUnavailable)) return RankLost(words);
    return Error(absl::StatusCode::kInternal, "RANK_MISMATCH", words);
  }
};

// ---- Authentication of ranks. Rank r sends a Greeting; rank 0 answers with a Challenge, which has its proof for the
// Greeting's nonce; rank r sends its proof for the Challenge's nonce. The messages do not reveal the secret.

using Nonce = std::array<char, 32>;
using Proof = std::array<char, 64>;  // hexadecimal

struct Greeting {
  uint32_t magic = FrameHeader::kMagic + 1;
  int32_t rank = 0;
  int32_t world = 0;
  Nonce nonce{};
};
struct Challenge {
  Proof proof{};
  Nonce nonce{};
};

template <typename Bytes>
void DrawBytes(Bytes* bytes) {
  SYNCOPATE_CHECK(getrandom(bytes->data(), bytes->size(), 0) == static_cast<ssize_t>(bytes->size()));
}

// The proof of `rank` for `nonce`: HMAC-SHA256 (RFC 2104) of both.
Proof Prove(const RankSecret& secret, const Nonce& nonce, int32_t rank) {
  // The block of SHA-256 is 64 bytes; a secret of 32 is used as it is.
  std::string inner_pad(64, 0x36), outer_pad(64, 0x5c);
  for (size_t i = 0; i < secret.size(); ++i) {
    inner_pad[i] = static_cast<char>(inner_pad[i] ^ secret[i]);
    outer_pad[i] = static_cast<char>(outer_pad[i] ^ secret[i]);
  }
  const std::string text = absl::StrCat("rank ", rank, " ", absl::string_view(nonce.data(), nonce.size()));
  // Uses the hexadecimal form of the inner digest: as strong as the bytes, and the only form that Sha256 gives.
  const std::string hex = Sha256Hex(outer_pad + Sha256Hex(inner_pad + text));
  Proof proof;
  std::copy(hex.begin(), hex.end(), proof.begin());
  return proof;
}

// Compares in a time that does not depend on where the proofs differ.
bool AreSame(const Proof& a, const Proof& b) {
  int differ = 0;
  for (size_t i = 0; i < a.size(); ++i) differ |= a[i] ^ b[i];
  return differ == 0;
}

// Authenticates a connection; returns its rank.
absl::StatusOr<int32_t> Welcome(TcpSocket& socket, const RankSecret& secret, int32_t world, absl::Time until) {
  Greeting greeting;
  SYNCOPATE_RETURN_IF_ERROR(socket.Receive(&greeting, sizeof(greeting), until));
  if (greeting.magic != Greeting().magic || greeting.world != world || greeting.rank < 1 || greeting.rank >= world) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_GREETING", "not a rank of this group");
  }
  // Rank 0 proves itself first, so that another process that listens at its address gets no proof from the others.
  Challenge challenge{Prove(secret, greeting.nonce, 0), {}};
  DrawBytes(&challenge.nonce);
  SYNCOPATE_RETURN_IF_ERROR(socket.Send(&challenge, sizeof(challenge), until).status());
  Proof proof;
  SYNCOPATE_RETURN_IF_ERROR(socket.Receive(proof.data(), sizeof(proof), until));
  if (!AreSame(proof, Prove(secret, challenge.nonce, greeting.rank))) {
    return Error(absl::StatusCode::kPermissionDenied, "WRONG_SECRET", "it does not know the secret of this group");
  }
  return greeting.rank;
}

}  // namespace

RankSecret DrawRankSecret() {
  RankSecret secret;
  DrawBytes(&secret);
  return secret;
}

absl::StatusOr<RankSecret> ParseRankSecret(const std::string& bytes) {
  RankSecret secret;
  if (bytes.size() != secret.size()) return RankLost("rank 0's welcome is damaged");
  std::copy(bytes.begin(), bytes.end(), secret.begin());
  return secret;
}

absl::StatusOr<RankMeeting> RankMeeting::Open(const std::string& host, const RankSecret& secret) {
  SYNCOPATE_ASSIGN_OR_RETURN(TcpListener listener, TcpListener::Open(host));
  return RankMeeting(std::move(listener), secret);
}

absl::StatusOr<std::unique_ptr<Communicator>> RankMeeting::Meet(int32_t world, absl::Duration meet,
                                                                absl::Duration deadline,
                                                                const std::function<absl::Status()>& go_on) {
  const absl::Time until = Clock::Real()->Now() + meet;
  std::vector<TcpSocket> peers(static_cast<size_t>(world - 1));
  auto missing = [&peers] { return std::count_if(peers.begin(), peers.end(), [](auto& p) { return !p.valid(); }); };
  while (missing() > 0) {
    auto connection = listener_.Accept(std::min(until, Clock::Real()->Now() + kLookEvery));
    // Called after each connection too, so that a stop takes effect even while ranks keep coming.
    if (go_on) SYNCOPATE_RETURN_IF_ERROR(go_on());
    if (absl::IsDeadlineExceeded(connection.status()) && Clock::Real()->Now() < until) continue;
    if (absl::IsDeadlineExceeded(connection.status())) {
      return RankLost(
          absl::StrCat(missing(), " of ", world - 1, " ranks have not come within ", absl::FormatDuration(meet)));
    }
    SYNCOPATE_RETURN_IF_ERROR(connection.status());
    // A silent connection delays the others for at most kGreetingWithin.
    auto rank = Welcome(*connection, secret_, world, std::min(until, Clock::Real()->Now() + kGreetingWithin));
    if (!rank.ok()) {
      SYNCOPATE_LOG(kWarning, "a connection of no rank: %s", std::string(rank.status().message()));
      continue;
    }
    TcpSocket& place = peers[static_cast<size_t>(*rank - 1)];
    // Keeps the first connection: it has proved itself, and a second one would be another process of the same rank.
    if (place.valid()) {
      SYNCOPATE_LOG(kWarning, "a second connection of rank %d", *rank);
      continue;
    }
    connection->set_peer(absl::StrCat("rank ", *rank));
    place = *std::move(connection);
  }
  return std::unique_ptr<Communicator>(std::make_unique<MiddleRank>(std::move(peers), world, deadline));
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinRanks(const HostPort& address, const RankSecret& secret, int32_t rank,
                                                        int32_t world, absl::Duration meet, absl::Duration deadline) {
  SYNCOPATE_CHECK(rank >= 1 && rank < world);
  const absl::Time until = Clock::Real()->Now() + meet;
  SYNCOPATE_ASSIGN_OR_RETURN(TcpSocket socket, DialTcp(address, "rank 0", until));
  Greeting greeting;
  greeting.rank = rank;
  greeting.world = world;
  DrawBytes(&greeting.nonce);
  SYNCOPATE_RETURN_IF_ERROR(socket.Send(&greeting, sizeof(greeting), until).status());
  Challenge challenge;
  SYNCOPATE_RETURN_IF_ERROR(socket.Receive(&challenge, sizeof(challenge), until));
  if (!AreSame(challenge.proof, Prove(secret, greeting.nonce, 0))) {
    return Error(absl::StatusCode::kPermissionDenied, "WRONG_SECRET",
                 absl::StrCat("the process that listens at ", address.ToString(),
                              " is not rank 0 of this group; correct rank 0's address"));
  }
  const Proof proof = Prove(secret, challenge.nonce, rank);
  SYNCOPATE_RETURN_IF_ERROR(socket.Send(proof.data(), sizeof(proof), until).status());
  return std::unique_ptr<Communicator>(std::make_unique<OuterRank>(std::move(socket), rank, world, deadline));
}

}  // namespace syncopate
