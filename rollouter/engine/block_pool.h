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

// What keys and values depend on beside the tokens. Blocks of different scopes are never shared.
struct PrefixScope {
  PolicyVersion version;
  int64_t adapter = 0;
  friend bool operator==(const PrefixScope&, const PrefixScope&) = default;
};

// The blocks of a storage: who uses them, and which of them hold a prefix that another sequence can go on from. Blocks
// are counted by their users. A block that is indexed as part of a prefix stays when its last user has gone, until its
// memory is needed, the one that was left longest ago first. Pure bookkeeping; not thread-safe.
class BlockPool {
 public:
  // A place in the tree of prefixes; 0 is where every prefix of a scope begins.
  using Node = uint64_t;

  // `max_kept`: how many blocks without a user are kept for their contents.
  BlockPool(int64_t blocks, int64_t max_kept);

  int64_t blocks() const { return static_cast<int64_t>(blocks_.size()); }
  // How many Allocate() can give: free ones, and those that are kept for their contents alone.
  int64_t available() const { return static_cast<int64_t>(free_.size() + kept_.size()); }
  int32_t users(BlockIndex block) const { return blocks_[block].users; }

  // A block with one user, and no contents that anybody relies on. Low numbers first. Precondition: available() > 0.
  BlockIndex Allocate();
  // Precondition: it has a user, or Find() has just named it.
  void AddUser(BlockIndex block);
  void RemoveUser(BlockIndex block);

  struct Prefix {
    std::vector<BlockIndex> blocks;
    Node end = 0;
    int64_t kept = 0;  // of the blocks: had no user
  };
  // The longest indexed prefix of `tokens` of at most `max_blocks` blocks. Changes nothing; AddUser() takes the blocks.
  Prefix Find(const PrefixScope& scope, absl::Span<const int32_t> tokens, int64_t max_blocks) const;
  // `block` holds `tokens` (kBlockTokens of them) after what `parent` stands for. Returns the place of it, which may be
  // that of another block with the same contents; this one is then not indexed. Precondition: users(block) > 0.
  Node Index(const PrefixScope& scope, Node parent, absl::Span<const int32_t> tokens, BlockIndex block);
  // Nothing of other versions is looked for any more: blocks that were kept for it are free.
  void ForgetOtherVersions(const PolicyVersion& version);
  // Nothing that blocks hold is looked for any more. Precondition: no block has a user.
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
    const Key* indexed = nullptr;             // of index_; null: not part of it
    std::list<BlockIndex>::iterator in_kept;  // if users is 0 and it is indexed
  };

  static Key MakeKey(const PrefixScope& scope, Node parent, absl::Span<const int32_t> tokens);
  void Forget(BlockIndex block);

  const size_t max_kept_;
  std::vector<Block> blocks_;
  std::vector<BlockIndex> free_;  // the last one is next
  std::list<BlockIndex> kept_;    // the first one is given away first
  // Element addresses are stable. Never iterated over: its order is not defined.
  std::unordered_map<Key, Entry, KeyHash> index_;
  PolicyVersion version_;
  Node last_node_ = 0;
};

}  // namespace syncopate::rollouter
