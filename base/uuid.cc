#include "base/uuid.h"

#include <sys/random.h>

#include <cerrno>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate {

std::string RandomBytes(size_t count) {
  SYNCOPATE_CHECK(count <= 256);
  std::string bytes(count, '\0');
  ssize_t filled = 0;
  do {
    filled = ::getrandom(bytes.data(), count, 0);  // up to 256 bytes are filled all or not at all
  } while (filled < 0 && errno == EINTR);
  SYNCOPATE_CHECK(filled == static_cast<ssize_t>(count));
  return bytes;
}

std::string RandomUuid() {
  std::string bytes = RandomBytes(16);
  bytes[6] = static_cast<char>((bytes[6] & 0x0f) | 0x40);  // version 4
  bytes[8] = static_cast<char>((bytes[8] & 0x3f) | 0x80);  // the RFC's variant
  std::string hex = absl::BytesToHexString(bytes);
  return absl::StrCat(hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-", hex.substr(16, 4), "-",
                      hex.substr(20));
}

}  // namespace syncopate
