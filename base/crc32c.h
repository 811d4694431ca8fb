#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace syncopate {

// CRC-32C (Castagnoli polynomial 0x1EDC6F41, reflected; RFC 3720 B.4). `before` is the checksum of the bytes that come
// before these: Crc32c(b, Crc32c(a)) == Crc32c(a + b). Uses the processor's instruction where there is one.
uint32_t Crc32c(absl::string_view bytes, uint32_t before = 0);

// Crc32c by table lookup, which Crc32c uses on processors without that instruction.
uint32_t Crc32cPortable(absl::string_view bytes, uint32_t before = 0);

}  // namespace syncopate
