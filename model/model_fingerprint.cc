#include "model/model_fingerprint.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/file_system.h"
#include "base/mapped_file.h"
#include "base/sha256.h"
#include "base/status.h"
#include "model/model_folder.h"
#include "model/weight_files.h"

namespace syncopate::model {
namespace {

constexpr int64_t kMaxFileBytes = 256 << 20;
constexpr size_t kPieceBytes = 64 << 10;
constexpr size_t kLengthBytes = 8;  // bytes of the header's length, which is before the header

// Bytes of the length and the header. A damaged length gives no error here: opening the file reports it.
size_t HeaderBytes(absl::string_view bytes) {
  uint64_t length = 0;
  if (bytes.size() < kLengthBytes) return bytes.size();
  std::memcpy(&length, bytes.data(), sizeof(length));
  return kLengthBytes + static_cast<size_t>(std::min<uint64_t>(length, bytes.size() - kLengthBytes));
}

std::string FingerprintWeights(absl::string_view bytes) {
  const size_t header = HeaderBytes(bytes);
  const absl::string_view data = bytes.substr(header);
  Sha256 digest;
  digest.Update(absl::StrCat(bytes.size(), "\n"));
  digest.Update(bytes.substr(0, header));
  const size_t half = data.size() / 2 - std::min(data.size() / 2, kPieceBytes / 2);
  const size_t last = data.size() - std::min(data.size(), kPieceBytes);
  for (const size_t begin : {size_t{0}, half, last}) digest.Update(data.substr(begin, kPieceBytes));
  return digest.FinishHex();
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> FingerprintModel(const std::string& folder) {
  std::map<std::string, std::string> fingerprint;
  std::vector<std::string> names = {kHfConfigFile};
  names.insert(names.end(), std::begin(kTextFiles), std::end(kTextFiles));
  for (const std::string& name : names) {
    const absl::StatusOr<std::string> contents = ReadModelFile(JoinPath(folder, name), kMaxFileBytes);
    if (absl::IsNotFound(contents.status())) {
      if (name == kHfConfigFile) return ExplainNoModel(folder);
      continue;
    }
    SYNCOPATE_RETURN_IF_ERROR(contents.status());
    fingerprint[name] = Sha256Hex(*contents);
  }
  const absl::StatusOr<std::vector<std::string>> weights = FindWeightFiles(folder);
  if (absl::IsNotFound(weights.status())) return fingerprint;
  SYNCOPATE_RETURN_IF_ERROR(weights.status());
  for (const std::string& name : *weights) {
    const absl::StatusOr<std::unique_ptr<MappedFile>> file = MappedFile::Open(JoinPath(folder, name));
    if (absl::IsNotFound(file.status())) continue;
    SYNCOPATE_RETURN_IF_ERROR(file.status());
    fingerprint[name] = FingerprintWeights((*file)->bytes());
  }
  return fingerprint;
}

}  // namespace syncopate::model
