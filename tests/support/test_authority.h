#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "services/auth/transport_security.h"

namespace syncopate::testing {

// The certificate authority of one test, and the certificates that it makes, valid ones and invalid ones. The files are
// in a folder of its own, which is removed with the object. Any failure ends the test program.
class TestAuthority {
 public:
  struct Wish {
    std::vector<std::string> uris = {};
    absl::Duration from = -absl::Hours(1);  // both times are relative to now
    absl::Duration until = absl::Hours(1);
  };
  struct Files {
    std::string certificate;
    std::string key;
  };

  TestAuthority();
  ~TestAuthority();
  TestAuthority(const TestAuthority&) = delete;
  TestAuthority& operator=(const TestAuthority&) = delete;

  const std::string& folder() const { return folder_; }
  std::string ca() const { return folder_ + "/ca.crt"; }
  static std::string Spiffe(const std::string& role) { return "spiffe://syncopate/role/" + role; }

  // Writes <name>.crt and <name>.key; replaces existing files.
  Files Issue(const std::string& name, const Wish& wish) const;
  Files IssueFor(const std::string& role) const { return Issue(role, {.uris = {Spiffe(role)}}); }
  // Writes a file with mode 0400 and returns its path.
  std::string WriteSecret(const std::string& name, const std::string& contents) const;

  // The security options of `role` with a certificate of its own; the files are checked every second.
  auth::TransportSecurity::Options OptionsFor(const std::string& role) const;
  std::shared_ptr<const auth::TransportSecurity> SecurityFor(const std::string& role) const;

 private:
  struct Keys;
  std::string folder_;
  std::unique_ptr<Keys> keys_;
};

}  // namespace syncopate::testing
