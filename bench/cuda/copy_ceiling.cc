#include <utility>

#include "base/status.h"
#include "bench/cuda/probe.h"
#include "bench/measure/figures.h"
#include "cuda/cuda_arena.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"

namespace syncopate::bench {
namespace {

// One of several copies that are measured together.
class MeasuredCopy {
 public:
  static absl::StatusOr<MeasuredCopy> Create(const PeerCopy& copy, int64_t bytes) {
    if (copy.from != copy.to) SYNCOPATE_RETURN_IF_ERROR(cuda::CheckPeerAccess(copy.to, copy.from));
    MeasuredCopy measured;
    measured.device_ = copy.to;
    measured.bytes_ = bytes;
    SYNCOPATE_ASSIGN_OR_RETURN(measured.source_, cuda::CudaArena::Create(bytes, {copy.from, 0, "the copies' source"}));
    SYNCOPATE_ASSIGN_OR_RETURN(cuda::ExportedMemory exported, measured.source_->Export());
    SYNCOPATE_ASSIGN_OR_RETURN(measured.mapped_, cuda::CudaArena::Import(exported, copy.to));
    SYNCOPATE_ASSIGN_OR_RETURN(measured.destination_,
                               cuda::CudaArena::Create(bytes, {copy.to, 0, "the copies' destination"}));
    cuda::DeviceScope scope(copy.to);
    SYNCOPATE_ASSIGN_OR_RETURN(measured.stream_, cuda::Stream::Create(copy.to));
    SYNCOPATE_ASSIGN_OR_RETURN(measured.begun_, cuda::Event::Create(copy.to, cuda::Event::Timing::kOn));
    SYNCOPATE_ASSIGN_OR_RETURN(measured.done_, cuda::Event::Create(copy.to, cuda::Event::Timing::kOn));
    return measured;
  }

  // Not zeros, which can move faster than real weights.
  absl::Status Fill() const {
    constexpr absl::Duration kDeadline = absl::Seconds(30);
    cuda::DeviceScope scope(source_->device());
    SYNCOPATE_ASSIGN_OR_RETURN(cuda::Stream stream, cuda::Stream::Create(source_->device()));
    SYNCOPATE_ASSIGN_OR_RETURN(cuda::Event filled, cuda::Event::Create(source_->device()));
    SYNCOPATE_RETURN_IF_ERROR(FillWithRandomWeights(source_->data(), bytes_, 1, stream.get()));
    SYNCOPATE_RETURN_IF_ERROR(filled.Record(stream.get()));
    return filled.Wait(kDeadline, "making random weights");
  }

  absl::Status Begin() const {
    cuda::DeviceScope scope(device_);
    SYNCOPATE_RETURN_IF_ERROR(begun_.Record(stream_.get()));
    SYNCOPATE_RETURN_IF_ERROR(
        cuda::CudaStatus(cudaMemcpyAsync(destination_->data(), mapped_->data(), static_cast<size_t>(bytes_),
                                         cudaMemcpyDeviceToDevice, stream_.get()),
                         "copying between GPUs"));
    return done_.Record(stream_.get());
  }

  absl::StatusOr<double> End() const {
    constexpr absl::Duration kDeadline = absl::Seconds(60);
    SYNCOPATE_RETURN_IF_ERROR(done_.Wait(kDeadline, "copying between GPUs"));
    SYNCOPATE_ASSIGN_OR_RETURN(double seconds, cuda::Event::SecondsBetween(begun_, done_));
    return static_cast<double>(bytes_) / seconds / 1e9;
  }

 private:
  int device_ = 0;
  int64_t bytes_ = 0;
  std::unique_ptr<cuda::CudaArena> source_;
  std::unique_ptr<cuda::CudaArena> mapped_;  // the source, mapped for `device_`
  std::unique_ptr<cuda::CudaArena> destination_;
  cuda::Stream stream_;
  cuda::Event begun_;
  cuda::Event done_;
};

}  // namespace

absl::StatusOr<std::vector<double>> MeasurePeerCopies(const std::vector<PeerCopy>& copies, int64_t bytes, int repeats) {
  std::vector<MeasuredCopy> measured;
  for (const PeerCopy& copy : copies) {
    SYNCOPATE_ASSIGN_OR_RETURN(MeasuredCopy made, MeasuredCopy::Create(copy, bytes));
    SYNCOPATE_RETURN_IF_ERROR(made.Fill());
    measured.push_back(std::move(made));
  }
  std::vector<std::vector<double>> rates(copies.size());
  for (int repeat = 0; repeat <= repeats; ++repeat) {
    for (const MeasuredCopy& copy : measured) SYNCOPATE_RETURN_IF_ERROR(copy.Begin());
    for (size_t i = 0; i < measured.size(); ++i) {
      SYNCOPATE_ASSIGN_OR_RETURN(double rate, measured[i].End());
      if (repeat > 0) rates[i].push_back(rate);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& of_copy : rates) medians.push_back(Median(std::move(of_copy)));
  return medians;
}

}  // namespace syncopate::bench
