#include "base/uuid.h"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate {

std::string RandomUuid() {
  std::array<uint8_t, 16> bytes{};
  ssize_t count = 0;
  do {
    count = ::getrandom(bytes.data(), bytes.size(), 0);  // up to 256 bytes come whole or not at all
  } while (count < 0 && errno == EINTR);
  SYNCOPATE_CHECK(count == static_cast<ssize_t>(bytes.size()));
  bytes[6] = static_cast<uint8_t>((bytes[6] & 0x0f) | 0x40);  // version 4
  bytes[8] = static_cast<uint8_t>((bytes[8] & 0x3f) | 0x80);  // the RFC's variant
  std::string hex =
      absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  return absl::StrCat(hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-", hex.substr(16, 4), "-",
                      hex.substr(20));
}

}  // namespace syncopate
