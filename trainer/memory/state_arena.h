#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"

namespace syncopate::trainer {

// Makes what is left of a copy, or waits for the thread that makes it. May be called on any thread, at any time, any
// number of times; null: the copy is whole. DEADLINE_EXCEEDED (reason DEADLINE) if the device does not answer; else its
// error.
using HostCopyWork = std::function<absl::Status()>;

// A copy of a device's memory on the host, which is as it was when the copy was begun.
struct HostCopy {
  std::shared_ptr<const char> bytes;  // there when `finish` has returned OK
  HostCopyWork finish = nullptr;
};

// Memory of a device for a part of a policy's state, at an address that never changes. It can be given back to the device
// for a time, in which nothing may touch the address; a copy in host memory keeps what it held. Not thread-safe. Offload()
// and Load() wait for the work on it that their thread has queued, and for their own copies.
class StateArena {
 public:
  enum class Kind : uint8_t {
    kChanging,  // copied to the host each time
    kFrozen,    // written before it is offloaded first, and never again: copied to the host once
    kDerived,   // never copied: zeros after Load(); its owner computes the contents again
  };

  virtual ~StateArena() = default;
  StateArena(const StateArena&) = delete;
  StateArena& operator=(const StateArena&) = delete;

  virtual char* data() const = 0;
  int64_t bytes() const { return bytes_; }
  bool on_device() const { return on_device_; }
  int64_t device_bytes() const { return on_device_ ? bytes_ : 0; }

  // Gives the memory back; bytes that were copied to the host for that. 0 if it was given back. RESOURCE_EXHAUSTED
  // (reason OUT_OF_MEMORY or OUT_OF_GPU_MEMORY) if the host has no room for the copy: all is as it was then.
  absl::StatusOr<int64_t> Offload();
  // Takes memory again, with what it held; bytes that were copied to the device. 0 if it is there. RESOURCE_EXHAUSTED if
  // the device has no room: the host's copy stays, and it may be asked for again.
  absl::StatusOr<int64_t> Load();
  // Begins a copy, in host memory, of what it holds on the device, which must be there, when the work is done that the
  // calling thread has queued. The memory of an earlier copy is reused once that copy is released. RESOURCE_EXHAUSTED
  // (reason OUT_OF_MEMORY or OUT_OF_GPU_MEMORY) if the host has no room.
  absl::StatusOr<HostCopy> BeginCopy();
  // Before the arena is written: finishes the copies that have begun. Offload() does it by itself. Errors as HostCopyWork.
  virtual absl::Status FinishCopies() { return absl::OkStatus(); }

 protected:
  StateArena(int64_t bytes, Kind kind) : bytes_(bytes), kind_(kind) {}

 private:
  // What Offload() and Load() are made of; each blocks until it is done.
  virtual absl::Status CopyToHost() = 0;  // makes room for the copy if there is none yet
  virtual absl::Status CopyFromHost() = 0;
  virtual absl::StatusOr<std::shared_ptr<char>> TakeHostMemory() const = 0;  // of bytes()
  virtual absl::StatusOr<HostCopyWork> BeginCopyTo(char* host) = 0;
  virtual absl::Status Release() = 0;
  virtual absl::Status Restore() = 0;  // of zeros

  const int64_t bytes_;
  const Kind kind_;
  bool on_device_ = true;
  bool host_has_it_ = false;    // of kFrozen
  std::shared_ptr<char> copy_;  // the newest one
};

// `bytes` of zeros on a policy's device; `what` ("the parameters") is named in errors.
using StateArenaFactory = std::function<absl::StatusOr<std::unique_ptr<StateArena>>(
    int64_t bytes, StateArena::Kind kind, const std::string& what)>;

// For policies that compute on the CPU: pages that the kernel takes back while they are offloaded, when an access to
// them ends the process.
absl::StatusOr<std::unique_ptr<StateArena>> MakeHostStateArena(int64_t bytes, StateArena::Kind kind,
                                                               const std::string& what);

}  // namespace syncopate::trainer
