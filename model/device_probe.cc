#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "model/device.h"

namespace syncopate::model {

Hardware ProbeHardware() {
  Hardware hardware;
  hardware.built_with_cuda = c10::impl::hasDeviceGuardImpl(at::kCUDA);
  if (hardware.built_with_cuda) hardware.gpus = c10::impl::getDeviceGuardImpl(at::kCUDA)->deviceCount();
  return hardware;
}

}  // namespace syncopate::model
