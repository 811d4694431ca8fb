#include "rollouter/engine/block_pool.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "base/digest.h"
#include "base/status.h"

namespace syncopate::rollouter {

BlockPool::BlockPool(int64_t blocks, int64_t max_kept)
    : max_kept_(static_cast<size_t>(max_kept)), blocks_(static_cast<size_t>(blocks)), open_(blocks) {
  free_.resize(blocks_.size());
  std::iota(free_.begin(), free_.end(), 0);  // ascending numbers are a heap
}

void BlockPool::AddFree(BlockIndex block) {
  if (block >= open_) return;
  free_.push_back(block);
  std::push_heap(free_.begin(), free_.end(), std::greater<>());
}

void BlockPool::Change(Block& block, int32_t users, int32_t offers) {
  offered_ -= IsOffered(block) ? 1 : 0;
  block.users += users;
  block.offers += offers;
  offered_ += IsOffered(block) ? 1 : 0;
}

BlockIndex BlockPool::Allocate() {
  SYNCOPATE_CHECK(available() > 0);
  if (free_.empty()) FreeOldestKept();
  std::pop_heap(free_.begin(), free_.end(), std::greater<>());
  const BlockIndex block = free_.back();
  free_.pop_back();
  blocks_[block].users = 1;
  return block;
}

void BlockPool::AddUser(BlockIndex block) {
  Block& used = blocks_[block];
  if (used.users == 0) {
    SYNCOPATE_CHECK(used.indexed != nullptr);
    kept_.erase(used.in_kept);
    closed_kept_ -= block >= open_ ? 1 : 0;
  }
  Change(used, /*users=*/1, /*offers=*/0);
}

void BlockPool::RemoveUser(BlockIndex block) {
  Block& left = blocks_[block];
  SYNCOPATE_CHECK(left.users > 0);
  Change(left, /*users=*/-1, /*offers=*/0);
  if (left.users > 0) return;
  // A block of an older version is never searched for again, and a closed one loses its memory: neither is kept.
  if (left.indexed != nullptr && (!left.indexed->scope.IsServedAt(version_) || block >= open_)) Forget(block);
  // Contents that are not indexed cannot be found again.
  if (left.indexed == nullptr) {
    AddFree(block);
    return;
  }
  left.in_kept = kept_.insert(kept_.end(), block);
  if (kept_.size() > max_kept_) FreeOldestKept();
}

void BlockPool::FreeOldestKept() {
  const auto oldest = std::find_if(kept_.begin(), kept_.end(), [this](BlockIndex block) { return block < open_; });
  SYNCOPATE_CHECK(oldest != kept_.end());
  Forget(*oldest);
  AddFree(*oldest);
  kept_.erase(oldest);
}

BlockPool::Prefix BlockPool::Find(const PrefixScope& scope, absl::Span<const int32_t> tokens,
                                  int64_t max_blocks) const {
  Prefix found;
  if (index_.empty()) return found;
  while (static_cast<int64_t>(found.blocks.size()) < max_blocks) {
    const size_t begin = found.blocks.size() * kBlockTokens;
    auto entry = index_.find(MakeKey(scope, found.end, tokens.subspan(begin, kBlockTokens)));
    // A longer prefix can only be indexed below this node.
    if (entry == index_.end()) break;
    found.blocks.push_back(entry->second.block);
    found.end = entry->second.node;
    found.kept += blocks_[entry->second.block].users == 0 ? 1 : 0;
  }
  return found;
}

BlockPool::Node BlockPool::Index(const PrefixScope& scope, Node parent, absl::Span<const int32_t> tokens,
                                 BlockIndex block) {
  auto [entry, added] = index_.try_emplace(MakeKey(scope, parent, tokens), Entry{last_node_ + 1, block});
  if (added) {
    SYNCOPATE_CHECK(blocks_[block].users > 0 && blocks_[block].indexed == nullptr);
    ++last_node_;
    blocks_[block].indexed = &entry->first;
  }
  return entry->second.node;
}

void BlockPool::ForgetOtherVersions(const PolicyVersion& version) {
  version_ = version;
  for (auto block = kept_.begin(); block != kept_.end();) {
    if (blocks_[*block].indexed->scope.IsServedAt(version)) {
      ++block;
      continue;
    }
    Forget(*block);
    AddFree(*block);
    closed_kept_ -= *block >= open_ ? 1 : 0;
    block = kept_.erase(block);
  }
}

void BlockPool::CloseFree(BlockIndex first) {
  SYNCOPATE_CHECK(open_ == blocks() && first >= 0 && first <= open_);
  open_ = first;
  std::erase_if(free_, [first](BlockIndex block) { return block >= first; });
  std::make_heap(free_.begin(), free_.end(), std::greater<>());
  closed_kept_ = std::count_if(kept_.begin(), kept_.end(), [first](BlockIndex block) { return block >= first; });
}

void BlockPool::ForgetKeptInClosed() {
  for (auto block = kept_.begin(); block != kept_.end();) {
    if (*block < open_) {
      ++block;
      continue;
    }
    Forget(*block);
    block = kept_.erase(block);
  }
  closed_kept_ = 0;
}

void BlockPool::Move(BlockIndex from, BlockIndex to) {
  Block& left = blocks_[from];
  Block& taken = blocks_[to];
  SYNCOPATE_CHECK(left.users > 0 && taken.users == 1 && taken.indexed == nullptr);
  const int32_t users = left.users, offers = left.offers;
  Change(taken, users - taken.users, offers);
  Change(left, -users, -offers);
  taken.indexed = std::exchange(left.indexed, nullptr);
  if (taken.indexed != nullptr) index_.find(*taken.indexed)->second.block = to;
  AddFree(from);
}

void BlockPool::Reopen() {
  const int64_t first = std::exchange(open_, blocks());
  closed_kept_ = 0;
  for (int64_t block = first; block < open_; ++block) {
    if (blocks_[block].users == 0 && blocks_[block].indexed == nullptr) AddFree(static_cast<BlockIndex>(block));
  }
}

void BlockPool::ForgetAll() {
  SYNCOPATE_CHECK(available() == blocks());
  for (BlockIndex block : kept_) {
    Forget(block);
    AddFree(block);
  }
  kept_.clear();
}

// The nodes below this block can no longer be found, because node numbers are never reused.
void BlockPool::Forget(BlockIndex block) {
  index_.erase(index_.find(*blocks_[block].indexed));
  blocks_[block].indexed = nullptr;
}

BlockPool::Key BlockPool::MakeKey(const PrefixScope& scope, Node parent, absl::Span<const int32_t> tokens) {
  Key key{scope, parent, {}};
  std::copy_n(tokens.begin(), kBlockTokens, key.tokens.begin());
  return key;
}

size_t BlockPool::KeyHash::operator()(const Key& key) const {
  uint64_t hash = HashCombine(key.parent, static_cast<uint64_t>(key.scope.version.step));
  hash = HashCombine(hash, static_cast<uint64_t>(key.scope.version.epoch ^ (key.scope.adapter << 20)));
  for (int32_t token : key.tokens) hash = HashCombine(hash, static_cast<uint64_t>(token));
  return static_cast<size_t>(hash);
}

}  // namespace syncopate::rollouter
