#include "synchronizer/cuda/stage_program.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/status.h"

namespace syncopate::synchronizer {
namespace {

constexpr int64_t kWordBytes = 8;
constexpr int64_t kElementsPerItem = 8 << 10;

constexpr int64_t RoundDown(int64_t value, int64_t to) { return value / to * to; }
constexpr int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// Cuts bytes [begin, end) of a bucket, starting at one of its words, into items.
void AppendChecks(ByteRange range, int64_t bucket_begin, int32_t digest, CheckItem::How how, NumberKind numbers,
                  std::vector<CheckItem>* items) {
  for (int64_t at = range.begin; at < range.end; at += kCheckItemBytes) {
    CheckItem item;
    item.begin = at;
    item.first_word = (at - bucket_begin) / kWordBytes;
    item.bytes = static_cast<int32_t>(std::min(kCheckItemBytes, range.end - at));
    item.digest = digest;
    item.how = how;
    item.numbers = numbers;
    items->push_back(item);
  }
}

// Turns operations into items of about equal work for thread blocks. The inner part of a dense row is copied as 16-byte
// vectors, which reach the memory's bandwidth and are digested in the same pass. Its ends, and rows that are not dense,
// are copied element by element and digested afterwards in the arena.
class StagePlanner {
 public:
  explicit StagePlanner(const std::vector<ByteRange>& buckets) : buckets_(buckets), digested_(buckets.size()) {}

  void Add(const PackOp& op) {
    const int64_t width = DTypeBytes(op.to);
    const bool dense = op.rows == 1 || op.send_stride == op.row_elements * width;
    // Column numbers in a vector item are 32-bit.
    const bool short_rows = op.rows == 1 || op.row_elements <= std::numeric_limits<uint32_t>::max() / 2;
    if (!dense || !short_rows) {
      AddElements(op, 0, op.rows * op.row_elements);
      return;
    }
    const ByteRange whole{op.send_offset, op.send_offset + op.rows * op.row_elements * width};
    auto bucket = std::upper_bound(buckets_.begin(), buckets_.end(), whole.begin,
                                   [](int64_t at, const ByteRange& b) { return at < b.end; });
    for (int64_t at = whole.begin; at < whole.end; ++bucket) {
      SYNCOPATE_CHECK(bucket != buckets_.end() && bucket->begin <= at);
      const int64_t end = std::min(whole.end, bucket->end);
      AddPart(op, {at, end}, static_cast<size_t>(bucket - buckets_.begin()));
      at = end;
    }
  }

  StageProgram Finish() {
    for (size_t i = 0; i < buckets_.size(); ++i) DigestTheRest(i);
    return std::move(program_);
  }

 private:
  // The bytes of a dense operation in one bucket.
  void AddPart(const PackOp& op, ByteRange part, size_t bucket) {
    const int64_t width = DTypeBytes(op.to);
    const ByteRange wide{RoundUp(part.begin, kVectorBytes), RoundDown(part.end, kVectorBytes)};
    auto element = [&op, width](int64_t byte) { return (byte - op.send_offset) / width; };
    if (wide.begin >= wide.end) {
      AddElements(op, element(part.begin), element(part.end));
      return;
    }
    AddElements(op, element(part.begin), element(wide.begin));
    AddElements(op, element(wide.end), element(part.end));
    const int64_t origin = buckets_[bucket].begin;
    // A digest covers words counted from the bucket's first byte, and a vector must contain whole words.
    const bool digest = origin % kWordBytes == 0;
    for (int64_t at = wide.begin; at < wide.end; at += kPackItemBytes) {
      PackItem item = VectorsAt(op, element(at), std::min(kPackItemBytes, wide.end - at));
      if (digest) {
        item.digest = static_cast<int32_t>(bucket);
        item.first_word = (at - origin) / kWordBytes;
      }
      program_.vectors.push_back(item);
    }
    if (digest) digested_[bucket].push_back(wide);
  }

  static PackItem VectorsAt(const PackOp& op, int64_t first, int64_t bytes) {
    const int64_t row = first / op.row_elements;
    const int64_t column = first % op.row_elements;
    const int64_t elements = bytes / DTypeBytes(op.to);
    PackItem item;
    item.send = op.send_offset + first * DTypeBytes(op.to);
    item.source = op.source_offset + (op.rows == 1 ? 0 : row * op.source_stride);
    item.source_stride = op.rows == 1 ? 0 : op.source_stride;
    item.vectors = static_cast<int32_t>(bytes / kVectorBytes);
    item.tensor = op.tensor;
    item.from = ToNumberKind(op.from);
    item.to = ToNumberKind(op.to);
    // Only an item that crosses the end of a row must compute where the next row begins.
    if (column + elements > op.row_elements) {
      item.first_column = static_cast<uint32_t>(column);
      item.row_elements = static_cast<uint32_t>(op.row_elements);
    } else {
      item.source += column * DTypeBytes(op.from);
    }
    return item;
  }

  void AddElements(const PackOp& op, int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kElementsPerItem) {
      ElementItem item;
      item.send = op.send_offset;
      item.send_stride = op.send_stride;
      item.source = op.source_offset;
      item.source_stride = op.source_stride;
      item.row_elements = op.row_elements;
      item.first = at;
      item.count = static_cast<int32_t>(std::min(kElementsPerItem, end - at));
      item.tensor = op.tensor;
      item.from = ToNumberKind(op.from);
      item.to = ToNumberKind(op.to);
      program_.elements.push_back(item);
    }
  }

  void DigestTheRest(size_t bucket) {
    const ByteRange range = buckets_[bucket];
    const int32_t digest = static_cast<int32_t>(bucket);
    if (range.begin % kWordBytes != 0) {
      AppendChecks(range, range.begin, digest, CheckItem::How::kShifted, NumberKind::kNone, &program_.words);
      return;
    }
    std::vector<ByteRange>& done = digested_[bucket];
    std::sort(done.begin(), done.end(), [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
    done.push_back({range.end, range.end});
    int64_t at = range.begin;
    for (const ByteRange& next : done) {
      AppendChecks({at, next.begin}, range.begin, digest, CheckItem::How::kAligned, NumberKind::kNone, &program_.words);
      at = next.end;
    }
  }

  const std::vector<ByteRange>& buckets_;
  std::vector<std::vector<ByteRange>> digested_;  // ranges that vectors cover, by bucket
  StageProgram program_;
};

// Neighbouring numbers of one kind; padding between them is zero, which is finite in every kind.
struct NumberRun {
  ByteRange range;
  NumberKind kind;
};

std::vector<NumberRun> GetRuns(const std::vector<TypedRange>& numbers) {
  std::vector<NumberRun> runs;
  for (const TypedRange& next : numbers) {
    const NumberKind kind = ToNumberKind(next.dtype);
    if (!runs.empty() && runs.back().kind == kind) {
      runs.back().range.end = next.range.end;
    } else {
      runs.push_back({next.range, kind});
    }
  }
  return runs;
}

// The parts of runs that lie in a bucket.
std::vector<NumberRun> RunsWithin(const std::vector<NumberRun>& runs, ByteRange bucket) {
  std::vector<NumberRun> within;
  auto run = std::upper_bound(runs.begin(), runs.end(), bucket.begin,
                              [](int64_t at, const NumberRun& r) { return at < r.range.end; });
  for (; run != runs.end() && run->range.begin < bucket.end; ++run) {
    within.push_back({{std::max(run->range.begin, bucket.begin), std::min(run->range.end, bucket.end)}, run->kind});
  }
  return within;
}

// Whether one pass is possible: the bucket starts on a word, and no word contains numbers of two kinds.
bool OnePass(ByteRange bucket, const std::vector<NumberRun>& runs) {
  if (bucket.begin % kWordBytes != 0) return false;
  for (size_t i = 1; i < runs.size(); ++i) {
    if (runs[i].range.begin % kWordBytes != 0) return false;
  }
  return true;
}

void CheckInOnePass(ByteRange bucket, const std::vector<NumberRun>& runs, int32_t digest, CheckProgram* program) {
  int64_t at = bucket.begin;
  for (size_t i = 0; i < runs.size(); ++i) {
    const int64_t end = i + 1 < runs.size() ? runs[i + 1].range.begin : bucket.end;
    AppendChecks({at, end}, bucket.begin, digest, CheckItem::How::kAligned, runs[i].kind, &program->digests);
    at = end;
  }
  AppendChecks({at, bucket.end}, bucket.begin, digest, CheckItem::How::kAligned, NumberKind::kNone, &program->digests);
}

void CheckInTwoPasses(ByteRange bucket, const std::vector<NumberRun>& runs, int32_t digest, CheckProgram* program) {
  const CheckItem::How how = bucket.begin % kWordBytes == 0 ? CheckItem::How::kAligned : CheckItem::How::kShifted;
  AppendChecks(bucket, bucket.begin, digest, how, NumberKind::kNone, &program->digests);
  for (const NumberRun& run : runs) {
    AppendChecks(run.range, run.range.begin, -1, CheckItem::How::kNumbers, run.kind, &program->numbers);
  }
}

}  // namespace

NumberKind ToNumberKind(DType dtype) { return dtype == DType::kFloat32 ? NumberKind::kFloat32 : NumberKind::kBFloat16; }

StageProgram MakeStageProgram(const std::vector<PackOp>& ops, const std::vector<ByteRange>& buckets) {
  StagePlanner planner(buckets);
  for (const PackOp& op : ops) planner.Add(op);
  return planner.Finish();
}

CheckProgram MakeCheckProgram(const ShadowContents& contents) {
  const std::vector<NumberRun> runs = GetRuns(contents.numbers);
  CheckProgram program;
  for (size_t i = 0; i < contents.buckets.size(); ++i) {
    const ByteRange bucket = contents.buckets[i];
    const std::vector<NumberRun> within = RunsWithin(runs, bucket);
    const int32_t digest = static_cast<int32_t>(i);
    if (OnePass(bucket, within)) {
      CheckInOnePass(bucket, within, digest, &program);
    } else {
      CheckInTwoPasses(bucket, within, digest, &program);
    }
  }
  auto by_begin = [](const CheckItem& a, const CheckItem& b) { return a.begin < b.begin; };
  std::sort(program.digests.begin(), program.digests.end(), by_begin);
  std::sort(program.numbers.begin(), program.numbers.end(), by_begin);
  return program;
}

}  // namespace syncopate::synchronizer
