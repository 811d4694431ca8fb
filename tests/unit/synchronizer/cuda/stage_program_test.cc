#include "synchronizer/cuda/stage_program.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/digest.h"
#include "base/half.h"
#include "base/mix64.h"
#include "synchronizer/plan/pack.h"
#include "synchronizer/transport/finite_check.h"
#include "tests/support/pack_cases.h"

// Carries out the kernels' work on the host, item by item as kernel_work.h defines it, so that the items of a plan are
// tested without a GPU.
namespace syncopate::synchronizer {
namespace {

int64_t GetWidth(NumberKind kind) { return kind == NumberKind::kFloat32 ? 4 : 2; }

void PackElement(NumberKind from, NumberKind to, const char* source, char* destination) {
  if (from == to) {
    std::memcpy(destination, source, static_cast<size_t>(GetWidth(to)));
    return;
  }
  float value;
  std::memcpy(&value, source, 4);
  const uint16_t rounded = RoundToBFloat16(value);
  std::memcpy(destination, &rounded, 2);
}

class HostKernels {
 public:
  HostKernels(char* arena, size_t digests) : arena_(arena), sums_(digests) {}

  void Run(const PackItem& item, const char* base) {
    EXPECT_EQ(item.send % kVectorBytes, 0);
    EXPECT_LE(item.vectors * kVectorBytes, kPackItemBytes);
    const int64_t elements = item.vectors * kVectorBytes / GetWidth(item.to);
    for (int64_t e = 0; e < elements; ++e) {
      const int64_t at = item.first_column + e;
      const int64_t row = item.row_elements == 0 ? 0 : at / item.row_elements;
      const int64_t column = item.row_elements == 0 ? at : at % item.row_elements;
      PackElement(item.from, item.to, base + item.source + row * item.source_stride + column * GetWidth(item.from),
                  arena_ + item.send + e * GetWidth(item.to));
    }
    if (item.digest >= 0) AddWords(item.send, item.vectors * kVectorBytes, item.first_word, item.digest);
  }

  void Run(const ElementItem& item, const char* base) {
    for (int64_t e = item.first; e < item.first + item.count; ++e) {
      const int64_t row = e / item.row_elements;
      const int64_t column = e % item.row_elements;
      PackElement(item.from, item.to, base + item.source + row * item.source_stride + column * GetWidth(item.from),
                  arena_ + item.send + row * item.send_stride + column * GetWidth(item.to));
    }
  }

  void Run(const CheckItem& item) {
    EXPECT_LE(item.bytes, kCheckItemBytes);
    EXPECT_GT(item.bytes, 0);
    if (item.how != CheckItem::How::kNumbers) {
      EXPECT_EQ(item.begin % 8 == 0, item.how == CheckItem::How::kAligned);
    }
    if (item.digest >= 0) AddWords(item.begin, item.bytes, item.first_word, item.digest);
    if (item.numbers == NumberKind::kNone) return;
    // Whole words of memory, as the kernel reads them; bytes outside the item are zero.
    std::vector<char> words(static_cast<size_t>((item.begin % 8 + item.bytes + 7) / 8 * 8), 0);
    std::memcpy(words.data() + item.begin % 8, arena_ + item.begin, static_cast<size_t>(item.bytes));
    const DType dtype = item.numbers == NumberKind::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
    const int64_t count = static_cast<int64_t>(words.size()) / DTypeBytes(dtype);
    if (FindNonFinite(dtype, words.data(), count).has_value()) non_finite_.push_back(item.begin);
  }

  std::vector<uint64_t> Digests(const std::vector<ByteRange>& buckets) const {
    std::vector<uint64_t> digests;
    for (size_t i = 0; i < buckets.size(); ++i) {
      digests.push_back(Mix64(static_cast<uint64_t>(buckets[i].size()) + sums_[i]));
    }
    return digests;
  }
  const std::vector<int64_t>& non_finite() const { return non_finite_; }

 private:
  void AddWords(int64_t begin, int64_t bytes, int64_t first_word, int32_t digest) {
    for (int64_t at = 0; at < bytes; at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, arena_ + begin + at, static_cast<size_t>(std::min<int64_t>(8, bytes - at)));
      sums_[digest] += Mix64(word + static_cast<uint64_t>(first_word + at / 8 + 1) * kDigestStride);
    }
  }

  char* const arena_;
  std::vector<uint64_t> sums_;
  std::vector<int64_t> non_finite_;
};

void ExpectPackedAndDigested(const PackCase& made) {
  const PackedCase expected = PackExpected(made);
  std::vector<char> arena = PoisonedArena(expected);
  const StageProgram program = MakeStageProgram(made.ops, made.buckets);
  HostKernels kernels(arena.data(), made.buckets.size());
  for (const ElementItem& item : program.elements) kernels.Run(item, made.shard.data());
  for (const PackItem& item : program.vectors) kernels.Run(item, made.shard.data());
  for (const CheckItem& item : program.words) kernels.Run(item);
  EXPECT_EQ(arena, expected.arena);
  EXPECT_EQ(kernels.Digests(made.buckets), DigestRanges(made.buckets, expected.arena.data()));
}

TEST(StageProgramTest, PacksAndDigestsWhateverTheAlignment) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    ExpectPackedAndDigested(RandomPackCase(seed, {.bf16_only = seed % 3 == 0}));
  }
}

TEST(StageProgramTest, PacksAndDigestsOperationsOfManyItems) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    SCOPED_TRACE(seed);
    ExpectPackedAndDigested(RandomPackCase(seed, {.max_elements = 200'000, .ops = 4}));
  }
}

TEST(StageProgramTest, ReadsAnAlignedTensorInOnePass) {
  PackCase made;
  made.ops = {{0, DType::kFloat32, DType::kBFloat16, 0, 0, 0, 0, 1, 1 << 20}};
  made.send_bytes = 2 << 20;
  made.buckets = {{0, 1 << 20}, {1 << 20, 2 << 20}};
  const StageProgram program = MakeStageProgram(made.ops, made.buckets);
  EXPECT_EQ(program.vectors.size(), static_cast<size_t>(made.send_bytes / kPackItemBytes));
  EXPECT_TRUE(program.elements.empty());
  EXPECT_TRUE(program.words.empty());
}

TEST(StageProgramTest, ReadsASplitByColumnsInOnePass) {
  // The right half of a [1000, 2048] matrix.
  PackCase made;
  made.ops = {{0, DType::kFloat32, DType::kBFloat16, 4096, 8192, 0, 2048, 1000, 1024}};
  made.send_bytes = 1000 * 2048;
  made.buckets = {{0, made.send_bytes}};
  const StageProgram program = MakeStageProgram(made.ops, made.buckets);
  EXPECT_TRUE(program.elements.empty());
  EXPECT_TRUE(program.words.empty());
}

// A shadow arena with tensors of both dtypes, and buckets that start at any byte.
struct CheckCase {
  ShadowContents contents;
  std::vector<char> arena;
};

CheckCase RandomCheckCase(uint64_t seed) {
  std::mt19937_64 random(seed);
  auto below = [&random](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  CheckCase made;
  const int64_t alignment = seed % 2 == 0 ? 256 : 4;
  for (int64_t at = 0; made.contents.numbers.size() < 8;) {
    const DType dtype = below(3) == 0 ? DType::kFloat32 : DType::kBFloat16;
    const int64_t bytes = (1 + below(4000)) * DTypeBytes(dtype);
    made.contents.numbers.push_back({{at, at + bytes}, dtype, "t" + std::to_string(made.contents.numbers.size())});
    at = (at + bytes + alignment - 1) / alignment * alignment;
  }
  const int64_t end = made.contents.numbers.back().range.end;
  for (int64_t begin = 0; begin < end;) {
    const int64_t size = seed % 2 == 0 ? 1024 * (1 + below(8)) : 4 * (1 + below(2000));
    made.contents.buckets.push_back({begin, std::min(begin + size, end)});
    begin += size;
  }
  std::shuffle(made.contents.buckets.begin(), made.contents.buckets.end(), random);
  made.arena.assign(static_cast<size_t>(end), 0);
  for (const TypedRange& numbers : made.contents.numbers) {
    for (int64_t at = numbers.range.begin; at + 1 < numbers.range.end; at += 2) {
      const uint16_t bits = static_cast<uint16_t>((random() & 0x807f) | (119 + random() % 16) << 7);
      std::memcpy(&made.arena[static_cast<size_t>(at)], &bits, 2);
    }
  }
  return made;
}

HostKernels RunCheck(const CheckProgram& program, CheckCase* made) {
  HostKernels kernels(made->arena.data(), made->contents.buckets.size());
  for (const CheckItem& item : program.digests) kernels.Run(item);
  for (const CheckItem& item : program.numbers) kernels.Run(item);
  return kernels;
}

TEST(CheckProgramTest, DigestsBucketsThatStartAnywhere) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    CheckCase made = RandomCheckCase(seed);
    const HostKernels kernels = RunCheck(MakeCheckProgram(made.contents), &made);
    EXPECT_EQ(kernels.Digests(made.contents.buckets), DigestRanges(made.contents.buckets, made.arena.data()));
    EXPECT_TRUE(kernels.non_finite().empty());
  }
}

TEST(CheckProgramTest, FindsAnyNumberThatIsNotFinite) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    CheckCase made = RandomCheckCase(seed);
    const TypedRange& numbers = made.contents.numbers[seed % made.contents.numbers.size()];
    const int64_t width = DTypeBytes(numbers.dtype);
    const int64_t element = static_cast<int64_t>(seed * 7919) % (numbers.range.size() / width);
    const int64_t at = numbers.range.begin + element * width;
    const uint32_t infinity = numbers.dtype == DType::kFloat32 ? 0x7f800000u : 0x0000ff80u;
    std::memcpy(&made.arena[static_cast<size_t>(at)], &infinity, static_cast<size_t>(width));
    const HostKernels kernels = RunCheck(MakeCheckProgram(made.contents), &made);
    ASSERT_EQ(kernels.non_finite().size(), 1u);
    EXPECT_LE(kernels.non_finite().front(), at + width - 1);
    EXPECT_GT(kernels.non_finite().front() + kCheckItemBytes, at);
  }
}

TEST(CheckProgramTest, ItemsOfAListAreDisjointAndInOrder) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const CheckProgram program = MakeCheckProgram(RandomCheckCase(seed).contents);
    for (const std::vector<CheckItem>* items : {&program.digests, &program.numbers}) {
      for (size_t i = 1; i < items->size(); ++i) {
        EXPECT_GE((*items)[i].begin, (*items)[i - 1].begin + (*items)[i - 1].bytes);
      }
    }
  }
}

TEST(CheckProgramTest, LooksAtAlignedBucketsOnce) {
  ShadowContents contents;
  contents.numbers = {{{0, 1 << 20}, DType::kBFloat16, "a"}, {{1 << 20, 2 << 20}, DType::kFloat32, "b"}};
  contents.buckets = {{0, 2 << 20}};
  const CheckProgram program = MakeCheckProgram(contents);
  EXPECT_TRUE(program.numbers.empty());
  int64_t bytes = 0;
  for (const CheckItem& item : program.digests) bytes += item.bytes;
  EXPECT_EQ(bytes, 2 << 20);
}

}  // namespace
}  // namespace syncopate::synchronizer
