// Parses an untrusted weight file: the result is an error, or tensors that lie one after the other and fill the data.
#include <cstdlib>

#include "model/safetensors.h"
#include "tests/fuzz/fuzz_target.h"

using syncopate::model::SafetensorsFile;
using syncopate::model::StoredTensor;

SYNCOPATE_FUZZ_TARGET(safetensors) {
  const absl::string_view file(reinterpret_cast<const char*>(data), size);
  const auto parsed = SafetensorsFile::Parse(file);
  if (!parsed.ok()) return 0;
  const char* place = nullptr;
  for (const StoredTensor& tensor : parsed->tensors()) {
    uint64_t bytes = static_cast<uint64_t>(syncopate::model::StoredDTypeBytes(tensor.dtype));
    for (const int64_t extent : tensor.shape) bytes *= static_cast<uint64_t>(extent);
    if (bytes != tensor.data.size()) std::abort();
    if (place != nullptr && tensor.data.data() != place) std::abort();
    if (tensor.data.data() < file.data() || tensor.data.data() + tensor.data.size() > file.data() + size) std::abort();
    place = tensor.data.data() + tensor.data.size();
    const auto found = parsed->Find(tensor.name);
    if (!found.ok() || found->data.data() != tensor.data.data()) std::abort();
    (void)tensor.Spec();
  }
  if (place != nullptr && place != file.data() + size) std::abort();
  return 0;
}
