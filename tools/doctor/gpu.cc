#include <dlfcn.h>

#include <array>
#include <fstream>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "tools/doctor/looks.h"

namespace syncopate::doctor {
namespace {

// From "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 ..." the first word with two dots.
std::string KernelDriver() {
  std::string line;
  std::getline(std::ifstream("/proc/driver/nvidia/version"), line);
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(line, ' ', absl::SkipEmpty()))) {
    double number = 0;
    const std::vector<std::string> parts = absl::StrSplit(word, '.');
    if (parts.size() >= 2 && absl::SimpleAtod(parts[0], &number)) return word;
  }
  return "";
}

absl::Status NoGpu(const std::string& what) { return Error(absl::StatusCode::kNotFound, "NO_GPU", what); }

// The driver functions that are needed to list GPUs. This program is built without CUDA's headers, and opens the
// library only to ask: results other than 0 are errors, devices are numbers.
class DriverLibrary {
 public:
  DriverLibrary() : library_(::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL)) {}
  ~DriverLibrary() {
    if (library_ != nullptr) ::dlclose(library_);
  }
  DriverLibrary(const DriverLibrary&) = delete;
  DriverLibrary& operator=(const DriverLibrary&) = delete;

  absl::StatusOr<std::vector<Gpu>> List() const {
    if (library_ == nullptr) return NoGpu("no libcuda.so.1");
    int count = 0;
    if (const int error = Call<int (*)(unsigned)>("cuInit", 0u))
      return NoGpu(absl::StrCat("cuInit fails with ", error));
    if (Call<int (*)(int*)>("cuDeviceGetCount", &count) != 0 || count == 0) return NoGpu("the driver finds no GPU");
    std::vector<Gpu> gpus(static_cast<size_t>(count));
    for (int device = 0; device < count; ++device) Describe(device, &gpus[static_cast<size_t>(device)]);
    return gpus;
  }

 private:
  template <typename Function, typename... Arguments>
  int Call(const char* name, Arguments... arguments) const {
    constexpr int kNoSuchFunction = -1;
    auto function = reinterpret_cast<Function>(::dlsym(library_, name));
    return function == nullptr ? kNoSuchFunction : function(arguments...);
  }

  void Describe(int device, Gpu* gpu) const {
    std::array<char, 128> name{};
    size_t bytes = 0;
    if (Call<int (*)(char*, int, int)>("cuDeviceGetName", name.data(), static_cast<int>(name.size()), device) == 0) {
      gpu->name = name.data();
    }
    if (Call<int (*)(size_t*, int)>("cuDeviceTotalMem_v2", &bytes, device) == 0)
      gpu->bytes = static_cast<int64_t>(bytes);
  }

  void* const library_;
};

}  // namespace

GpuFacts InspectGpus() {
  GpuFacts facts;
  facts.kernel_driver = KernelDriver();
  absl::StatusOr<std::vector<Gpu>> gpus = DriverLibrary().List();
  facts.library = gpus.status();
  if (gpus.ok()) facts.gpus = *std::move(gpus);
  return facts;
}

}  // namespace syncopate::doctor
