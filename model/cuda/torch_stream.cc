#include "model/cuda/torch_stream.h"

#include <c10/cuda/CUDAStream.h>

namespace syncopate::model {

std::function<cudaStream_t()> TorchStream(int device) {
  return [device] { return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream(); };
}

}  // namespace syncopate::model
