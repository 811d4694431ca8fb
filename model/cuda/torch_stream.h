#pragma once

#include <cuda_runtime_api.h>

#include <functional>

// In its own header, because its users cannot include libtorch's headers.
namespace syncopate::model {

// A function that returns libtorch's current stream of GPU `device` on the calling thread.
std::function<cudaStream_t()> TorchStream(int device);

}  // namespace syncopate::model
