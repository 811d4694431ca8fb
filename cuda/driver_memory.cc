#include "cuda/driver_memory.h"

#include <dlfcn.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::cuda {
namespace {

absl::Status NoLibrary(const std::string& what) {
  return Error(absl::StatusCode::kFailedPrecondition, "NO_NVML",
               absl::StrCat("the driver's management library cannot be used: ", what));
}

// The calls of the library that are used here, as nvml.h declares them. Declared again, because the header comes with the
// toolkit's optional parts, and the library with the driver.
class ManagementLibrary {
 public:
  static absl::StatusOr<std::shared_ptr<const ManagementLibrary>> Open() {
    auto library = std::make_shared<ManagementLibrary>();
    library->handle_ = ::dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library->handle_ == nullptr) return NoLibrary("there is no libnvidia-ml.so.1");
    const bool found = library->Find("nvmlInit_v2", &library->init_) &&
                       library->Find("nvmlShutdown", &library->shutdown_) &&
                       library->Find("nvmlDeviceGetHandleByUUID", &library->find_gpu_) &&
                       library->Find("nvmlDeviceGetMemoryInfo_v2", &library->read_memory_);
    if (!found) return NoLibrary("it lacks nvmlDeviceGetMemoryInfo_v2; install driver 510 or later");
    const int error = library->init_();
    if (error != 0) return NoLibrary(absl::StrCat("nvmlInit_v2 gives error ", error));
    library->initialised_ = true;
    return library;
  }
  ManagementLibrary() = default;
  ~ManagementLibrary() {
    if (initialised_) shutdown_();
    if (handle_ != nullptr) ::dlclose(handle_);
  }
  ManagementLibrary(const ManagementLibrary&) = delete;
  ManagementLibrary& operator=(const ManagementLibrary&) = delete;

  absl::StatusOr<void*> FindGpu(const std::string& uuid) const {
    void* gpu = nullptr;
    if (const int error = find_gpu_(uuid.c_str(), &gpu); error != 0) {
      return NoLibrary(absl::StrCat("it does not know ", uuid, " (error ", error, ")"));
    }
    return gpu;
  }
  absl::StatusOr<daemon::CardReading> ReadMemory(void* gpu) const {
    Memory memory;
    if (const int error = read_memory_(gpu, &memory); error != 0) {
      return NoLibrary(absl::StrCat("nvmlDeviceGetMemoryInfo_v2 gives error ", error));
    }
    return daemon::CardReading{static_cast<int64_t>(memory.total), static_cast<int64_t>(memory.used)};
  }

 private:
  struct Memory {  // nvmlMemory_v2_t
    unsigned int version = sizeof(Memory) | (2U << 24U);
    unsigned long long total = 0, reserved = 0, free = 0, used = 0;  // NOLINT(google-runtime-int): the library's types
  };
  static_assert(sizeof(Memory) == 40);

  template <typename Function>
  bool Find(const char* name, Function** function) {
    *function = reinterpret_cast<Function*>(::dlsym(handle_, name));
    return *function != nullptr;
  }

  void* handle_ = nullptr;
  bool initialised_ = false;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  int (*find_gpu_)(const char* uuid, void** gpu) = nullptr;
  int (*read_memory_)(void* gpu, Memory* memory) = nullptr;
};

}  // namespace

absl::StatusOr<daemon::CardReader> ReadByManagementLibrary(const std::string& uuid) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::shared_ptr<const ManagementLibrary> library, ManagementLibrary::Open());
  SYNCOPATE_ASSIGN_OR_RETURN(void* const gpu, library->FindGpu(uuid));
  SYNCOPATE_RETURN_IF_ERROR(library->ReadMemory(gpu).status());
  return daemon::CardReader([library, gpu] { return library->ReadMemory(gpu); });
}

}  // namespace syncopate::cuda
