#include "base/crc32c.h"

#include <array>
#include <cstring>

namespace syncopate {
namespace {

constexpr std::array<uint32_t, 256> MakeTable() {
  constexpr uint32_t kReflectedPolynomial = 0x82f63b78;
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kReflectedPolynomial : 0);
    table[i] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t Crc32cBySse42(absl::string_view bytes, uint32_t before) {
  uint64_t crc = ~before;
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    crc = __builtin_ia32_crc32di(crc, word);
  }
  uint32_t narrow = static_cast<uint32_t>(crc);
  for (; at < bytes.size(); ++at) narrow = __builtin_ia32_crc32qi(narrow, static_cast<unsigned char>(bytes[at]));
  return ~narrow;
}
#endif

}  // namespace

uint32_t Crc32cPortable(absl::string_view bytes, uint32_t before) {
  uint32_t crc = ~before;
  for (char byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~crc;
}

uint32_t Crc32c(absl::string_view bytes, uint32_t before) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return Crc32cBySse42(bytes, before);
#endif
  return Crc32cPortable(bytes, before);
}

}  // namespace syncopate
