#pragma once

#include <memory>
#include <string>

#include "ranks/tcp_socket.h"
#include "services/auth/credentials.h"
#include "services/auth/refusal_log.h"
#include "services/auth/role.h"
#include "services/auth/transport_security.h"

namespace syncopate::auth {

struct RankSocketOptions {
  AuthRole role = AuthRole::kTrainer;  // of all ranks of the group
  std::string trust_domain;
  std::shared_ptr<CredentialWatch> watch;  // its files include a certificate and authorities
  std::shared_ptr<RefusalLog> refusals;
};

// TLS 1.3 for the connections between the ranks of a group. Both ends show a certificate; PeerVerifier judges the
// other's and requires the role. Errors of the result: RANK_LOST; BAD_SECURITY for this process's own files; the
// refusal of the peer's certificate.
SocketSecurity MakeRankSockets(RankSocketOptions options);

// What the ranks of a daemon whose security is `security` use: null without TLS.
SocketSecurity RankSocketSecurity(const std::shared_ptr<const TransportSecurity>& security, AuthRole role);

}  // namespace syncopate::auth
