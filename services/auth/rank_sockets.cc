#include "services/auth/rank_sockets.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/credential_file.h"
#include "ranks/collective.h"
#include "services/auth/peer_verifier.h"

namespace syncopate::auth {
namespace {

template <typename Object, void (*kFree)(Object*)>
struct Free {
  void operator()(Object* object) const { kFree(object); }
};
inline void FreeMemory(BIO* memory) { BIO_free_all(memory); }
using Context = std::unique_ptr<SSL_CTX, Free<SSL_CTX, SSL_CTX_free>>;
using Session = std::unique_ptr<SSL, Free<SSL, SSL_free>>;
using Memory = std::unique_ptr<BIO, Free<BIO, FreeMemory>>;

// The oldest error of this thread's queue, as text.
std::string GetError() {
  const unsigned long code = ERR_get_error();
  const char* const reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "the connection broke" : reason;
}

// OpenSSL's own socket BIO writes without MSG_NOSIGNAL: a peer that is gone would end a process that does not ignore
// SIGPIPE.
int GetFd(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }
int WriteBio(BIO* bio, const char* from, int bytes) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = send(GetFd(bio), from, static_cast<size_t>(bytes), MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}
int ReadBio(BIO* bio, char* to, int bytes) {
  BIO_clear_retry_flags(bio);
  const ssize_t received = recv(GetFd(bio), to, static_cast<size_t>(bytes), 0);
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(received);
}
long ControlBio(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO* MakeBio(int fd) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "rank socket");
    BIO_meth_set_write(made, WriteBio);
    BIO_meth_set_read(made, ReadBio);
    BIO_meth_set_ctrl(made, ControlBio);
    return made;
  }();
  BIO* const bio = BIO_new(method);
  // OpenSSL has room for a pointer and not for a number. NOLINTNEXTLINE(performance-no-int-to-ptr)
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  BIO_set_init(bio, 1);
  return bio;
}

class TlsCipher final : public SocketCipher {
 public:
  TlsCipher(Session session, std::string peer) : session_(std::move(session)), peer_(std::move(peer)) {}

  absl::StatusOr<int64_t> Send(const void* from, int64_t bytes) override {
    // SSL_get_error() also reads the thread's error queue, in which another connection may have left an error.
    ERR_clear_error();
    size_t sent = 0;
    const int result = SSL_write_ex(session_.get(), from, static_cast<size_t>(bytes), &sent);
    return result == 1 ? static_cast<int64_t>(sent) : Judge(result);
  }
  absl::StatusOr<int64_t> Receive(void* to, int64_t bytes) override {
    ERR_clear_error();
    size_t received = 0;
    const int result = SSL_read_ex(session_.get(), to, static_cast<size_t>(bytes), &received);
    return result == 1 ? static_cast<int64_t>(received) : Judge(result);
  }

 private:
  absl::StatusOr<int64_t> Judge(int result) const {
    const int error = SSL_get_error(session_.get(), result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return 0;  // the caller polls and tries again
    if (error == SSL_ERROR_ZERO_RETURN) return RankLost(absl::StrCat(peer_, " has ended"));
    return RankLost(absl::StrCat(peer_, " is gone: ", GetError()));
  }

  const Session session_;
  const std::string peer_;
};

// Certificates are judged when the handshake is done, by PeerVerifier, which logs why it refuses one.
int AcceptForNow(int, X509_STORE_CTX*) { return 1; }

absl::StatusOr<Context> MakeContext(const CredentialFiles& files) {
  ERR_clear_error();
  Context context(SSL_CTX_new(TLS_method()));
  SSL_CTX* const made = context.get();
  if (made == nullptr || SSL_CTX_set_min_proto_version(made, TLS1_3_VERSION) != 1) return BadSecurity(GetError());
  // A connection lasts as long as the group: there is nothing to resume.
  SSL_CTX_set_num_tickets(made, 0);
  SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
  // A call sends what the socket takes, and offers the rest again from where it is.
  SSL_CTX_set_mode(made, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_verify(made, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, AcceptForNow);
  // Read for each connection, so that renewed files count.
  if (SSL_CTX_use_certificate_chain_file(made, files.certificate.c_str()) != 1) {
    return BadSecurity(absl::StrCat(files.certificate, ": ", GetError()));
  }
  if (SSL_CTX_use_PrivateKey_file(made, files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return BadSecurity(absl::StrCat(files.key, ": ", GetError()));
  }
  return context;
}

absl::Status ShakeHands(SSL* session, int fd, SocketEnd end, const std::string& peer, absl::Time until) {
  for (;;) {
    ERR_clear_error();
    const int result = end == SocketEnd::kDials ? SSL_connect(session) : SSL_accept(session);
    if (result == 1) return absl::OkStatus();
    const int error = SSL_get_error(session, result);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
      return RankLost(absl::StrCat("no TLS connection with ", peer, ": ", GetError()));
    }
    const absl::Duration left = until - Clock::Real()->Now();
    if (left <= absl::ZeroDuration()) return RankLost(absl::StrCat(peer, " does not shake hands in time"));
    pollfd waited{fd, static_cast<short>(error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT), 0};
    // Plus one, because the rest of a millisecond would otherwise be spun away; bounded, because poll() takes an int.
    const int64_t milliseconds = std::min<int64_t>(absl::ToInt64Milliseconds(left) + 1, 60'000);
    if (poll(&waited, 1, static_cast<int>(milliseconds)) < 0 && errno != EINTR) {
      return RankLost(absl::StrCat("waiting for ", peer, " failed"));
    }
  }
}

std::string GetText(BIO* memory) {
  char* text = nullptr;
  const long bytes = BIO_get_mem_data(memory, &text);
  return std::string(text, static_cast<size_t>(bytes));
}

std::string GetLeaf(SSL* session) {
  X509* const leaf = SSL_get1_peer_certificate(session);
  if (leaf == nullptr) return "";
  Memory memory(BIO_new(BIO_s_mem()));
  const bool written = PEM_write_bio_X509(memory.get(), leaf) == 1;
  X509_free(leaf);
  return written ? GetText(memory.get()) : "";
}

std::string GetChain(SSL* session) {
  Memory memory(BIO_new(BIO_s_mem()));
  STACK_OF(X509)* const chain = SSL_get_peer_cert_chain(session);  // borrowed
  for (int i = 0; chain != nullptr && i < sk_X509_num(chain); ++i) {
    if (PEM_write_bio_X509(memory.get(), sk_X509_value(chain, i)) != 1) return "";
  }
  return GetText(memory.get());
}

absl::StatusOr<std::unique_ptr<SocketCipher>> Secure(const RankSocketOptions& options, int fd, SocketEnd end,
                                                     const std::string& peer, absl::Time until) {
  SYNCOPATE_ASSIGN_OR_RETURN(const Context context, MakeContext(options.watch->options().files));
  Session session(SSL_new(context.get()));  // shares the ownership of the context
  if (session == nullptr) return BadSecurity(GetError());
  BIO* const bio = MakeBio(fd);
  SSL_set_bio(session.get(), bio, bio);
  SYNCOPATE_RETURN_IF_ERROR(ShakeHands(session.get(), fd, end, peer, until));
  const std::string leaf = GetLeaf(session.get());
  const PeerVerifier::Options judge = {
      .use = end == SocketEnd::kDials ? TrustAnchors::Use::kServer : TrustAnchors::Use::kClient,
      .trust_domain = options.trust_domain,
      .roles = {options.role},
      .watch = options.watch,
      .refusals = options.refusals};
  const absl::Status verdict =
      leaf.empty() ? Error(absl::StatusCode::kUnauthenticated, "NO_CERTIFICATE", "no certificate was shown")
                   : PeerVerifier::Judge(judge, leaf, GetChain(session.get()));
  if (!verdict.ok()) {
    options.refusals->Add(absl::StrCat("a connection with ", peer, ": ", std::string(verdict.message())));
    return verdict;
  }
  return std::unique_ptr<SocketCipher>(std::make_unique<TlsCipher>(std::move(session), peer));
}

}  // namespace

SocketSecurity MakeRankSockets(RankSocketOptions options) {
  return [options = std::move(options)](int fd, SocketEnd end, const std::string& peer, absl::Time until) {
    return Secure(options, fd, end, peer, until);
  };
}

SocketSecurity RankSocketSecurity(const std::shared_ptr<const TransportSecurity>& security, AuthRole role) {
  return security == nullptr ? nullptr : security->RankSockets(role);
}

}  // namespace syncopate::auth
