#include "tests/unit/rollouter/engine/stamping_runner.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/digest.h"

namespace syncopate::rollouter {

StampingRunner::StampingRunner(const Scheduler::Options& options)
    : options_(options),
      cells_(static_cast<size_t>(options.blocks * kBlockTokens)),
      host_cells_(static_cast<size_t>(options.host_blocks * kBlockTokens)),
      slots_(static_cast<size_t>(options.max_sequences)),
      there_(options.blocks) {}

void StampingRunner::TakeAway(BlockIndex first) {
  there_ = first;
  std::fill(cells_.begin() + int64_t{first} * kBlockTokens, cells_.end(), Cell());
}

void StampingRunner::CheckThere(const StepPlan& plan, BlockIndex block) {
  highest_ = std::max(highest_, block);
  if (block >= there_) Fail(plan, "it touches a lent block");
}

uint64_t StampingRunner::Extend(uint64_t chain, int32_t token) {
  return HashCombine(chain + 1, static_cast<uint64_t>(token));
}

int32_t StampingRunner::Draw(uint64_t seed, int64_t number, uint64_t chain) {
  return static_cast<int32_t>(HashCombine(HashCombine(seed, static_cast<uint64_t>(number)), chain) % kVocabulary);
}

void StampingRunner::Fail(const StepPlan& plan, const std::string& what) {
  errors_.push_back(absl::StrCat("plan ", plan.id, ": ", what));
}

std::vector<int32_t> StampingRunner::Execute(const StepPlan& plan) {
  highest_ = -1;
  CheckShape(plan);
  if (!errors_.empty()) return std::vector<int32_t>(plan.draws(), 0);
  MoveBlocks(plan);
  SetTables(plan);
  // All rows write before any row reads, as in the layers of a model.
  for (const PrefillChunk& chunk : plan.chunks) {
    Slot& slot = slots_[chunk.slot];
    // The serving version made every cell that the sequence has not computed itself in this slot or before it was
    // parked.
    for (int64_t p = 0; !slot.has_computed && p < chunk.begin; ++p) {
      if (!MayContinueFrom(plan, slot, p)) Fail(plan, "a prefix of another version");
    }
    slot.has_computed = true;
    for (size_t i = 0; i < chunk.tokens.size(); ++i)
      Write(plan, slot, chunk.begin + static_cast<int64_t>(i), chunk.tokens[i]);
  }
  for (const DecodeRow& row : plan.rows) {
    Slot& slot = slots_[row.slot];
    if (row.position != static_cast<int64_t>(slot.tokens.size()) - 1) Fail(plan, "a row at a wrong position");
    Write(plan, slot, row.position, slot.tokens.back());
  }
  std::vector<int32_t> draws;
  for (const PrefillChunk& chunk : plan.chunks) {
    const int64_t last = chunk.begin + static_cast<int64_t>(chunk.tokens.size()) - 1;
    Read(plan, slots_[chunk.slot], last);
    for (SlotIndex slot : chunk.draws) {
      Read(plan, slots_[slot], last);
      if (last != static_cast<int64_t>(slots_[slot].tokens.size()) - 1) Fail(plan, "a draw before the prompt's end");
      draws.push_back(DrawNext(slots_[slot]));
    }
  }
  for (const DecodeRow& row : plan.rows) {
    Read(plan, slots_[row.slot], row.position);
    draws.push_back(DrawNext(slots_[row.slot]));
  }
  return draws;
}

void StampingRunner::CheckShape(const StepPlan& plan) {
  if (plan.id != ++last_plan_) Fail(plan, "its number is not the next");
  std::set<SlotIndex> slots;
  int64_t prefill = 0;
  for (const PrefillChunk& chunk : plan.chunks) {
    prefill += static_cast<int64_t>(chunk.tokens.size());
    if (!slots.insert(chunk.slot).second || chunk.tokens.empty()) Fail(plan, "a slot twice, or an empty chunk");
  }
  for (const DecodeRow& row : plan.rows) {
    if (!slots.insert(row.slot).second) Fail(plan, "a slot twice");
  }
  if (prefill > options_.max_prefill_tokens) Fail(plan, "more prompt tokens than the budget");
  std::set<BlockIndex> sources, targets;
  for (const BlockCopy& copy : plan.copies) {
    sources.insert(copy.from);
    if (!targets.insert(copy.to).second) Fail(plan, "a block is the target of two copies");
  }
  for (BlockIndex source : sources) {
    if (targets.count(source) > 0) Fail(plan, "a block is source and target");
  }
}

void StampingRunner::MoveBlocks(const StepPlan& plan) {
  auto cells = [](std::vector<Cell>& storage, BlockIndex block) {
    return storage.begin() + int64_t{block} * kBlockTokens;
  };
  for (const BlockSwap& swap : plan.swaps_out) {
    CheckThere(plan, swap.block);
    std::copy_n(cells(cells_, swap.block), kBlockTokens, cells(host_cells_, swap.host_block));
  }
  for (const BlockSwap& swap : plan.swaps_in) {
    CheckThere(plan, swap.block);
    std::copy_n(cells(host_cells_, swap.host_block), kBlockTokens, cells(cells_, swap.block));
  }
  for (const BlockCopy& copy : plan.copies) {
    CheckThere(plan, copy.from);
    CheckThere(plan, copy.to);
    std::fill_n(cells(cells_, copy.to), kBlockTokens, Cell());
    std::copy_n(cells(cells_, copy.from), copy.tokens, cells(cells_, copy.to));
  }
}

void StampingRunner::SetTables(const StepPlan& plan) {
  for (const SlotStart& start : plan.starts) {
    Slot& slot = slots_[start.slot];
    slot = Slot();
    slot.key = start.key;
    slot.sample = start.sample;
    slot.seed = start.seed;
    slot.adapter = start.adapter;
    slot.prompt = static_cast<int64_t>(start.prompt->size());
    slot.tokens = *start.prompt;
    slot.tokens.insert(slot.tokens.end(), start.drawn.begin(), start.drawn.end());
    uint64_t chain = 0;
    for (int32_t token : slot.tokens) slot.chains.push_back(chain = Extend(chain, token));
  }
  for (const TableEntry& entry : plan.tables) {
    std::vector<BlockIndex>& table = slots_[entry.slot].table;
    CheckThere(plan, entry.block);
    table.resize(std::max<size_t>(table.size(), entry.index + 1), -1);
    table[entry.index] = entry.block;
  }
}

StampingRunner::Cell* StampingRunner::CellAt(const Slot& slot, int64_t position) {
  const size_t index = static_cast<size_t>(position / kBlockTokens);
  if (index >= slot.table.size() || slot.table[index] < 0 || slot.table[index] >= there_) return nullptr;
  highest_ = std::max(highest_, slot.table[index]);
  return &cells_[int64_t{slot.table[index]} * kBlockTokens + position % kBlockTokens];
}

void StampingRunner::Write(const StepPlan& plan, Slot& slot, int64_t position, int32_t token) {
  Cell* cell = CellAt(slot, position);
  if (cell == nullptr || slot.tokens[position] != token) {
    Fail(plan, cell == nullptr ? "a position without a block" : "a token that is not the sequence's");
    return;
  }
  *cell = {slot.chains[position], plan.version, slot.adapter, ++last_write_};
}

void StampingRunner::Read(const StepPlan& plan, const Slot& slot, int64_t position) {
  std::vector<int64_t>& read = read_[{slot.key, slot.sample}];
  read.resize(static_cast<size_t>(position) + 1);
  for (int64_t p = 0; p <= position; ++p) {
    const Cell* cell = CellAt(slot, p);
    if (cell != nullptr) read[p] = cell->written;
    if (cell != nullptr && cell->chain == slot.chains[p]) continue;
    Fail(plan, absl::StrCat("position ", p, " holds something else than its sequence"));
    return;
  }
}

bool StampingRunner::MayContinueFrom(const StepPlan& plan, const Slot& slot, int64_t position) {
  const Cell* cell = CellAt(slot, position);
  if (cell == nullptr) return false;
  const auto read = read_.find({slot.key, slot.sample});
  const bool has_read = read != read_.end() && position < std::ssize(read->second) &&
                        read->second[static_cast<size_t>(position)] == cell->written;
  if (has_read) return true;
  // What the base has made is the same in all versions of an epoch.
  const bool same =
      slot.adapter == kBaseAdapter ? cell->version.epoch == plan.version.epoch : cell->version == plan.version;
  return same && cell->adapter == slot.adapter;
}

int32_t StampingRunner::DrawNext(Slot& slot) {
  const int64_t number = static_cast<int64_t>(slot.tokens.size()) - slot.prompt;
  const int32_t token = Draw(slot.seed, number, slot.chains.back());
  slot.tokens.push_back(token);
  slot.chains.push_back(Extend(slot.chains.back(), token));
  return token;
}

}  // namespace syncopate::rollouter
