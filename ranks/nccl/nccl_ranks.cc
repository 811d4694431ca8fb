#include "ranks/nccl/nccl_ranks.h"

#include <algorithm>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "cuda/stream.h"
#include "ranks/nccl/largest_kernel.h"

namespace syncopate {
namespace {

constexpr absl::Duration kPollEvery = absl::Microseconds(50);
constexpr absl::Duration kGoOnEvery = absl::Milliseconds(100);
// NcclComm::Abort() takes 5 s at most; an abort that takes longer will not end, and the process must.
constexpr absl::Duration kAbortWithin = absl::Seconds(6);
// Device memory that calls need beside the caller's: all ranks' parts of a maximum, which are a few numbers.
constexpr int64_t kScratchBytes = 256 << 10;

cuda::NcclComm::Number GetNumber(Element element) {
  switch (element) {
    case Element::kFloat32:
      return cuda::NcclComm::Number::kFloat32;
    case Element::kFloat64:
      return cuda::NcclComm::Number::kFloat64;
    case Element::kBFloat16:
      break;
  }
  return cuda::NcclComm::Number::kBFloat16;
}

// The communicator and the right to use it. The group's owner may use it between Enter() and Leave(); after an abort,
// once the owner has left, a thread of this object ends it.
class AbortableComm {
 public:
  explicit AbortableComm(cuda::NcclComm comm) : comm_(std::move(comm)), thread_([this] { Watch(); }) {}
  ~AbortableComm() {
    {
      MutexLock lock(&mutex_);
      ends_ = true;
    }
    thread_.join();
  }

  // The communicator, or why the group has ended. Call Leave() after OK.
  absl::StatusOr<cuda::NcclComm*> Enter() {
    MutexLock lock(&mutex_);
    SYNCOPATE_RETURN_IF_ERROR(broken_);
    is_used_ = true;
    return &comm_;
  }
  void Leave() {
    MutexLock lock(&mutex_);
    is_used_ = false;
  }

  void Break(const absl::Status& why) {
    MutexLock lock(&mutex_);
    if (broken_.ok()) broken_ = why;
  }
  absl::Status broken() {
    MutexLock lock(&mutex_);
    return broken_;
  }
  // Blocks for kPollEvery, or less if the group breaks.
  void Pause() {
    MutexLock lock(&mutex_);
    auto is_broken = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !broken_.ok(); };
    mutex_.AwaitWithTimeout(Condition(&is_broken), kPollEvery);
  }
  // Call after Break(): blocks, for at most kAbortWithin, until no call of the group runs on the GPU any more.
  void AwaitAborted() {
    MutexLock lock(&mutex_);
    auto is_aborted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return aborted_; };
    mutex_.AwaitWithTimeout(Condition(&is_aborted), kAbortWithin);
  }

 private:
  void Watch() {
    {
      MutexLock lock(&mutex_);
      auto is_due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ends_ || (!broken_.ok() && !is_used_); };
      mutex_.Await(Condition(&is_due));
    }
    // From here on Enter() fails, or is not called any more.
    const absl::Status aborted = comm_.Abort();
    if (!aborted.ok()) SYNCOPATE_LOG(kError, "ranks: %s", aborted.ToString());
    MutexLock lock(&mutex_);
    aborted_ = true;
  }

  cuda::NcclComm comm_;
  Mutex mutex_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  bool is_used_ ABSL_GUARDED_BY(mutex_) = false, ends_ ABSL_GUARDED_BY(mutex_) = false;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

class NcclRanks final : public NcclGroup {
 public:
  NcclRanks(const NcclRanksOptions& options, cuda::NcclComm comm, cuda::DeviceBuffer scratch)
      : options_(options), comm_(std::move(comm)), scratch_(std::move(scratch)) {}
  ~NcclRanks() override { Abort("it has ended"); }

  int32_t rank() const override { return options_.rank; }
  int32_t world() const override { return options_.world; }
  void Abort(const std::string& why) override {
    comm_.Break(RankLost(absl::StrCat("rank ", options_.rank, ": ", why)));
  }

  // Blocks until the communicator is formed, for at most `meet`.
  absl::Status AwaitMeeting(absl::Duration meet, const std::function<absl::Status()>& go_on) {
    const absl::Time until = Clock::Real()->Now() + meet;
    absl::Time next_look = absl::InfinitePast();
    while (true) {
      SYNCOPATE_ASSIGN_OR_RETURN(const bool met, Poll());
      if (met) return absl::OkStatus();
      const absl::Time now = Clock::Real()->Now();
      if (now >= until) {
        return Broken(RankLost(absl::StrCat("not all of ", options_.world, " ranks have come to NCCL within ",
                                            absl::FormatDuration(meet))));
      }
      if (go_on != nullptr && now >= next_look) {
        next_look = now + kGoOnEvery;
        if (const absl::Status status = go_on(); !status.ok()) return Broken(status);
      }
      comm_.Pause();
    }
  }

  absl::Status Finish() override {
    cuda::DeviceScope scope(options_.device);
    // Records the end of all queued work: the last call, or work that uses its result.
    SYNCOPATE_RETURN_IF_ERROR(Record(CurrentStream()));
    absl::Time until = Clock::Real()->Now() + options_.deadline;
    while (true) {
      SYNCOPATE_ASSIGN_OR_RETURN(const bool any, DropPassed());
      if (pending_.empty()) return comm_.broken();  // an abort also ends the queued work
      const absl::Time now = Clock::Real()->Now();
      if (any) until = now + options_.deadline;
      if (now >= until) {
        return Broken(
            RankLost(absl::StrCat("rank ", options_.rank, ": ", pending_.front().what,
                                  ": not made by all ranks within ", absl::FormatDuration(options_.deadline))));
      }
      SYNCOPATE_RETURN_IF_ERROR(Poll().status());
      comm_.Pause();
    }
  }

  absl::Status Perform(const Collective& call, void* in, void* out) override {
    cuda::DeviceScope scope(options_.device);
    if (call.kind == Collective::Kind::kBarrier) {
      // The values in the scratch memory do not matter: only that all ranks make the call.
      SYNCOPATE_RETURN_IF_ERROR(AllReduce(scratch_.data(), 1, Element::kFloat32, Reduction::kSum));
      return Finish();
    }
    if (call.bytes == 0) return comm_.broken();
    const bool is_largest = call.kind == Collective::Kind::kAllReduce && call.reduction == Reduction::kMax;
    return is_largest ? FindLargest(call, in) : Queue(call, in, out);
  }

  absl::Status QueueSum(void* values, int64_t count, cudaStream_t stream) override {
    return QueueOn([&](cuda::NcclComm& comm) {
      return comm.AllReduce(values, static_cast<size_t>(count), cuda::NcclComm::Number::kBFloat16, stream);
    });
  }
  absl::Status QueueBroadcast(void* data, int64_t bytes, cudaStream_t stream) override {
    return QueueOn(
        [&](cuda::NcclComm& comm) { return comm.Broadcast(data, static_cast<size_t>(bytes), /*root=*/0, stream); });
  }
  absl::Status Check() override { return Poll().status(); }

 private:
  // A point in a stream that the GPU has not passed yet, and the name of the call before it.
  struct Pending {
    cuda::Event event;
    std::string what;
  };

  cudaStream_t CurrentStream() const { return options_.stream != nullptr ? options_.stream() : nullptr; }

  // Aborts the group and waits for that; returns the first error of the group, which may be older than `why`.
  absl::Status Broken(const absl::Status& why) {
    comm_.Break(why);
    comm_.AwaitAborted();
    return comm_.broken();
  }

  absl::StatusOr<bool> Poll() {
    absl::StatusOr<cuda::NcclComm*> comm = comm_.Enter();
    if (!comm.ok()) return Broken(comm.status());
    absl::StatusOr<bool> ready = (*comm)->Poll();
    comm_.Leave();
    if (!ready.ok()) return Broken(RankLost(ready.status().ToString()));
    return ready;
  }

  absl::Status Record(cudaStream_t stream, const std::string& what = "what was queued last") {
    Pending point{{}, what};
    if (free_.empty()) {
      SYNCOPATE_ASSIGN_OR_RETURN(point.event, cuda::Event::Create(options_.device));
    } else {
      point.event = std::move(free_.back());
      free_.pop_back();
    }
    SYNCOPATE_RETURN_IF_ERROR(point.event.Record(stream));
    pending_.push_back(std::move(point));
    return absl::OkStatus();
  }

  // Drops the pending points that the GPU has passed; returns whether there was any.
  absl::StatusOr<bool> DropPassed() {
    bool any = false;
    while (!pending_.empty()) {
      const cudaError_t state = cudaEventQuery(pending_.front().event.get());
      if (state == cudaErrorNotReady) {
        cudaGetLastError();  // clears "not ready", which is no error
        break;
      }
      SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(state, "waiting for ranks"));
      free_.push_back(std::move(pending_.front().event));
      pending_.pop_front();
      any = true;
    }
    return any;
  }

  // NCCL's own maximum drops NaN, which every rank must see. So all ranks' values are gathered, and each rank computes
  // the maximum itself.
  absl::Status FindLargest(const Collective& call, void* values) {
    const int64_t most = kScratchBytes / options_.world / ElementBytes(call.element) * ElementBytes(call.element);
    for (int64_t done = 0; done < call.bytes; done += most) {
      const int64_t bytes = std::min(most, call.bytes - done);
      char* const part = static_cast<char*>(values) + done;
      SYNCOPATE_RETURN_IF_ERROR(Queue({.kind = Collective::Kind::kAllGather, .bytes = bytes}, part, scratch_.data()));
      SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(QueueLargest(call.element, scratch_.data(), options_.world,
                                                              bytes / ElementBytes(call.element), part, last_stream_),
                                                 "the largest over ranks"));
      // Calls on other streams wait for this kernel too, because they may need the scratch memory.
      SYNCOPATE_RETURN_IF_ERROR(Record(last_stream_, call.ToString()));
    }
    return absl::OkStatus();
  }

  absl::Status Queue(const Collective& call, void* in, void* out) {
    const cudaStream_t stream = CurrentStream();
    if (!pending_.empty() && stream != last_stream_) {
      SYNCOPATE_RETURN_IF_ERROR(
          cuda::CudaStatus(cudaStreamWaitEvent(stream, pending_.back().event.get()), "ordering calls of ranks"));
    }
    last_stream_ = stream;
    absl::StatusOr<cuda::NcclComm*> comm = comm_.Enter();
    if (!comm.ok()) return Broken(comm.status());
    const absl::Status begun = Begin(call, in, out, **comm, stream);
    comm_.Leave();
    if (!begun.ok()) return Broken(RankLost(begun.ToString()));
    SYNCOPATE_RETURN_IF_ERROR(AwaitQueued(call.ToString()));
    SYNCOPATE_RETURN_IF_ERROR(DropPassed().status());
    return Record(stream, call.ToString());
  }

  absl::Status QueueOn(const std::function<absl::Status(cuda::NcclComm&)>& begin) {
    absl::StatusOr<cuda::NcclComm*> comm = comm_.Enter();
    if (!comm.ok()) return Broken(comm.status());
    const absl::Status begun = begin(**comm);
    comm_.Leave();
    if (!begun.ok()) return Broken(RankLost(begun.ToString()));
    return AwaitQueued("a call of a decode step");
  }

  static absl::Status Begin(const Collective& call, void* in, void* out, cuda::NcclComm& comm, cudaStream_t stream) {
    const auto bytes = static_cast<size_t>(call.bytes);
    const auto count = static_cast<size_t>(call.bytes / ElementBytes(call.element));
    switch (call.kind) {
      case Collective::Kind::kAllGather:
        return comm.AllGather(in, out, bytes, stream);
      case Collective::Kind::kReduceScatter:
        return comm.ReduceScatter(in, out, count, GetNumber(call.element), stream);
      case Collective::Kind::kAllReduce:
        return comm.AllReduce(in, count, GetNumber(call.element), stream);
      case Collective::Kind::kBroadcast:
        return comm.Broadcast(in, bytes, call.root, stream);
      case Collective::Kind::kBarrier:
        break;
    }
    return absl::InternalError("a barrier is an all-reduce");
  }

  // Blocks until NCCL has queued the call on its stream. NCCL does that at once, except for the first call of a kind.
  absl::Status AwaitQueued(const std::string& what) {
    const absl::Time until = Clock::Real()->Now() + options_.deadline;
    while (true) {
      SYNCOPATE_ASSIGN_OR_RETURN(const bool is_queued, Poll());
      if (is_queued) return absl::OkStatus();
      if (Clock::Real()->Now() >= until) {
        return Broken(RankLost(absl::StrCat("rank ", options_.rank, ": ", what, ": not begun by all ranks within ",
                                            absl::FormatDuration(options_.deadline))));
      }
      comm_.Pause();
    }
  }

  const NcclRanksOptions options_;
  AbortableComm comm_;
  const cuda::DeviceBuffer scratch_;
  cudaStream_t last_stream_ = nullptr;
  std::deque<Pending> pending_;    // in the order of calls
  std::vector<cuda::Event> free_;  // events for reuse
};

}  // namespace

absl::StatusOr<std::unique_ptr<NcclGroup>> JoinNcclRanks(const NcclRanksOptions& options, const cuda::NcclId& id,
                                                         absl::Duration meet,
                                                         const std::function<absl::Status()>& go_on) {
  SYNCOPATE_ASSIGN_OR_RETURN(
      cuda::NcclComm comm,
      cuda::NcclComm::Join({.device = options.device, .max_ctas = options.max_ctas}, id, options.rank, options.world));
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::DeviceBuffer scratch,
                             cuda::DeviceBuffer::Create(options.device, kScratchBytes, "what calls of ranks need"));
  auto ranks = std::make_unique<NcclRanks>(options, std::move(comm), std::move(scratch));
  SYNCOPATE_RETURN_IF_ERROR(ranks->AwaitMeeting(meet, go_on));
  // The first call sets up NCCL's connections.
  SYNCOPATE_RETURN_IF_ERROR(ranks->Barrier());
  return ranks;
}

RankPlace PlaceOnGpu(const NcclRanksOptions& options, const std::string& gpu) {
  RankPlace place{.name = absl::StrCat("cuda:", options.device), .gpu = gpu};
  place.new_id = []() -> absl::StatusOr<std::string> {
    SYNCOPATE_ASSIGN_OR_RETURN(const cuda::NcclId id, cuda::NewNcclId());
    return std::string(id.data(), id.size());
  };
  place.join = [options](const std::string& said, int32_t rank,
                         const RankPlace::GoOn& go_on) -> absl::StatusOr<std::unique_ptr<Communicator>> {
    cuda::NcclId id{};
    if (said.size() != id.size()) return RankLost("rank 0's welcome is damaged");
    std::copy(said.begin(), said.end(), id.begin());
    NcclRanksOptions mine = options;
    mine.rank = rank;
    return JoinNcclRanks(mine, id, kRanksMeetWithin, go_on);
  };
  return place;
}

}  // namespace syncopate
