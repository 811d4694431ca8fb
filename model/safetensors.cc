#include "model/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/strict_json.h"

// A file: 8 bytes, the length of the header; the header, a JSON object of name -> {dtype, shape, data_offsets} and
// __metadata__, padded with blanks; the data, without holes. Files are untrusted, so every number is checked before it
// is used, and no number of a file decides the size of an allocation.
namespace syncopate::model {
namespace {

static_assert(std::endian::native == std::endian::little, "integers are copied as they are");

using Json = nlohmann::json;

constexpr int64_t kLengthBytes = 8;
constexpr size_t kDataAlignment = 8;
constexpr int kMaxDepth = 4;
constexpr char kMetadataKey[] = "__metadata__";

absl::Status Bad(absl::string_view what) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_SAFETENSORS", absl::StrCat("bad safetensors file: ", what));
}

absl::Status BadTensor(absl::string_view name, absl::string_view what) {
  constexpr size_t kShown = 128;
  return Bad(absl::StrCat("tensor '", absl::CHexEscape(name.substr(0, kShown)), "' ", what));
}

std::optional<StoredDType> ParseDType(absl::string_view name) {
  for (StoredDType dtype : {StoredDType::kFloat32, StoredDType::kBFloat16, StoredDType::kFloat16, StoredDType::kInt64,
                            StoredDType::kUInt8}) {
    if (name == StoredDTypeName(dtype)) return dtype;
  }
  return std::nullopt;
}

// A JSON number that is an integer in [0, 2^63).
std::optional<int64_t> AsCount(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  uint64_t count = value.get<uint64_t>();
  if (count > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return static_cast<int64_t>(count);
}

// The bytes of a tensor, or nullopt if that overflows.
template <typename Tensor>
std::optional<int64_t> DenseBytes(const Tensor& tensor) {
  int64_t bytes = StoredDTypeBytes(tensor.dtype);
  for (int64_t extent : tensor.shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

template <typename Tensor>
absl::Status CheckNameAndRank(const Tensor& tensor, const SafetensorsLimits& limits) {
  int64_t name_bytes = static_cast<int64_t>(tensor.name.size());
  if (name_bytes == 0 || name_bytes > limits.max_name_bytes) {
    return BadTensor(tensor.name,
                     absl::StrFormat("has a name of %d bytes; 1 to %d are allowed", name_bytes, limits.max_name_bytes));
  }
  if (static_cast<int>(tensor.shape.size()) > limits.max_rank) {
    return BadTensor(tensor.name, absl::StrFormat("has more than %d dimensions", limits.max_rank));
  }
  return absl::OkStatus();
}

// A tensor of the header with its range of the data, as the header gives it.
struct Entry {
  StoredTensor tensor;
  ByteRange range;
};

absl::StatusOr<std::vector<int64_t>> ParseShape(const std::string& name, const Json& shape) {
  std::vector<int64_t> extents;
  for (const Json& value : shape) {
    std::optional<int64_t> extent = AsCount(value);
    if (!extent.has_value()) return BadTensor(name, "has an extent that is not a whole number in [0, 2^63)");
    extents.push_back(*extent);
  }
  return extents;
}

absl::StatusOr<Entry> ParseEntry(const std::string& name, const Json& json, const SafetensorsLimits& limits) {
  // No other key is allowed: an unknown key might change the meaning of the bytes.
  bool shaped = json.is_object() && json.size() == 3 && json.contains("dtype") && json["dtype"].is_string() &&
                json.contains("shape") && json["shape"].is_array() && json.contains("data_offsets") &&
                json["data_offsets"].is_array() && json["data_offsets"].size() == 2;
  if (!shaped) return BadTensor(name, "must have exactly dtype, shape and two data_offsets");
  std::optional<StoredDType> dtype = ParseDType(json["dtype"].get_ref<const std::string&>());
  if (!dtype.has_value()) return BadTensor(name, "has a dtype other than F32, BF16, F16, I64, U8; convert the file");
  Entry entry;
  entry.tensor.name = name;
  entry.tensor.dtype = *dtype;
  SYNCOPATE_ASSIGN_OR_RETURN(entry.tensor.shape, ParseShape(name, json["shape"]));
  SYNCOPATE_RETURN_IF_ERROR(CheckNameAndRank(entry.tensor, limits));
  std::optional<int64_t> begin = AsCount(json["data_offsets"][0]);
  std::optional<int64_t> end = AsCount(json["data_offsets"][1]);
  if (!begin.has_value() || !end.has_value() || *begin > *end) return BadTensor(name, "has bad data_offsets");
  entry.range = {*begin, *end};
  std::optional<int64_t> bytes = DenseBytes(entry.tensor);
  if (!bytes.has_value()) return BadTensor(name, "has a shape whose size overflows");
  if (*bytes != entry.range.size()) {
    return BadTensor(name, absl::StrFormat("needs %d bytes and its offsets give %d", *bytes, entry.range.size()));
  }
  return entry;
}

absl::StatusOr<std::map<std::string, std::string>> ParseMetadata(const Json& json) {
  if (!json.is_object()) return Bad("__metadata__ is not an object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) return Bad("a value of __metadata__ is not a string");
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

// Sorts the entries by the order of the data and checks that they cover each byte of it exactly once.
absl::Status SortAndCheckCoverage(std::vector<Entry>& entries, int64_t data_bytes) {
  // Sorts stably and by both ends, because an empty tensor has the same offset as its neighbour.
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.range.begin, a.range.end) < std::pair(b.range.begin, b.range.end);
  });
  int64_t at = 0;
  for (const Entry& entry : entries) {
    if (entry.range.begin != at) {
      return BadTensor(entry.tensor.name, absl::StrFormat("starts at byte %d of the data instead of %d: the data must "
                                                          "have no holes and no overlaps",
                                                          entry.range.begin, at));
    }
    if (entry.range.end > data_bytes) {
      return BadTensor(entry.tensor.name,
                       absl::StrFormat("ends at byte %d of the data, and there are %d: the file was cut short",
                                       entry.range.end, data_bytes));
    }
    at = entry.range.end;
  }
  if (at == data_bytes) return absl::OkStatus();
  return Bad(absl::StrFormat("its tensors end at byte %d of %d bytes of data", at, data_bytes));
}

absl::StatusOr<absl::string_view> FindHeader(absl::string_view buffer, const SafetensorsLimits& limits) {
  if (buffer.size() < kLengthBytes) return Bad("it is shorter than 8 bytes");
  uint64_t length;
  std::memcpy(&length, buffer.data(), kLengthBytes);
  // Checked before the comparison with the file's size, because a file may be of any size.
  if (length > static_cast<uint64_t>(limits.max_header_bytes)) {
    return Bad(absl::StrFormat("a header of %d bytes is over the limit of %d", length, limits.max_header_bytes));
  }
  if (length > buffer.size() - kLengthBytes) return Bad("its header ends beyond the file");
  absl::string_view header = buffer.substr(kLengthBytes, length);
  if (header.empty() || header[0] != '{') return Bad("its header does not start with '{'");
  return header;
}

absl::StatusOr<std::string> FormatHeader(const std::vector<TensorToWrite>& tensors,
                                         const std::map<std::string, std::string>& metadata) {
  const SafetensorsLimits limits;
  if (static_cast<int64_t>(tensors.size()) > limits.max_tensors) return Bad("too many tensors");
  Json json = Json::object();
  if (!metadata.empty()) json[kMetadataKey] = metadata;
  int64_t at = 0;
  for (const TensorToWrite& tensor : tensors) {
    SYNCOPATE_RETURN_IF_ERROR(CheckNameAndRank(tensor, limits));
    if (tensor.name == kMetadataKey || json.contains(tensor.name)) return BadTensor(tensor.name, "comes twice");
    const std::optional<int64_t> bytes = DenseBytes(tensor);
    if (!bytes.has_value()) return BadTensor(tensor.name, "has a shape whose size overflows");
    int64_t end = at + *bytes;
    json[tensor.name] = {
        {"dtype", StoredDTypeName(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  absl::StatusOr<std::string> header = DumpJson(json);
  if (!header.ok()) return Bad("a name or the metadata is not UTF-8");
  // Pads the header so that the data begin on 8 bytes, and a program that maps the file can read numbers in place.
  header->resize((header->size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment, ' ');
  if (static_cast<int64_t>(header->size()) > limits.max_header_bytes) return Bad("its header would be too large");
  return header;
}

}  // namespace

int64_t StoredDTypeBytes(StoredDType dtype) {
  switch (dtype) {
    case StoredDType::kFloat32:
      return 4;
    case StoredDType::kBFloat16:
    case StoredDType::kFloat16:
      return 2;
    case StoredDType::kInt64:
      return 8;
    case StoredDType::kUInt8:
      return 1;
  }
  return 1;
}

std::string StoredDTypeName(StoredDType dtype) {
  switch (dtype) {
    case StoredDType::kFloat32:
      return "F32";
    case StoredDType::kBFloat16:
      return "BF16";
    case StoredDType::kFloat16:
      return "F16";
    case StoredDType::kInt64:
      return "I64";
    case StoredDType::kUInt8:
      return "U8";
  }
  return "";
}

StoredDType ToStoredDType(DType dtype) {
  return dtype == DType::kFloat32 ? StoredDType::kFloat32 : StoredDType::kBFloat16;
}

absl::StatusOr<TensorSpec> StoredTensor::Spec() const {
  if (dtype == StoredDType::kFloat32) return TensorSpec{name, DType::kFloat32, shape};
  if (dtype == StoredDType::kBFloat16) return TensorSpec{name, DType::kBFloat16, shape};
  return BadTensor(name, absl::StrCat("is ", StoredDTypeName(dtype), "; weights are F32 or BF16"));
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Parse(absl::string_view buffer, const SafetensorsLimits& limits) {
  SYNCOPATE_ASSIGN_OR_RETURN(absl::string_view header, FindHeader(buffer, limits));
  absl::StatusOr<Json> json = ParseStrictJson(header, {.max_bytes = limits.max_header_bytes, .max_depth = kMaxDepth});
  if (!json.ok()) return Bad(absl::StrCat("its header: ", json.status().message()));
  if (static_cast<int64_t>(json->size()) > limits.max_tensors) return Bad("it has too many tensors");

  SafetensorsFile file;
  std::vector<Entry> entries;
  for (const auto& [name, value] : json->items()) {
    if (name == kMetadataKey) {
      SYNCOPATE_ASSIGN_OR_RETURN(file.metadata_, ParseMetadata(value));
      continue;
    }
    SYNCOPATE_ASSIGN_OR_RETURN(Entry entry, ParseEntry(name, value, limits));
    entries.push_back(std::move(entry));
  }
  absl::string_view data = buffer.substr(kLengthBytes + header.size());
  SYNCOPATE_RETURN_IF_ERROR(SortAndCheckCoverage(entries, static_cast<int64_t>(data.size())));
  for (Entry& entry : entries) {
    entry.tensor.data = data.substr(static_cast<size_t>(entry.range.begin), static_cast<size_t>(entry.range.size()));
    file.by_name_[entry.tensor.name] = file.tensors_.size();
    file.tensors_.push_back(std::move(entry.tensor));
  }
  return file;
}

absl::StatusOr<StoredTensor> SafetensorsFile::Find(const std::string& name) const {
  auto found = by_name_.find(name);
  if (found != by_name_.end()) return tensors_[found->second];
  return Error(absl::StatusCode::kNotFound, "NO_SUCH_TENSOR",
               absl::StrCat("the file has no tensor named ", name, "; check that it belongs to this model"));
}

std::vector<StoredTensor> TensorsOfArena(const Manifest& manifest, const void* arena) {
  std::vector<StoredTensor> tensors;
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const TensorSpec& spec = manifest.tensors()[i];
    const ByteRange& range = manifest.ranges()[i];
    tensors.push_back({spec.name, ToStoredDType(spec.dtype), spec.shape,
                       absl::string_view(static_cast<const char*>(arena) + range.begin, range.size())});
  }
  return tensors;
}

absl::Status WriteSafetensors(const std::vector<StoredTensor>& tensors,
                              const std::map<std::string, std::string>& metadata, const ByteSink& sink) {
  for (const StoredTensor& tensor : tensors) {
    // All tensors are checked before the first byte is written, so that no partial file is left behind.
    if (DenseBytes(tensor) != static_cast<int64_t>(tensor.data.size())) {
      return BadTensor(tensor.name, "has data of another size than its shape");
    }
  }
  return StreamSafetensors(ToWrite(tensors), metadata, sink);
}

std::vector<TensorToWrite> ToWrite(const std::vector<StoredTensor>& tensors) {
  std::vector<TensorToWrite> writers;
  for (const StoredTensor& tensor : tensors) {
    auto write = [data = tensor.data](const ByteSink& sink) { return sink(data); };
    writers.push_back({tensor.name, tensor.dtype, tensor.shape, std::move(write)});
  }
  return writers;
}

absl::Status StreamSafetensors(const std::vector<TensorToWrite>& tensors,
                               const std::map<std::string, std::string>& metadata, const ByteSink& sink) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::string header, FormatHeader(tensors, metadata));
  uint64_t length = header.size();
  std::string start(kLengthBytes, '\0');
  std::memcpy(start.data(), &length, kLengthBytes);
  SYNCOPATE_RETURN_IF_ERROR(sink(start + header));
  for (const TensorToWrite& tensor : tensors) SYNCOPATE_RETURN_IF_ERROR(tensor.write(sink));
  return absl::OkStatus();
}

absl::StatusOr<std::string> SerializeSafetensors(const std::vector<StoredTensor>& tensors,
                                                 const std::map<std::string, std::string>& metadata) {
  std::string file;
  SYNCOPATE_RETURN_IF_ERROR(WriteSafetensors(tensors, metadata, [&file](absl::string_view bytes) {
    file.append(bytes.data(), bytes.size());
    return absl::OkStatus();
  }));
  return file;
}

}  // namespace syncopate::model
