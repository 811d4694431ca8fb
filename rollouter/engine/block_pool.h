#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"
#include "base/policy_version.h"
#include "rollouter/engine/step_plan.h"

namespace syncopate::rollouter {

// What keys and values depend on besides the tokens. Blocks of different scopes are never shared.
struct PrefixScope {
  PolicyVersion version;  // of the base (kBaseAdapter) the epoch alone: within an epoch installs do not change it
  int64_t adapter = 0;
  static PrefixScope Make(const PolicyVersion& version, int64_t adapter) {
    return adapter == kBaseAdapter ? PrefixScope{{version.epoch, 0}, adapter} : PrefixScope{version, adapter};
  }
  // Whether sequences that start while `version` serves may continue from blocks of this scope.
  bool IsServedAt(const PolicyVersion& version) const { return *this == Make(version, adapter); }
  friend bool operator==(const PrefixScope&, const PrefixScope&) = default;
};

// Tracks the users of the blocks of a storage, and which blocks contain a prefix that another sequence can continue.
// Each block counts its users. An indexed block of a prefix keeps its contents when its last user has left, until its
// memory is needed; the block that lost its last user first is reused first. Pure bookkeeping; not thread-safe.
//
// The last blocks can be closed, so that their memory may serve for something else: no block from `open()` on is
// allocated any more, and a closed block that loses its last user does not become free. The caller that closes blocks
// moves their users to other blocks.
//
// A user can offer a block: it does not run now and would leave the block if memory were needed. The pool counts the
// blocks that would be available if all offering users left.
class BlockPool {
 public:
  // A node of the tree of prefixes; 0 is the root of every scope.
  using Node = uint64_t;

  // `max_kept` is the most blocks without a user that are kept for their contents.
  BlockPool(int64_t blocks, int64_t max_kept);

  int64_t blocks() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t open() const { return open_; }  // blocks [0, open()) may be allocated
  // The number of blocks that Allocate() can return: free blocks, and blocks that are only kept for their contents.
  int64_t available() const { return static_cast<int64_t>(free_.size() + kept_.size()) - closed_kept_; }
  int32_t users(BlockIndex block) const { return blocks_[block].users; }
  // The number of blocks in use all of whose users offer them.
  int64_t offered() const { return offered_; }
  bool IsOffered(BlockIndex block) const { return IsOffered(blocks_[block]); }
  int32_t offers(BlockIndex block) const { return blocks_[block].offers; }

  // Returns a block with one user and without contents: the free one with the lowest number, so that the last blocks
  // are in use only when many are. Precondition: available() > 0.
  BlockIndex Allocate();
  // Precondition: the block has a user, or Find() has just returned it.
  void AddUser(BlockIndex block);
  void RemoveUser(BlockIndex block);
  // One user of the block offers it, or withdraws its offer. Withdraw before RemoveUser().
  void Offer(BlockIndex block) { Change(blocks_[block], /*users=*/0, /*offers=*/1); }
  void Withdraw(BlockIndex block) { Change(blocks_[block], /*users=*/0, /*offers=*/-1); }

  struct Prefix {
    std::vector<BlockIndex> blocks;
    Node end = 0;
    int64_t kept = 0;  // the number of `blocks` without a user
  };
  // Returns the longest indexed prefix of `tokens`, of at most `max_blocks` blocks. Changes nothing; AddUser() takes
  // the blocks.
  Prefix Find(const PrefixScope& scope, absl::Span<const int32_t> tokens, int64_t max_blocks) const;
  // Records that `block` contains `tokens` (kBlockTokens of them) after the prefix of `parent`. Returns the node, which
  // may belong to another block with the same contents; `block` is then not indexed. Precondition: users(block) > 0.
  Node Index(const PrefixScope& scope, Node parent, absl::Span<const int32_t> tokens, BlockIndex block);
  // Makes `version` the only version that Find() will be asked for: blocks kept for other versions become free, except
  // those of the base.
  void ForgetOtherVersions(const PolicyVersion& version);
  // Closes the blocks from `first` on: those that are free are taken out. Precondition: none are closed.
  void CloseFree(BlockIndex first);
  // Forgets the contents of closed blocks that are only kept for them.
  void ForgetKeptInClosed();
  // Gives the users of `from` and its place in the tree of prefixes to `to`. Precondition: Allocate() has just returned
  // `to`, and `from` has users.
  void Move(BlockIndex from, BlockIndex to);
  // Ends the closing: closed blocks without a user are free again.
  void Reopen();
  // Forgets the contents of all blocks. Precondition: no block has a user, and none are closed.
  void ForgetAll();

 private:
  struct Key {
    PrefixScope scope;
    Node parent = 0;
    std::array<int32_t, kBlockTokens> tokens;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  struct Entry {
    Node node = 0;
    BlockIndex block = 0;
  };
  struct Block {
    int32_t users = 0;
    int32_t offers = 0;                       // users that offer the block
    const Key* indexed = nullptr;             // its key in index_; null: not indexed
    std::list<BlockIndex>::iterator in_kept;  // valid if users is 0 and the block is indexed
  };

  static bool IsOffered(const Block& block) { return block.users > 0 && block.users == block.offers; }
  // Adds to the numbers of users and offers of a block.
  void Change(Block& block, int32_t users, int32_t offers);
  static Key MakeKey(const PrefixScope& scope, Node parent, absl::Span<const int32_t> tokens);
  void Forget(BlockIndex block);
  void AddFree(BlockIndex block);
  // Makes the open block free that is kept for its contents and lost its last user first.
  void FreeOldestKept();

  const size_t max_kept_;
  std::vector<Block> blocks_;
  int64_t open_ = 0;
  int64_t offered_ = 0;
  std::vector<BlockIndex> free_;  // a heap: the first one has the lowest number
  std::list<BlockIndex> kept_;    // the first one is reused first
  int64_t closed_kept_ = 0;       // those of kept_ that are closed: none after ForgetKeptInClosed()
  // Element addresses are stable. The map is never iterated over, because its order is not defined.
  std::unordered_map<Key, Entry, KeyHash> index_;
  PolicyVersion version_;
  Node last_node_ = 0;
};

}  // namespace syncopate::rollouter
