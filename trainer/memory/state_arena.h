#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"

namespace syncopate::trainer {

// Finishes a copy, or waits for the thread that finishes it. May be called on any thread, at any time, any number of
// times; null: the copy is complete. DEADLINE_EXCEEDED (reason DEADLINE) if the device does not answer; else the
// device's error.
using HostCopyWork = std::function<absl::Status()>;

// A copy of a device's memory in host memory, with the contents at the time when the copy was begun.
struct HostCopy {
  std::shared_ptr<const char> bytes;  // there when `finish` has returned OK
  HostCopyWork finish = nullptr;
};

// Memory of a device for a part of a policy's state, at an address that never changes. Offload() returns the memory to
// the device and keeps the contents in host memory; until Load() nothing may access the address. Not thread-safe. Both
// wait for the work on the arena that their thread has queued, and for their own copies.
class StateArena {
 public:
  enum class Kind : uint8_t {
    kChanging,  // copied to the host each time
    kFrozen,    // written before it is offloaded first, or before MarkWritten(): copied to the host once after either
    kDerived,   // never copied: zeros after Load(); its owner computes the contents again
  };

  virtual ~StateArena() = default;
  StateArena(const StateArena&) = delete;
  StateArena& operator=(const StateArena&) = delete;

  virtual char* data() const = 0;
  int64_t bytes() const { return bytes_; }
  bool on_device() const { return on_device_; }
  int64_t device_bytes() const { return on_device_ ? bytes_ : 0; }

  // Returns the memory to the device. Result: the bytes that were copied to the host; 0 if the arena was offloaded
  // already. RESOURCE_EXHAUSTED (reason OUT_OF_MEMORY or OUT_OF_GPU_MEMORY) if the host has no room for the copy;
  // nothing has changed then.
  absl::StatusOr<int64_t> Offload();
  // Takes memory of the device again and restores the contents. Result: the bytes that were copied to the device; 0 if
  // the arena is on the device already. RESOURCE_EXHAUSTED if the device has no room: the host's copy stays, and the
  // call may be repeated.
  absl::StatusOr<int64_t> Load();
  // Call after a kFrozen arena that may have been offloaded was written once more: the next Offload() copies it.
  void MarkWritten() { host_has_it_ = false; }
  // Begins to copy the contents to host memory, as they are when the work that the calling thread has queued is done.
  // The memory of an earlier copy is reused once that copy is released. While the arena is offloaded its own copy is
  // lent, without another: Offload() takes other memory then if that has not been released. An arena of kDerived must be
  // on the device. RESOURCE_EXHAUSTED (reason OUT_OF_MEMORY or OUT_OF_GPU_MEMORY) if the host has no room.
  absl::StatusOr<HostCopy> BeginCopy();
  // Finishes the copies that have begun. Call before the arena is written; Offload() does it itself. Errors as
  // HostCopyWork.
  virtual absl::Status FinishCopies() { return absl::OkStatus(); }

 protected:
  StateArena(int64_t bytes, Kind kind) : bytes_(bytes), kind_(kind) {}

 private:
  // The steps of Offload() and Load(); each blocks until it is done. Host memory is that of TakeHostMemory().
  virtual absl::Status CopyToHost(char* host) = 0;
  virtual absl::Status CopyFromHost(const char* host) = 0;
  virtual absl::StatusOr<std::shared_ptr<char>> TakeHostMemory() const = 0;  // of bytes()
  virtual absl::StatusOr<HostCopyWork> BeginCopyTo(char* host) = 0;
  virtual absl::Status Release() = 0;
  virtual absl::Status Restore() = 0;  // of zeros

  const int64_t bytes_;
  const Kind kind_;
  bool on_device_ = true;
  bool host_has_it_ = false;    // of kFrozen
  std::shared_ptr<char> kept_;  // the contents while it is offloaded, once it has been
  std::shared_ptr<char> copy_;  // the newest one that was made while it was on the device
};

// Makes an arena of `bytes` zeros on a policy's device; errors name `what` ("the parameters").
using StateArenaFactory = std::function<absl::StatusOr<std::unique_ptr<StateArena>>(
    int64_t bytes, StateArena::Kind kind, const std::string& what)>;

// Makes an arena for a policy on the CPU. Offload() gives the pages back to the kernel; an access then ends the
// process.
absl::StatusOr<std::unique_ptr<StateArena>> MakeHostStateArena(int64_t bytes, StateArena::Kind kind,
                                                               const std::string& what);

}  // namespace syncopate::trainer
