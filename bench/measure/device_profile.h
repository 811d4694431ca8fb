#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <nlohmann/json.hpp>

// Short because it keeps the profiler's headers, which take seconds to compile, in one source file.
namespace syncopate::bench {

// Where a device's time goes while `work` runs once, by libtorch's profiler (Kineto, which needs CUPTI on a GPU). Waits
// for the device before and after `work`. Returns
//   [{"name": of a kernel or copy, "ms": total, "calls": number}]
// with the largest total first: of a GPU its kernels and copies; of the CPU, which has neither, libtorch's operators,
// each with those that it calls. The profiler slows the host down, so the times of kernels are true and the sum of the
// gaps between them is not. May throw c10::Error. Not thread-safe: a process has one profiler.
nlohmann::json ProfileOnce(at::Device device, const std::function<void()>& work);

}  // namespace syncopate::bench
