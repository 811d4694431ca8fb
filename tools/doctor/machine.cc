#include "tools/doctor/machine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/file_system.h"
#include "base/host_port.h"
#include "services/auth/transport_security.h"
#include "tools/doctor/looks.h"

namespace syncopate::doctor {
namespace {

const char* const kRoles[] = {"synchronizer", "trainer", "rollouter"};

// The addresses on which `syncopate run` would listen. Port 0 is skipped: some port is always free.
std::vector<AddressFacts> InspectAddresses(const v1::RunConfig& config) {
  const auto& synchronizer = config.synchronizer();
  std::vector<AddressFacts> facts;
  if (!synchronizer.listen().empty()) {
    facts.push_back(InspectAddress("synchronizer.address", synchronizer.address(), /*ours=*/false));
  }
  const bool has_listen = !synchronizer.listen().empty();
  const std::pair<const char*, std::string> ours[] = {
      {has_listen ? "synchronizer.listen" : "synchronizer.address",
       has_listen ? synchronizer.listen() : synchronizer.address()},
      {"trainer.listen", config.trainer().listen()},
      {"rollouter.listen", config.rollouter().listen()},
      {"metrics.synchronizer_listen", config.metrics().synchronizer_listen()},
      {"metrics.trainer_listen", config.metrics().trainer_listen()},
      {"metrics.rollouter_listen", config.metrics().rollouter_listen()},
      {"synchronizer.health_listen", config.synchronizer().health_listen()},
      {"trainer.health_listen", config.trainer().health_listen()},
      {"rollouter.health_listen", config.rollouter().health_listen()}};
  for (const auto& [key, address] : ours) {
    auto parsed = ParseHostPort(address);
    if (parsed.ok() && parsed->port != 0) facts.push_back(InspectAddress(key, address, /*ours=*/true));
  }
  return facts;
}

std::vector<CredentialFacts> InspectCredentials(const v1::SecuritySection& section) {
  std::vector<CredentialFacts> facts;
  if (section.tls_ca().empty() && section.token_file().empty()) return facts;
  for (const char* role : kRoles) {
    auto security = auth::TransportSecurity::Load(section, role);
    CredentialFacts one{role, security.status(), {}};
    if (security.ok() && *security != nullptr) one.expiry = (*security)->certificate_expiry();
    facts.push_back(std::move(one));
  }
  return facts;
}

}  // namespace

Machine InspectMachine(const v1::RunConfig& config, const std::string& binary_folder) {
  Machine machine;
  machine.now = absl::Now();
  InspectLimits(&machine);
  machine.run_folder = InspectFolder(config.run().dir());
  machine.addresses = InspectAddresses(config);
  for (const char* role : kRoles) {
    machine.programs.push_back(InspectProgram(JoinPath(binary_folder, absl::StrCat("syncopate-", role))));
  }
  machine.gpu = InspectGpus();
  machine.credentials = InspectCredentials(config.security());
  return machine;
}

}  // namespace syncopate::doctor
