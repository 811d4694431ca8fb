#include "base/sha256.h"

#include <openssl/evp.h>

#include <array>
#include <cstddef>

#include "absl/strings/escaping.h"
#include "base/status.h"

namespace syncopate {

// These calls of OpenSSL fail only if memory runs out.
struct Sha256::Context {
  Context() : evp(EVP_MD_CTX_new()) {
    SYNCOPATE_CHECK(evp != nullptr);
    SYNCOPATE_CHECK(EVP_DigestInit_ex(evp, EVP_sha256(), nullptr) == 1);
  }
  ~Context() { EVP_MD_CTX_free(evp); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  EVP_MD_CTX* evp;
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Update(absl::string_view bytes) {
  SYNCOPATE_CHECK(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()) == 1);
}

std::string Sha256::FinishHex() {
  std::array<unsigned char, 32> digest{};
  SYNCOPATE_CHECK(EVP_DigestFinal_ex(context_->evp, digest.data(), nullptr) == 1);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

std::string Sha256Hex(absl::string_view bytes) {
  Sha256 hash;
  hash.Update(bytes);
  return hash.FinishHex();
}

}  // namespace syncopate
