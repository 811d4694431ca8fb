#pragma once

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

namespace syncopate::model {

// Gives the calling thread its own stream on a GPU, on which all of its tensor work runs while this object lives; does
// nothing on the CPU. The constructor blocks until all earlier work of the device is done. Destroy the object on the
// thread that made it. May throw c10::Error.
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
