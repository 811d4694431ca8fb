#include "synchronizer/cuda/cuda_shadow_check.h"

#include <algorithm>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "synchronizer/cuda/findings.h"

namespace syncopate::synchronizer {
namespace {

bool SameContents(const ShadowContents& a, const ShadowContents& b) {
  auto same_numbers = [](const TypedRange& x, const TypedRange& y) {
    return x.range == y.range && x.dtype == y.dtype && x.tensor == y.tensor;
  };
  return a.buckets == b.buckets &&
         std::equal(a.numbers.begin(), a.numbers.end(), b.numbers.begin(), b.numbers.end(), same_numbers);
}

// Counts which items of a sorted list have arrived completely. Not thread-safe.
class ArrivalCount {
 public:
  explicit ArrivalCount(const std::vector<CheckItem>& items)
      : items_(items), left_(static_cast<int64_t>(items.size())) {
    missing_.reserve(items.size());
    for (const CheckItem& item : items) missing_.push_back(item.bytes);
  }

  // Calls launch(first, count) for each run of neighbouring items that these bytes complete.
  template <typename Launch>
  absl::Status Count(ByteRange arrived, const Launch& launch) {
    auto at = std::upper_bound(items_.begin(), items_.end(), arrived.begin,
                               [](int64_t begin, const CheckItem& item) { return begin < item.begin + item.bytes; });
    size_t index = static_cast<size_t>(at - items_.begin());
    size_t first = index;  // the first item of the run
    for (; index < items_.size() && items_[index].begin < arrived.end; ++index) {
      const CheckItem& item = items_[index];
      const int64_t bytes = std::min(item.begin + item.bytes, arrived.end) - std::max(item.begin, arrived.begin);
      missing_[index] -= static_cast<int32_t>(bytes);
      if (missing_[index] == 0) continue;
      SYNCOPATE_RETURN_IF_ERROR(Launched(first, index, launch));
      first = index + 1;
    }
    return Launched(first, index, launch);
  }
  bool complete() const { return left_ == 0; }

 private:
  template <typename Launch>
  absl::Status Launched(size_t first, size_t last, const Launch& launch) {
    if (first >= last) return absl::OkStatus();
    left_ -= static_cast<int64_t>(last - first);
    return launch(static_cast<int64_t>(first), static_cast<int64_t>(last - first));
  }

  const std::vector<CheckItem>& items_;
  std::vector<int32_t> missing_;  // bytes
  int64_t left_;                  // items
};

}  // namespace

// Thread-safe.
class CudaShadowChecker::Check final : public ShadowCheck {
 public:
  Check(CudaShadowChecker* checker, const char* shadow)
      : checker_(checker), shadow_(shadow), digests_(checker->program_.digests), numbers_(checker->program_.numbers) {}
  ~Check() override;

  void Arrived(ByteRange destination, void* stream) override;
  absl::StatusOr<std::vector<uint64_t>> Finish(absl::Duration deadline) override;

 private:
  absl::Status Digest(ByteRange arrived, cudaStream_t stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Launch(const CheckItem* items, int64_t count) const;
  absl::Status RequestResult() const;
  std::vector<uint64_t> Digests() const;

  CudaShadowChecker* const checker_;
  const char* const shadow_;
  Mutex mutex_;
  ArrivalCount digests_ ABSL_GUARDED_BY(mutex_);
  ArrivalCount numbers_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<CudaShadowChecker>> CudaShadowChecker::Create(const Options& options) {
  SYNCOPATE_RETURN_IF_ERROR(cuda::CheckGpu(options.device));
  cuda::DeviceScope scope(options.device);
  SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(LoadCheckKernel(), "loading the check's kernel"));
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::Stream stream, cuda::Stream::Create(options.device, cuda::Stream::Priority::kLow));
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::Event arrived, cuda::Event::Create(options.device));
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::Event done, cuda::Event::Create(options.device));
  const int fill = BlocksThatFill(options.device);
  const int blocks = options.max_blocks > 0 ? std::min(options.max_blocks, fill) : fill;
  return std::unique_ptr<CudaShadowChecker>(
      new CudaShadowChecker(options, blocks, std::move(stream), std::move(arrived), std::move(done)));
}

absl::Status CudaShadowChecker::Load(ShadowContents contents) {
  if (items_.data() != nullptr && SameContents(contents, contents_)) return absl::OkStatus();
  CheckProgram program = MakeCheckProgram(contents);
  const int64_t digests = static_cast<int64_t>(contents.buckets.size());
  std::vector<CheckItem> items = program.digests;
  items.insert(items.end(), program.numbers.begin(), program.numbers.end());
  const int64_t bytes = static_cast<int64_t>(items.size() * sizeof(CheckItem));
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::DeviceBuffer table,
                             cuda::DeviceBuffer::Create(options_.device, bytes, "the check's table"));
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::DeviceBuffer findings,
                             cuda::DeviceBuffer::Create(options_.device, (digests + 1) * 8, "the check's sums"));
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::PinnedBuffer result, cuda::PinnedBuffer::Create((digests + 1) * 8));
  // The source is pageable memory, and has been read when this returns.
  SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(
      cudaMemcpyAsync(table.data(), items.data(), static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_.get()),
      "loading the check's table"));
  contents_ = std::move(contents);
  program_ = std::move(program);
  items_ = std::move(table);
  findings_ = std::move(findings);
  result_ = std::move(result);
  return absl::OkStatus();
}

Findings CudaShadowChecker::findings() const {
  return {findings_.as<uint64_t>(), findings_.as<uint64_t>() + contents_.buckets.size()};
}

absl::StatusOr<std::unique_ptr<ShadowCheck>> CudaShadowChecker::Begin(const char* shadow, ShadowContents contents) {
  cuda::DeviceScope scope(options_.device);
  SYNCOPATE_RETURN_IF_ERROR(Load(std::move(contents)));
  SYNCOPATE_RETURN_IF_ERROR(ClearFindings(findings(), static_cast<int64_t>(contents_.buckets.size()), stream_.get()));
  return std::make_unique<Check>(this, shadow);
}

int64_t CudaShadowChecker::scratch_bytes() const { return items_.bytes() + findings_.bytes(); }

CudaShadowChecker::Check::~Check() {
  // Work that was begun reads the shadow, which may be unmapped next.
  constexpr absl::Duration kDeadline = absl::Seconds(10);
  cuda::DeviceScope scope(checker_->options_.device);
  absl::Status ended = checker_->done_.Record(checker_->stream_.get());
  if (ended.ok()) checker_->done_.Wait(kDeadline, "ending a check").IgnoreError();
}

void CudaShadowChecker::Check::Arrived(ByteRange destination, void* stream) {
  cuda::DeviceScope scope(checker_->options_.device);
  MutexLock lock(&mutex_);
  if (!status_.ok()) return;
  status_ = Digest(destination, static_cast<cudaStream_t>(stream));
}

absl::Status CudaShadowChecker::Check::Digest(ByteRange arrived, cudaStream_t stream) {
  if (stream != nullptr) {
    SYNCOPATE_RETURN_IF_ERROR(cuda::OrderAfter(checker_->stream_.get(), stream, checker_->arrived_));
  }
  const CheckItem* items = checker_->items_.as<CheckItem>();
  auto launch = [this, items](int64_t first, int64_t count) { return Launch(items + first, count); };
  SYNCOPATE_RETURN_IF_ERROR(digests_.Count(arrived, launch));
  const CheckItem* numbers = items + checker_->program_.digests.size();
  auto launch_numbers = [this, numbers](int64_t first, int64_t count) { return Launch(numbers + first, count); };
  return numbers_.Count(arrived, launch_numbers);
}

absl::Status CudaShadowChecker::Check::Launch(const CheckItem* items, int64_t count) const {
  return cuda::CudaStatus(
      LaunchCheck(items, count, shadow_, checker_->findings(), checker_->blocks_, checker_->stream_.get()),
      "digesting what arrived");
}

absl::Status CudaShadowChecker::Check::RequestResult() const {
  cuda::DeviceScope scope(checker_->options_.device);
  SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(
      cudaMemcpyAsync(checker_->result_.data(), checker_->findings_.data(),
                      static_cast<size_t>(checker_->result_.bytes()), cudaMemcpyDeviceToHost, checker_->stream_.get()),
      "reading digests"));
  return checker_->done_.Record(checker_->stream_.get());
}

absl::StatusOr<std::vector<uint64_t>> CudaShadowChecker::Check::Finish(absl::Duration deadline) {
  {
    MutexLock lock(&mutex_);
    SYNCOPATE_RETURN_IF_ERROR(status_);
    if (!digests_.complete() || !numbers_.complete()) {
      return Error(absl::StatusCode::kDataLoss, "INCOMPLETE", "some bytes of the buckets were never announced");
    }
  }
  SYNCOPATE_RETURN_IF_ERROR(RequestResult());
  SYNCOPATE_RETURN_IF_ERROR(checker_->done_.Wait(deadline, "digesting what arrived"));
  const int64_t first = checker_->result_.as<int64_t>()[checker_->contents_.buckets.size()];
  if (first != kAllFinite) {
    return NonFiniteError(checker_->contents_.numbers, first, shadow_, checker_->options_.device);
  }
  return Digests();
}

std::vector<uint64_t> CudaShadowChecker::Check::Digests() const {
  return FinishDigests(checker_->result_.as<uint64_t>(), checker_->contents_.buckets);
}

}  // namespace syncopate::synchronizer
