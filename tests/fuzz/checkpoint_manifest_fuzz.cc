// Parses an untrusted manifest of a checkpoint: the result is an error or the one manifest that has this text. The
// digest of the text would refuse nearly every input, so each input is also tried with the right digest.
#include <cstdlib>
#include <string>

#include "base/sha256.h"
#include "tests/fuzz/fuzz_target.h"
#include "trainer/checkpoint/checkpoint_manifest.h"

namespace {

void Check(const std::string& text) {
  const auto manifest = syncopate::trainer::ParseCheckpointManifest(text);
  if (!manifest.ok()) return;
  const auto again = syncopate::trainer::FormatCheckpointManifest(*manifest);
  if (!again.ok() || *again != text) std::abort();
}

// Returns the text with its right digest; returns the text unchanged if it has no place for one.
std::string Signed(std::string text) {
  constexpr char kKey[] = "\n  \"sha256\": \"";
  const size_t key = text.rfind(kKey);
  if (key == std::string::npos) return text;
  const size_t begin = key + sizeof(kKey) - 1, end = text.find('"', begin);
  if (end == std::string::npos) return text;
  text.erase(begin, end - begin);
  return text.insert(begin, syncopate::Sha256Hex(text));
}

}  // namespace

SYNCOPATE_FUZZ_TARGET(checkpoint_manifest) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  Check(text);
  Check(Signed(text));
  (void)syncopate::trainer::ParseCheckpointName(text);
  return 0;
}
