#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/manifest.h"
#include "base/status.h"

// The safetensors format (https://github.com/huggingface/safetensors), without torch:
//
//   +-----------------+-------------------------+---------------------------+
//   | n: u64, little  | header: n bytes of JSON | data: the rest            |
//   +-----------------+-------------------------+---------------------------+
//   header  {"<tensor>": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
//            "__metadata__": {"<key>": "<value>", ...}}
//
// Offsets count from the beginning of the data; tensors are dense, row-major and one after the other.
namespace syncopate::model {

// The supported dtypes of a file: those of weights, and those of optimizer and random state.
enum class StoredDType : uint8_t { kFloat32, kBFloat16, kFloat16, kInt64, kUInt8 };

int64_t StoredDTypeBytes(StoredDType dtype);
std::string StoredDTypeName(StoredDType dtype);  // "F32", "BF16", "F16", "I64", "U8"
StoredDType ToStoredDType(DType dtype);

struct StoredTensor {
  std::string name;
  StoredDType dtype = StoredDType::kFloat32;
  std::vector<int64_t> shape;
  absl::string_view data;  // not owned; no alignment

  // The tensor's TensorSpec. INVALID_ARGUMENT (reason BAD_SAFETENSORS) if its dtype is not a dtype of weights.
  absl::StatusOr<TensorSpec> Spec() const;
};

struct SafetensorsLimits {
  int64_t max_header_bytes = 8 << 20;
  int64_t max_tensors = 1000000;
  int64_t max_name_bytes = 512;
  int max_rank = 8;
};

// The tensors of a file in memory, as views into it.
class SafetensorsFile {
 public:
  // Trusts nothing in `buffer`, which must outlive the result and its tensors. INVALID_ARGUMENT (reason
  // BAD_SAFETENSORS), naming the tensor, on: a header that is over its limits, ends beyond the buffer, does not start
  // with '{', is not strict JSON (base/strict_json.h) or nests deeper than 4; an impossible dtype, rank, extent or
  // name; a shape whose size overflows or differs from its offsets'; data with holes, overlaps or bytes left over. All
  // this is checked before memory of the data's size is allocated.
  static absl::StatusOr<SafetensorsFile> Parse(absl::string_view buffer, const SafetensorsLimits& limits = {});

  // The tensors in the order of the data.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // The tensor called `name`. NOT_FOUND (reason NO_SUCH_TENSOR) naming it.
  absl::StatusOr<StoredTensor> Find(const std::string& name) const;

 private:
  std::vector<StoredTensor> tensors_;
  std::map<std::string, size_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

// The tensors of an arena, as views into it.
std::vector<StoredTensor> TensorsOfArena(const Manifest& manifest, const void* arena);

// Receives a file piece by piece; an error ends the writing and is returned to the caller.
using ByteSink = std::function<absl::Status(absl::string_view bytes)>;

// A tensor whose bytes are made while they are written.
struct TensorToWrite {
  std::string name;
  StoredDType dtype = StoredDType::kFloat32;
  std::vector<int64_t> shape;
  std::function<absl::Status(const ByteSink& sink)> write;  // writes exactly the bytes of dtype and shape
};

// Writes a file that Parse accepts under the default limits: the header, padded so that the data starts on a multiple
// of 8 bytes, then the tensors in the given order (put wider dtypes first if alignment matters). INVALID_ARGUMENT
// (reason BAD_SAFETENSORS) before any write if Parse would refuse the file.
absl::Status WriteSafetensors(const std::vector<StoredTensor>& tensors,
                              const std::map<std::string, std::string>& metadata, const ByteSink& sink);

// `tensors` as TensorToWrite, whose `write` writes their data.
std::vector<TensorToWrite> ToWrite(const std::vector<StoredTensor>& tensors);

// Does what WriteSafetensors does, for tensors whose bytes are made while they are written.
absl::Status StreamSafetensors(const std::vector<TensorToWrite>& tensors,
                               const std::map<std::string, std::string>& metadata, const ByteSink& sink);

// Does what WriteSafetensors does, into one string.
absl::StatusOr<std::string> SerializeSafetensors(const std::vector<StoredTensor>& tensors,
                                                 const std::map<std::string, std::string>& metadata = {});

}  // namespace syncopate::model
