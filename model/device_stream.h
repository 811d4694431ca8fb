#pragma once

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

namespace syncopate::model {

// Gives the thread that makes it a stream of its own on a GPU, on which all of its tensor work runs until the object
// ends; on the CPU it does nothing. Work that others have queued on the device before is done when it begins. Must end
// on the thread that made it. May throw c10::Error.
class DeviceStream {
 public:
  explicit DeviceStream(at::Device device) {
    if (device.is_cpu()) return;
    guard_.emplace(device.type());
    guard_->setDevice(device);
    guard_->synchronizeDevice(device.index());
    stream_.emplace(guard_->getStreamFromGlobalPool(device));
    former_.emplace(guard_->exchangeStream(*stream_));
  }
  ~DeviceStream() {
    if (former_.has_value()) guard_->exchangeStream(*former_);
  }
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  // Blocks until everything that was queued on the stream is done.
  void Synchronize() const {
    if (stream_.has_value()) guard_->synchronizeStream(*stream_);
  }
  // The CUDA stream; null on the CPU.
  void* handle() const { return stream_.has_value() ? stream_->native_handle() : nullptr; }

 private:
  std::optional<c10::impl::VirtualGuardImpl> guard_;
  std::optional<c10::Stream> stream_, former_;
};

}  // namespace syncopate::model
