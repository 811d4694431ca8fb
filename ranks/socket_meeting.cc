#include "ranks/socket_meeting.h"

#include <sys/random.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/sha256.h"
#include "ranks/socket_ranks.h"

// Authentication of a connection. The rank that dials sends a Greeting; the other one answers with a Challenge, which
// has its proof for the Greeting's nonce; the first one sends its proof for the Challenge's nonce. A proof names both
// ranks and the end that made it, so that no process can pass on one that it was given. The messages do not reveal the
// secret.
namespace syncopate {
namespace {

constexpr absl::Duration kLookEvery = absl::Milliseconds(100);  // between calls of go_on
constexpr absl::Duration kGreetingWithin = absl::Seconds(5);

using Nonce = std::array<char, 32>;
using Proof = std::array<char, 64>;  // hexadecimal

struct Greeting {
  uint32_t magic = 0x6b6e7255;
  int32_t rank = 0;     // that dials
  int32_t to_rank = 0;  // that is dialled
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

// The proof of one end of the connection that `greeting` began, for `nonce`: HMAC-SHA256 (RFC 2104) of all three.
Proof Prove(const RankSecret& secret, SocketEnd end, const Greeting& greeting, const Nonce& nonce) {
  // The block of SHA-256 is 64 bytes; a secret of 32 is used as it is.
  std::string inner_pad(64, 0x36), outer_pad(64, 0x5c);
  for (size_t i = 0; i < secret.size(); ++i) {
    inner_pad[i] = static_cast<char>(inner_pad[i] ^ secret[i]);
    outer_pad[i] = static_cast<char>(outer_pad[i] ^ secret[i]);
  }
  const std::string text = absl::StrCat(end == SocketEnd::kDials ? "rank " : "for rank ", greeting.rank, " to rank ",
                                        greeting.to_rank, " ", absl::string_view(nonce.data(), nonce.size()));
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

// Authenticates a connection that was accepted; returns its rank.
absl::StatusOr<int32_t> Welcome(TcpSocket& socket, const SocketGroup& group, absl::Time until) {
  SYNCOPATE_RETURN_IF_ERROR(socket.Secure(group.security, SocketEnd::kAccepts, until));
  Greeting greeting;
  SYNCOPATE_RETURN_IF_ERROR(socket.Receive(&greeting, sizeof(greeting), until));
  if (greeting.magic != Greeting().magic || greeting.world != group.world || greeting.to_rank != group.rank ||
      greeting.rank <= group.rank || greeting.rank >= group.world) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_GREETING", "not a rank of this group");
  }
  // Proves itself first, so that another process that listens at its address gets no proof from the others.
  Challenge challenge{Prove(group.secret, SocketEnd::kAccepts, greeting, greeting.nonce), {}};
  DrawBytes(&challenge.nonce);
  SYNCOPATE_RETURN_IF_ERROR(socket.Send(&challenge, sizeof(challenge), until));
  Proof proof;
  SYNCOPATE_RETURN_IF_ERROR(socket.Receive(proof.data(), sizeof(proof), until));
  if (!AreSame(proof, Prove(group.secret, SocketEnd::kDials, greeting, challenge.nonce))) {
    return Error(absl::StatusCode::kPermissionDenied, "WRONG_SECRET", "it does not know the secret of this group");
  }
  return greeting.rank;
}

// Connects to `to_rank`, which is at `address`.
absl::StatusOr<TcpSocket> Dial(const SocketGroup& group, int32_t to_rank, const HostPort& address, absl::Time until,
                               const SocketGoOn& go_on) {
  auto dialled = DialTcp(address, absl::StrCat("rank ", to_rank), until, go_on);
  if (!dialled.ok()) {
    return Annotate(dialled.status(),
                    absl::StrCat("rank ", group.rank, " cannot reach rank ", to_rank, " at ", address.ToString(),
                                 ", the address that rank ", to_rank, " told (set ", group.listen_key,
                                 " there to an address that all ranks reach, and let its port through)"));
  }
  SYNCOPATE_RETURN_IF_ERROR(dialled->Secure(group.security, SocketEnd::kDials, until));
  Greeting greeting;
  greeting.rank = group.rank;
  greeting.to_rank = to_rank;
  greeting.world = group.world;
  DrawBytes(&greeting.nonce);
  SYNCOPATE_RETURN_IF_ERROR(dialled->Send(&greeting, sizeof(greeting), until, go_on));
  Challenge challenge;
  SYNCOPATE_RETURN_IF_ERROR(dialled->Receive(&challenge, sizeof(challenge), until, go_on));
  if (!AreSame(challenge.proof, Prove(group.secret, SocketEnd::kAccepts, greeting, greeting.nonce))) {
    return Error(
        absl::StatusCode::kPermissionDenied, "WRONG_SECRET",
        absl::StrCat("the process that listens at ", address.ToString(), " is not rank ", to_rank, " of this group"));
  }
  const Proof proof = Prove(group.secret, SocketEnd::kDials, greeting, challenge.nonce);
  SYNCOPATE_RETURN_IF_ERROR(dialled->Send(proof.data(), sizeof(proof), until, go_on));
  return dialled;
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

absl::StatusOr<SocketMeeting> SocketMeeting::Open(const HostPort& listen, const std::string& key) {
  absl::StatusOr<TcpListener> listener = TcpListener::Open(listen);
  if (!listener.ok()) {
    return Annotate(listener.status(),
                    absl::StrCat(key, " is ", listen.ToString(),
                                 ", where this rank cannot listen for the other ranks; it must be an address of this "
                                 "host, with a free port or port 0"));
  }
  const HostPort address{listen.host, listener->port()};
  return SocketMeeting(*std::move(listener), address);
}

absl::StatusOr<std::unique_ptr<Communicator>> SocketMeeting::Meet(const SocketGroup& group,
                                                                  const std::vector<HostPort>& addresses,
                                                                  const SocketGoOn& go_on) {
  if (static_cast<int32_t>(addresses.size()) != group.world) {
    return RankLost(
        absl::StrCat("rank 0 tells the addresses of ", addresses.size(), " ranks, and there are ", group.world));
  }
  const absl::Time until = Clock::Real()->Now() + group.meet;
  std::vector<TcpSocket> peers(static_cast<size_t>(group.world));
  // Nobody waits in a circle: a rank that dials waits only for a lower one, and rank 0 dials nobody.
  for (int32_t rank = 0; rank < group.rank; ++rank) {
    const auto place = static_cast<size_t>(rank);
    SYNCOPATE_ASSIGN_OR_RETURN(peers[place], Dial(group, rank, addresses[place], until, go_on));
  }
  SYNCOPATE_RETURN_IF_ERROR(Accept(group, until, go_on, &peers));
  return MakeSocketRank(std::move(peers), group.rank, group.deadline);
}

absl::Status SocketMeeting::Accept(const SocketGroup& group, absl::Time until, const SocketGoOn& go_on,
                                   std::vector<TcpSocket>* peers) {
  const auto first = peers->begin() + group.rank + 1;
  auto missing = [&] { return std::count_if(first, peers->end(), [](auto& peer) { return !peer.valid(); }); };
  while (missing() > 0) {
    auto connection = listener_.Accept(std::min(until, Clock::Real()->Now() + kLookEvery));
    // Called after each connection too, so that a stop takes effect even while ranks keep coming.
    if (go_on) SYNCOPATE_RETURN_IF_ERROR(go_on());
    if (absl::IsDeadlineExceeded(connection.status())) {
      if (Clock::Real()->Now() < until) continue;
      return RankLost(absl::StrCat(missing(), " of ", peers->end() - first, " ranks have not come to ",
                                   address_.ToString(), " within ", absl::FormatDuration(group.meet),
                                   "; do they reach that address (", group.listen_key, ")?"));
    }
    SYNCOPATE_RETURN_IF_ERROR(connection.status());
    // A silent connection delays the others for at most kGreetingWithin.
    auto rank = Welcome(*connection, group, std::min(until, Clock::Real()->Now() + kGreetingWithin));
    if (!rank.ok()) {
      SYNCOPATE_LOG(kWarning, "a connection of no rank: %s", std::string(rank.status().message()));
      continue;
    }
    TcpSocket& place = (*peers)[static_cast<size_t>(*rank)];
    // Keeps the first connection: it has proved itself, and a second one would be another process of the same rank.
    if (place.valid()) {
      SYNCOPATE_LOG(kWarning, "a second connection of rank %d", *rank);
      continue;
    }
    connection->set_peer(absl::StrCat("rank ", *rank));
    place = *std::move(connection);
  }
  return absl::OkStatus();
}

}  // namespace syncopate
