#include "ranks/thread_ranks.h"

#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"

namespace syncopate {
namespace {

// State that the ranks of one group share.
class Board {
 public:
  Board(int32_t world, absl::Duration deadline)
      : world_(world), deadline_(deadline), calls_(static_cast<size_t>(world)) {}

  int32_t world() const { return world_; }

  absl::Status Meet(int32_t rank, const Collective& call, void* in, void* out) {
    MutexLock lock(&mutex_);
    SYNCOPATE_RETURN_IF_ERROR(broken_);
    const uint64_t sequence = sequence_;
    calls_[static_cast<size_t>(rank)] = Call{call, static_cast<char*>(in), static_cast<char*>(out)};
    if (++waiting_ == world_) {
      // The last rank to call does the work of all, in their memory, while the others wait: so a sum has one order.
      PerformAll();
      return broken_;
    }
    auto is_over = [this, sequence]()
                       ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return sequence_ != sequence || !broken_.ok(); };
    if (!mutex_.AwaitWithTimeout(Condition(&is_over), deadline_)) broken_ = RankLost(Missing(call));
    // A call that was finished before the group broke has succeeded.
    return sequence_ != sequence ? absl::OkStatus() : broken_;
  }

  void Break(const absl::Status& why) {
    MutexLock lock(&mutex_);
    if (broken_.ok()) broken_ = why;
  }

 private:
  struct Call {
    Collective call;
    char* in = nullptr;
    char* out = nullptr;
  };

  std::string Missing(const Collective& call) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::string missing;
    for (int32_t rank = 0; rank < world_; ++rank) {
      if (!calls_[static_cast<size_t>(rank)].has_value()) absl::StrAppend(&missing, missing.empty() ? "" : ", ", rank);
    }
    return absl::StrCat("call ", sequence_, ", ", call.ToString(), ": not made by rank ", missing, " within ",
                        absl::FormatDuration(deadline_));
  }

  void PerformAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (int32_t rank = 1; rank < world_ && broken_.ok(); ++rank) {
      const Collective& theirs = calls_[static_cast<size_t>(rank)]->call;
      if (!(theirs == calls_[0]->call)) broken_ = RankMismatch(rank, theirs, 0, calls_[0]->call, sequence_);
    }
    if (!broken_.ok()) return;
    Move(calls_[0]->call);
    for (std::optional<Call>& call : calls_) call.reset();
    waiting_ = 0;
    ++sequence_;
  }

  void Move(const Collective& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto bytes = static_cast<size_t>(call.bytes);
    if (bytes == 0) return;
    switch (call.kind) {
      case Collective::Kind::kAllGather:
        for (auto& to : calls_) {
          for (size_t r = 0; r < calls_.size(); ++r) {
            char* place = to->out + r * bytes;
            CopyBytes(place, calls_[r]->in, bytes);
          }
        }
        break;
      case Collective::Kind::kReduceScatter:
        for (size_t r = 0; r < calls_.size(); ++r) {
          char* into = calls_[r]->out;
          CopyBytes(into, calls_[0]->in + r * bytes, bytes);
          for (size_t from = 1; from < calls_.size(); ++from) {
            Combine(call, into, calls_[from]->in + r * bytes, call.bytes);
          }
        }
        break;
      case Collective::Kind::kAllReduce:
        // Sums into rank 0's memory and then copies to all, so that all results are bit-identical.
        for (size_t r = 1; r < calls_.size(); ++r) Combine(call, calls_[0]->in, calls_[r]->in, call.bytes);
        for (size_t r = 1; r < calls_.size(); ++r) CopyBytes(calls_[r]->in, calls_[0]->in, bytes);
        break;
      case Collective::Kind::kBroadcast:
        for (size_t r = 0; r < calls_.size(); ++r) {
          if (static_cast<int32_t>(r) != call.root) {
            CopyBytes(calls_[r]->out, calls_[static_cast<size_t>(call.root)]->in, bytes);
          }
        }
        break;
      case Collective::Kind::kBarrier:
        break;
    }
  }

  const int32_t world_;
  const absl::Duration deadline_;
  Mutex mutex_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  uint64_t sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  int32_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::optional<Call>> calls_ ABSL_GUARDED_BY(mutex_);
};

class ThreadRank final : public Communicator {
 public:
  ThreadRank(std::shared_ptr<Board> board, int32_t rank) : board_(std::move(board)), rank_(rank) {}
  ~ThreadRank() override { Abort("it has ended"); }

  int32_t rank() const override { return rank_; }
  int32_t world() const override { return board_->world(); }
  void Abort(const std::string& why) override { board_->Break(RankLost(absl::StrCat("rank ", rank_, ": ", why))); }

  absl::Status Perform(const Collective& call, void* in, void* out) override {
    return board_->Meet(rank_, call, in, out);
  }

 private:
  const std::shared_ptr<Board> board_;
  const int32_t rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeThreadRanks(int32_t world, absl::Duration deadline) {
  auto board = std::make_shared<Board>(world, deadline);
  std::vector<std::unique_ptr<Communicator>> ranks;
  ranks.reserve(static_cast<size_t>(world));
  for (int32_t rank = 0; rank < world; ++rank) ranks.push_back(std::make_unique<ThreadRank>(board, rank));
  return ranks;
}

}  // namespace syncopate
