#pragma once

#include <cuda_runtime_api.h>

#include <functional>

// A header of its own: who needs it cannot see libtorch's.
namespace syncopate::model {

// Gives the stream of libtorch that is current on the calling thread, of GPU `device`, each time it is asked.
std::function<cudaStream_t()> TorchStream(int device);

}  // namespace syncopate::model
