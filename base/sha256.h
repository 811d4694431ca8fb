#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace syncopate {

// SHA-256 of bytes that are passed in pieces. Not thread-safe.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void Update(absl::string_view bytes);
  // The digest as 64 lower-case hexadecimal digits. Call once, last.
  std::string FinishHex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

std::string Sha256Hex(absl::string_view bytes);

}  // namespace syncopate
