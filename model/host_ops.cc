#include <ATen/Parallel.h>

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "model/host_rows.h"
#include "model/ops.h"

namespace syncopate::model {
namespace {

// Longer sequences use products of the BLAS for attention: they are faster there in spite of the copies around them.
constexpr int64_t kLongestByLoops = 512;
// Least numbers per thread, for a row operation on several threads.
constexpr int64_t kNumbersAThread = 1 << 15;

bool AreHostRows(std::initializer_list<at::Tensor> tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && !(tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous())) {
      return false;
    }
  }
  return true;
}

const float* In(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr; }
float* Out(const at::Tensor& tensor) { return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr; }
template <typename T>
T* At(T* data, int64_t offset) {
  return data != nullptr ? data + offset : nullptr;
}

// The loops check no index; this throws for a bad one, as ATen's operators would.
void CheckIndices(const char* what, const at::Tensor& indices, int64_t size) {
  TORCH_CHECK_INDEX(indices.is_contiguous() && indices.scalar_type() == at::kLong, what, " are not dense int64");
  const int64_t* const values = indices.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < indices.numel(); ++i) {
    TORCH_CHECK_INDEX(values[i] >= 0 && values[i] < size, what, ": index ", values[i], " is not below ", size);
  }
}

template <typename Body>
void ForRows(int64_t rows, int64_t columns, const Body& body) {
  at::parallel_for(0, rows, std::max<int64_t>(1, kNumbersAThread / columns), body);
}

HostSequence GetShape(const at::Tensor& qkv, const Ops::AttentionShape& shape) {
  return {.heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .head_dim = qkv.size(1) / (shape.heads + 2 * shape.kv_heads),
          .window = shape.window};
}

// Calls body(first row, sequence, scratch) for each sequence; scratch has twice as many numbers as the longest has
// rows.
template <typename Body>
void ForSequences(const PackedSequences& sequences, HostSequence shape, const Body& body) {
  std::vector<int64_t> starts = {0};
  for (int64_t length : sequences.lengths()) starts.push_back(starts.back() + length);
  const auto count = static_cast<int64_t>(sequences.lengths().size());
  const int64_t numbers = sequences.rows() * shape.row_size() / count;
  ForRows(count, numbers, [&, shape](int64_t begin, int64_t end) {
    std::vector<float> scratch(static_cast<size_t>(2 * sequences.longest()));
    HostSequence sequence = shape;
    for (int64_t i = begin; i < end; ++i) {
      sequence.length = sequences.lengths()[static_cast<size_t>(i)];
      body(starts[static_cast<size_t>(i)], sequence, scratch.data());
    }
  });
}

// Ops for float32 on the CPU; everything else goes to AtenOps(), and so do plain products.
class OpsOnHost final : public Ops {
 public:
  explicit OpsOnHost(const HostRows& rows) : rows_(rows) {}

  Normed AddNorm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps) const override {
    if (!AreHostRows({x, residual, weight})) return AtenOps().AddNorm(x, residual, weight, eps);
    const int64_t columns = x.size(1);
    Normed result{residual.defined() ? at::empty_like(x) : x, at::empty_like(x), at::empty({x.size(0)}, x.options())};
    float* const sum = residual.defined() ? Out(result.sum) : nullptr;
    ForRows(x.size(0), columns, [&](int64_t begin, int64_t end) {
      const int64_t at = begin * columns;
      rows_.Norm(In(x) + at, At(In(residual), at), In(weight), static_cast<float>(eps), end - begin, columns,
                 At(sum, at), Out(result.y) + at, Out(result.rstd) + begin);
    });
    return result;
  }

  NormGradient AddNormBackward(const at::Tensor& dy, const at::Tensor& sum, const at::Tensor& rstd,
                               const at::Tensor& weight, const at::Tensor& passed, const at::Tensor& dweight,
                               bool wanted) const override {
    if (!AreHostRows({dy, sum, rstd, weight, passed, dweight})) {
      return AtenOps().AddNormBackward(dy, sum, rstd, weight, passed, dweight, wanted);
    }
    NormGradient result{at::empty_like(sum), wanted ? at::empty_like(sum) : at::Tensor()};
    // Runs on one thread, because a weight's gradient is a sum over all rows. It is a sum in double, because it has
    // thousands of terms.
    std::vector<double> sums(static_cast<size_t>(sum.size(1)));
    rows_.NormBackward(In(dy), In(sum), In(rstd), In(weight), In(passed), sum.size(0), sum.size(1), Out(result.dsum),
                       sums.data(), Out(result.y));
    if (!dweight.defined()) return result;
    float* const total = Out(dweight);
    for (size_t i = 0; i < sums.size(); ++i) total[i] += static_cast<float>(sums[i]);
    return result;
  }

  void Rotate(const at::Tensor& x, int64_t heads, const at::Tensor& cos, const at::Tensor& sin,
              const at::Tensor& positions, bool inverse) const override {
    if (!AreHostRows({x, cos, sin})) return AtenOps().Rotate(x, heads, cos, sin, positions, inverse);
    CheckIndices("positions", positions, cos.size(0));
    const int64_t columns = x.size(1);
    ForRows(x.size(0), columns, [&](int64_t begin, int64_t end) {
      rows_.Rotate(Out(x) + begin * columns, end - begin, columns, heads, cos.size(1), In(cos), In(sin), cos.size(1),
                   positions.const_data_ptr<int64_t>() + begin, inverse);
    });
  }

  at::Tensor SwiGlu(const at::Tensor& gate_up) const override {
    if (!AreHostRows({gate_up})) return AtenOps().SwiGlu(gate_up);
    const int64_t width = gate_up.size(1) / 2;
    at::Tensor y = at::empty({gate_up.size(0), width}, gate_up.options());
    ForRows(gate_up.size(0), width, [&](int64_t begin, int64_t end) {
      rows_.SwiGlu(In(gate_up) + 2 * begin * width, end - begin, width, Out(y) + begin * width);
    });
    return y;
  }

  SwiGluGradient SwiGluBackward(const at::Tensor& dy, const at::Tensor& gate_up, bool wanted) const override {
    if (!AreHostRows({dy, gate_up})) return AtenOps().SwiGluBackward(dy, gate_up, wanted);
    const int64_t width = gate_up.size(1) / 2;
    SwiGluGradient result{at::empty_like(gate_up), wanted ? at::empty_like(dy) : at::Tensor()};
    ForRows(gate_up.size(0), width, [&](int64_t begin, int64_t end) {
      const int64_t at = begin * width;
      rows_.SwiGluBackward(In(dy) + at, In(gate_up) + 2 * at, end - begin, width, Out(result.dgate_up) + 2 * at,
                           At(Out(result.y), at));
    });
    return result;
  }

  Attended Attend(const at::Tensor& qkv, const AttentionShape& shape, const PackedSequences& sequences) const override {
    if (!AreHostRows({qkv}) || sequences.longest() > kLongestByLoops) {
      return AtenOps().Attend(qkv, shape, sequences);
    }
    const HostSequence rows = GetShape(qkv, shape);
    Attended result{at::empty({qkv.size(0), rows.query_size()}, qkv.options()),
                    {at::empty({qkv.size(0), shape.heads}, qkv.options())}};
    ForSequences(sequences, rows, [&](int64_t row, const HostSequence& sequence, float* scratch) {
      rows_.Attend(sequence, In(qkv) + row * sequence.row_size(), Out(result.y) + row * sequence.query_size(),
                   Out(result.stats[0]) + row * shape.heads, scratch);
    });
    return result;
  }

  at::Tensor AttendBackward(const at::Tensor& dy, const at::Tensor& qkv, const Attended& forward,
                            const AttentionShape& shape, const PackedSequences& sequences) const override {
    // The backward pass must use the implementation of the forward pass: AtenOps() leaves no statistics.
    if (forward.stats.empty()) return AtenOps().AttendBackward(dy, qkv, forward, shape, sequences);
    const at::Tensor dense = dy.contiguous();
    at::Tensor dqkv = at::empty_like(qkv);
    ForSequences(sequences, GetShape(qkv, shape), [&](int64_t row, const HostSequence& sequence, float* scratch) {
      const int64_t query = row * sequence.query_size(), all = row * sequence.row_size();
      rows_.AttendBackward(sequence, In(dense) + query, In(qkv) + all, In(forward.y) + query,
                           In(forward.stats[0]) + row * shape.heads, Out(dqkv) + all, scratch);
    });
    return dqkv;
  }

  HeadRows Head(const at::Tensor& logits, const at::Tensor& targets, double temperature) const override {
    if (!AreHostRows({logits})) return AtenOps().Head(logits, targets, temperature);
    const int64_t rows = logits.size(0), vocabulary = logits.size(1);
    CheckIndices("targets", targets, vocabulary);
    HeadRows result{at::empty({rows}, logits.options()), at::empty({rows}, logits.options()),
                    at::empty({rows}, logits.options()), at::empty({rows}, logits.options())};
    ForRows(rows, vocabulary, [&](int64_t begin, int64_t end) {
      rows_.Head(In(logits) + begin * vocabulary, targets.const_data_ptr<int64_t>() + begin,
                 static_cast<float>(temperature), end - begin, vocabulary, Out(result.logprob) + begin,
                 Out(result.entropy) + begin, Out(result.log_sum_exp) + begin, Out(result.top_probability) + begin);
    });
    return result;
  }

  at::Tensor HeadBackward(const at::Tensor& logits, const at::Tensor& targets, const HeadRows& rows,
                          const at::Tensor& dlogprob, const at::Tensor& dentropy, double temperature,
                          at::ScalarType to) const override {
    if (!AreHostRows({logits, dlogprob, dentropy}) || to != at::kFloat) {
      return AtenOps().HeadBackward(logits, targets, rows, dlogprob, dentropy, temperature, to);
    }
    const int64_t vocabulary = logits.size(1);
    CheckIndices("targets", targets, vocabulary);
    ForRows(logits.size(0), vocabulary, [&](int64_t begin, int64_t end) {
      // Writes to the memory of the logits, which are the largest tensor and not needed again.
      rows_.HeadBackward(Out(logits) + begin * vocabulary, targets.const_data_ptr<int64_t>() + begin,
                         In(rows.entropy) + begin, In(rows.log_sum_exp) + begin, In(dlogprob) + begin,
                         At(In(dentropy), begin), static_cast<float>(temperature), end - begin, vocabulary);
    });
    return logits;
  }

  void AddWeightGradient(const at::Tensor& dweight, const at::Tensor& dy, const at::Tensor& x) const override {
    AtenOps().AddWeightGradient(dweight, dy, x);
  }
  void AddBiasGradient(const at::Tensor& dbias, const at::Tensor& dy) const override {
    AtenOps().AddBiasGradient(dbias, dy);
  }
  void AddEmbeddingGradient(const at::Tensor& dtable, const at::Tensor& ids, const at::Tensor& dx) const override {
    AtenOps().AddEmbeddingGradient(dtable, ids, dx);
  }
  at::Tensor UpdateByAdamW(const AdamW& update, const at::Tensor& factor, const AdamWTensors& tensors) const override {
    return AtenOps().UpdateByAdamW(update, factor, tensors);
  }

  void AddDigestSums(const at::Tensor& words, const std::vector<DigestRun>& runs,
                     const at::Tensor& sums) const override {
    AtenOps().AddDigestSums(words, runs, sums);
  }

 private:
  const HostRows& rows_;
};

}  // namespace

std::unique_ptr<const Ops> MakeHostOps(const HostRows& rows) { return std::make_unique<OpsOnHost>(rows); }

const Ops& HostOps() {
  static const OpsOnHost ops(FastestHostRows());
  return ops;
}

}  // namespace syncopate::model
