#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "rollouter/engine/scheduler.h"

namespace syncopate::rollouter {

// Executes plans on storage whose cells contain, in place of keys and values, the hash of the tokens up to their
// position and the version that wrote them. Each row checks the cells to which it would attend; a cell that does not
// belong to its own sequence is an error. A token is a function of the seed, the number of the draw and all tokens
// before it, so it does not depend on how the work is divided into steps.
class StampingRunner {
 public:
  explicit StampingRunner(const Scheduler::Options& options);

  // From this call on, blocks from `first` on have other contents: no plan may touch them until they are all returned.
  void TakeAway(BlockIndex first);
  void GiveBack() { there_ = options_.blocks; }

  // Executes a plan; returns the draws, in their order.
  std::vector<int32_t> Execute(const StepPlan& plan);
  // The highest block that the latest plan has touched; -1: none.
  BlockIndex highest() const { return highest_; }
  const std::vector<std::string>& errors() const { return errors_; }

  static constexpr int32_t kVocabulary = 24;
  static uint64_t Extend(uint64_t chain, int32_t token);
  static int32_t Draw(uint64_t seed, int64_t number, uint64_t chain);

 private:
  struct Cell {
    uint64_t chain = 0;
    PolicyVersion version;
    int64_t adapter = 0;
    int64_t written = 0;  // when: no two writes have the same number
  };
  struct Slot {
    uint64_t key = 0;
    int32_t sample = 0;
    uint64_t seed = 0;
    int64_t prompt = 0;
    std::vector<int32_t> tokens;   // prompt and draws
    std::vector<uint64_t> chains;  // the hash up to each token
    std::vector<BlockIndex> table;
    bool has_computed = false;  // since it began in this slot
    int64_t adapter = 0;
  };

  void Fail(const StepPlan& plan, const std::string& what);
  void CheckThere(const StepPlan& plan, BlockIndex block);
  void CheckShape(const StepPlan& plan);
  void MoveBlocks(const StepPlan& plan);
  void SetTables(const StepPlan& plan);
  void Write(const StepPlan& plan, Slot& slot, int64_t position, int32_t token);
  void Read(const StepPlan& plan, const Slot& slot, int64_t position);
  // Whether the slot's sequence may continue from the cell at `position`, which it has not computed in this slot.
  bool MayContinueFrom(const StepPlan& plan, const Slot& slot, int64_t position);
  Cell* CellAt(const Slot& slot, int64_t position);
  int32_t DrawNext(Slot& slot);

  const Scheduler::Options options_;
  std::vector<Cell> cells_, host_cells_;
  std::vector<Slot> slots_;
  int64_t there_;  // number of blocks that may be touched: those below
  // key: (key, sample); value: the writes that a sequence has read, by position. It may read them again after an
  // install.
  std::map<std::pair<uint64_t, int32_t>, std::vector<int64_t>> read_;
  BlockIndex highest_ = -1;
  int64_t last_plan_ = 0;
  int64_t last_write_ = 0;
  std::vector<std::string> errors_;
};

}  // namespace syncopate::rollouter
