#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "rollouter/engine/scheduler.h"

namespace syncopate::rollouter {

// Executes plans on storage whose cells hold, in place of keys and values, the hash of the tokens up to their position
// and the version that wrote them. Each row looks at the cells it would attend to; what is not its own sequence's is an
// error. A token is a function of seed, number of the draw and all tokens before it, so that it comes out the same
// however the steps are cut.
class StampingRunner {
 public:
  explicit StampingRunner(const Scheduler::Options& options);

  // From now on blocks from `first` on hold something else: no plan may touch them, until all are said to be there again.
  void TakeAway(BlockIndex first);
  void GiveBack() { there_ = options_.blocks; }

  // The draws, in their order.
  std::vector<int32_t> Execute(const StepPlan& plan);
  const std::vector<std::string>& errors() const { return errors_; }

  static constexpr int32_t kVocabulary = 24;
  static uint64_t Extend(uint64_t chain, int32_t token);
  static int32_t Draw(uint64_t seed, int64_t number, uint64_t chain);

 private:
  struct Cell {
    uint64_t chain = 0;
    PolicyVersion version;
  };
  struct Slot {
    uint64_t seed = 0;
    int64_t prompt = 0;
    std::vector<int32_t> tokens;   // prompt and draws
    std::vector<uint64_t> chains;  // up to each of them
    std::vector<BlockIndex> table;
    bool has_computed = false;  // since it began in this slot
  };

  void Fail(const StepPlan& plan, const std::string& what);
  void CheckThere(const StepPlan& plan, BlockIndex block);
  void CheckShape(const StepPlan& plan);
  void MoveBlocks(const StepPlan& plan);
  void SetTables(const StepPlan& plan);
  void Write(const StepPlan& plan, Slot& slot, int64_t position, int32_t token);
  void Read(const StepPlan& plan, const Slot& slot, int64_t position);
  Cell* CellAt(const Slot& slot, int64_t position);
  int32_t DrawNext(Slot& slot);

  const Scheduler::Options options_;
  std::vector<Cell> cells_, host_cells_;
  std::vector<Slot> slots_;
  int64_t there_;  // blocks that may be touched: all below
  int64_t last_plan_ = 0;
  std::vector<std::string> errors_;
};

}  // namespace syncopate::rollouter
