#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/cuda/cudnn_attention.h"
#include "model/cuda/train_kernels.h"
#include "model/ops.h"

namespace syncopate::model {
namespace {

using kernels::Number;

Number GetNumber(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 ? Number::kBFloat16 : Number::kFloat32;
}
int64_t MakeVector(const at::Tensor& x) { return kernels::VectorElements(GetNumber(x)); }

cudaStream_t GetStream(const at::Tensor& x) { return c10::cuda::getCurrentCUDAStream(x.device().index()).stream(); }

at::Tensor Rows32(const at::Tensor& like, at::IntArrayRef shape) {
  return at::empty(shape, like.options().dtype(at::kFloat));
}

const void* DataOrNull(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }
void* PlaceOrNull(const at::Tensor& x) { return x.defined() ? x.mutable_data_ptr() : nullptr; }

// Has libtorch's FlashAttention-2 add in a fixed order, for which it reads libtorch's global switch.
class OrderedFlash {
 public:
  explicit OrderedFlash(bool wanted) : before_(at::globalContext().deterministicAlgorithms()) {
    if (wanted) at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
  ~OrderedFlash() { at::globalContext().setDeterministicAlgorithms(before_, /*warn_only=*/false); }
  OrderedFlash(const OrderedFlash&) = delete;
  OrderedFlash& operator=(const OrderedFlash&) = delete;

 private:
  const bool before_;
};

// Neighbouring sequences that one call of cuDNN takes.
struct SequenceGroup {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t longest = 0;
};

// All of them; or, for a deterministic backward pass, as many at once as its memory allows, by their lengths alone. A
// sequence that is too long by itself is a group that CudnnAttention refuses.
std::vector<SequenceGroup> MakeGroups(const std::vector<int64_t>& lengths, int64_t heads, bool deterministic) {
  std::vector<SequenceGroup> groups;
  for (const int64_t length : lengths) {
    if (!groups.empty()) {
      SequenceGroup& last = groups.back();
      const int64_t longest = std::max(last.longest, length);
      if (!deterministic ||
          CudnnAttention::OrderedBytes(heads, last.count + 1, longest) <= CudnnAttention::kMostOrderedBytes) {
        ++last.count;
        last.longest = longest;
        continue;
      }
    }
    groups.push_back({groups.empty() ? 0 : groups.back().begin + groups.back().count, 1, length});
  }
  return groups;
}

// A term as the kernels take it, with memory of its own if `outer` is a transposed view.
class LowRankOperand {
 public:
  explicit LowRankOperand(const Ops::LowRank& term) {
    if (!term.inner.defined()) return;
    outer_ = term.outer.contiguous();
    term_ = {term.inner.const_data_ptr(), term.inner.stride(0), outer_.const_data_ptr(),
             static_cast<int32_t>(outer_.size(1)), static_cast<float>(term.scale)};
  }
  const kernels::LowRank& term() const { return term_; }

 private:
  at::Tensor outer_;
  kernels::LowRank term_;
};

// Ops by our kernels for rows that allow 16-byte loads, as those of all published models do; by ATen for the rest.
class OpsByKernels final : public Ops {
 public:
  explicit OpsByKernels(bool deterministic) : deterministic_(deterministic) {}

  Normed AddNorm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps) const override {
    if (!FitsNorm(x)) return AtenOps().AddNorm(x, residual, weight, eps);
    const c10::cuda::CUDAGuard guard(x.device());
    Normed result{residual.defined() ? at::empty_like(x) : x, at::empty_like(x), Rows32(x, {x.size(0)})};
    const kernels::NormArguments norm{GetNumber(x), x.size(0), x.size(1), weight.const_data_ptr()};
    C10_CUDA_CHECK(kernels::AddNorm(norm, x.const_data_ptr(), DataOrNull(residual), static_cast<float>(eps),
                                    result.sum.mutable_data_ptr(), result.y.mutable_data_ptr(),
                                    result.rstd.mutable_data_ptr<float>(), GetStream(x)));
    return result;
  }

  NormGradient AddNormBackward(const at::Tensor& dy, const at::Tensor& sum, const at::Tensor& rstd,
                               const at::Tensor& weight, const at::Tensor& passed, const at::Tensor& dweight,
                               bool wanted) const override {
    if (!FitsNorm(sum)) return AtenOps().AddNormBackward(dy, sum, rstd, weight, passed, dweight, wanted);
    const c10::cuda::CUDAGuard guard(sum.device());
    NormGradient result{at::empty_like(sum), wanted ? at::empty_like(sum) : at::Tensor()};
    const at::Tensor partial =
        dweight.defined() ? Rows32(sum, {kernels::NormPartialRows(sum.size(0)), sum.size(1)}) : at::Tensor();
    const kernels::NormArguments norm{GetNumber(sum), sum.size(0), sum.size(1), weight.const_data_ptr()};
    C10_CUDA_CHECK(kernels::AddNormBackward(
        norm, dy.const_data_ptr(), sum.const_data_ptr(), rstd.const_data_ptr<float>(), DataOrNull(passed),
        result.dsum.mutable_data_ptr(), PlaceOrNull(result.y), static_cast<float*>(PlaceOrNull(partial)),
        static_cast<float*>(PlaceOrNull(dweight)), GetStream(sum)));
    return result;
  }

  void Rotate(const at::Tensor& x, int64_t heads, const at::Tensor& cos, const at::Tensor& sin,
              const at::Tensor& positions, bool inverse) const override {
    if (cos.size(1) % MakeVector(x) != 0 || x.stride(0) % MakeVector(x) != 0) {
      return AtenOps().Rotate(x, heads, cos, sin, positions, inverse);
    }
    const c10::cuda::CUDAGuard guard(x.device());
    const kernels::RotateArguments rotate{GetNumber(x), x.size(0), x.stride(0), heads, cos.size(1), inverse};
    C10_CUDA_CHECK(kernels::Rotate(rotate, x.mutable_data_ptr(), cos.const_data_ptr<float>(),
                                   sin.const_data_ptr<float>(), positions.const_data_ptr<int64_t>(), GetStream(x)));
  }

  at::Tensor SwiGlu(const at::Tensor& gate_up) const override {
    const int64_t width = gate_up.size(1) / 2;
    if (width % MakeVector(gate_up) != 0) return AtenOps().SwiGlu(gate_up);
    const c10::cuda::CUDAGuard guard(gate_up.device());
    at::Tensor y = at::empty({gate_up.size(0), width}, gate_up.options());
    C10_CUDA_CHECK(kernels::SwiGlu(GetNumber(gate_up), gate_up.const_data_ptr(), gate_up.size(0), width,
                                   y.mutable_data_ptr(), GetStream(gate_up)));
    return y;
  }

  SwiGluGradient SwiGluBackward(const at::Tensor& dy, const at::Tensor& gate_up, bool wanted) const override {
    const int64_t width = gate_up.size(1) / 2;
    if (width % MakeVector(gate_up) != 0) return AtenOps().SwiGluBackward(dy, gate_up, wanted);
    const c10::cuda::CUDAGuard guard(gate_up.device());
    SwiGluGradient result{at::empty_like(gate_up), wanted ? at::empty_like(dy) : at::Tensor()};
    C10_CUDA_CHECK(kernels::SwiGluBackward(GetNumber(gate_up), dy.const_data_ptr(), gate_up.const_data_ptr(),
                                           gate_up.size(0), width, result.dgate_up.mutable_data_ptr(),
                                           PlaceOrNull(result.y), GetStream(gate_up)));
    return result;
  }

  at::Tensor AdaptedSwiGlu(const at::Tensor& gate_up, const LowRank& gate, const LowRank& up) const override {
    if (!FitsLowRank(gate_up, {&gate, &up})) return Ops::AdaptedSwiGlu(gate_up, gate, up);
    const c10::cuda::CUDAGuard guard(gate_up.device());
    const int64_t width = gate_up.size(1) / 2;
    at::Tensor y = at::empty({gate_up.size(0), width}, gate_up.options());
    const LowRankOperand of_gate(gate), of_up(up);
    C10_CUDA_CHECK(kernels::LowRankSwiGlu(of_gate.term(), of_up.term(), gate_up.const_data_ptr(), gate_up.size(0),
                                          width, y.mutable_data_ptr(), GetStream(gate_up)));
    return y;
  }

  SwiGluGradient AdaptedSwiGluBackward(const at::Tensor& dy, const at::Tensor& gate_up, const SwiGluAdapters& adapters,
                                       bool wanted) const override {
    if (!FitsLowRank(gate_up, {&adapters.dy, &adapters.gate, &adapters.up})) {
      return Ops::AdaptedSwiGluBackward(dy, gate_up, adapters, wanted);
    }
    const c10::cuda::CUDAGuard guard(gate_up.device());
    const int64_t rows = gate_up.size(0), width = gate_up.size(1) / 2;
    const LowRankOperand of_dy(adapters.dy), of_gate(adapters.gate), of_up(adapters.up);
    const bool fuses = !wanted && kernels::HasLowRankGradients(of_dy.term()) &&
                       kernels::HasLowRankGradients(of_gate.term()) && kernels::HasLowRankGradients(of_up.term());
    if (fuses) {
      const at::Tensor partial = Rows32(gate_up, {kernels::LowRankPartialElements(rows, width)});
      const kernels::LowRankGradients gradients{ToGradient(adapters.gate_outer, adapters.gate, /*is_transposed=*/true),
                                                ToGradient(adapters.up_outer, adapters.up, /*is_transposed=*/true),
                                                ToGradient(adapters.dy_a, {adapters.dy.inner, {}, 1}, false)};
      C10_CUDA_CHECK(kernels::LowRankSwiGluBackward(of_dy.term(), of_gate.term(), of_up.term(), dy.const_data_ptr(),
                                                    gate_up.const_data_ptr(), rows, width, gate_up.mutable_data_ptr(),
                                                    partial.mutable_data_ptr<float>(), gradients, GetStream(gate_up)));
      return {gate_up, {}};
    }
    const SwiGluGradient made{gate_up, wanted || adapters.dy_a.defined() ? at::empty_like(dy) : at::Tensor()};
    C10_CUDA_CHECK(kernels::LowRankSwiGluBackward(
        of_dy.term(), of_gate.term(), of_up.term(), dy.const_data_ptr(), gate_up.const_data_ptr(), rows, width,
        made.dgate_up.mutable_data_ptr(), PlaceOrNull(made.y), GetStream(gate_up)));
    AddAdapterGradients(adapters, made);
    return made;
  }

  // Attention by cuDNN, or by libtorch's FlashAttention-2 for sequences of varying length: both take strided views of
  // one projection. cuDNN returns one tensor of statistics, FlashAttention three: the backward pass chooses by that
  // number.
  Attended Attend(const at::Tensor& qkv, const AttentionShape& shape, const PackedSequences& sequences) const override {
    const int64_t heads = shape.heads, kv_heads = shape.kv_heads;
    if (!FitsFlash(qkv, shape)) return AtenOps().Attend(qkv, shape, sequences);
    std::optional<Attended> attended = AttendByCudnn(qkv, heads, kv_heads, sequences);
    if (attended) return *std::move(attended);
    const Heads h = Split(qkv, heads, kv_heads);
    auto [y, log_sum_exp, seed, unused, mask] =
        at::_flash_attention_forward(h.q, h.k, h.v, sequences.starts(), sequences.starts(), sequences.longest(),
                                     sequences.longest(), /*dropout_p=*/0, /*is_causal=*/true,
                                     /*return_debug_mask=*/false, h.scale);
    return {y.reshape({qkv.size(0), h.q.size(1) * h.q.size(2)}), {log_sum_exp, seed, unused}};
  }

  at::Tensor AttendBackward(const at::Tensor& dy, const at::Tensor& qkv, const Attended& forward,
                            const AttentionShape& shape, const PackedSequences& sequences) const override {
    const int64_t heads = shape.heads, kv_heads = shape.kv_heads;
    if (!FitsFlash(qkv, shape)) return AtenOps().AttendBackward(dy, qkv, forward, shape, sequences);
    if (forward.stats.size() == 1) return AttendBackwardByCudnn(dy, qkv, forward, heads, kv_heads, sequences);
    const Heads h = Split(qkv, heads, kv_heads);
    const OrderedFlash ordered(deterministic_);
    auto [dq, dk, dv] = at::_flash_attention_backward(dy.view(h.q.sizes()), h.q, h.k, h.v, forward.y.view(h.q.sizes()),
                                                      forward.stats[0], sequences.starts(), sequences.starts(),
                                                      sequences.longest(), sequences.longest(), /*dropout_p=*/0,
                                                      /*is_causal=*/true, forward.stats[1], forward.stats[2], h.scale);
    return at::cat({dq.flatten(1), dk.flatten(1), dv.flatten(1)}, 1);
  }

  HeadRows Head(const at::Tensor& logits, const at::Tensor& targets, double temperature) const override {
    if (!RowsAreAligned(logits)) return AtenOps().Head(logits, targets, temperature);
    const c10::cuda::CUDAGuard guard(logits.device());
    const int64_t rows = logits.size(0);
    HeadRows result{Rows32(logits, {rows}), Rows32(logits, {rows}), Rows32(logits, {rows}), Rows32(logits, {rows})};
    C10_CUDA_CHECK(kernels::Head(GetNumber(logits), logits.const_data_ptr(), targets.const_data_ptr<int64_t>(),
                                 {rows, logits.size(1), logits.stride(0)}, static_cast<float>(1 / temperature),
                                 result.logprob.mutable_data_ptr<float>(), result.entropy.mutable_data_ptr<float>(),
                                 result.log_sum_exp.mutable_data_ptr<float>(),
                                 result.top_probability.mutable_data_ptr<float>(), GetStream(logits)));
    return result;
  }

  at::Tensor HeadBackward(const at::Tensor& logits, const at::Tensor& targets, const HeadRows& rows,
                          const at::Tensor& dlogprob, const at::Tensor& dentropy, double temperature,
                          at::ScalarType to) const override {
    if (!RowsAreAligned(logits)) {
      return AtenOps().HeadBackward(logits, targets, rows, dlogprob, dentropy, temperature, to);
    }
    const c10::cuda::CUDAGuard guard(logits.device());
    at::Tensor gradient = to == logits.scalar_type()
                              ? logits
                              : at::empty_strided(logits.sizes(), logits.strides(), logits.options().dtype(to));
    const kernels::HeadGradients gradients{rows.log_sum_exp.const_data_ptr<float>(),
                                           rows.entropy.const_data_ptr<float>(), dlogprob.const_data_ptr<float>(),
                                           static_cast<const float*>(DataOrNull(dentropy))};
    C10_CUDA_CHECK(kernels::HeadBackward(GetNumber(logits), logits.const_data_ptr(), targets.const_data_ptr<int64_t>(),
                                         {logits.size(0), logits.size(1), logits.stride(0)},
                                         static_cast<float>(1 / temperature), gradients, GetNumber(gradient),
                                         gradient.mutable_data_ptr(), GetStream(logits)));
    return gradient;
  }

  // The tensor cores sum in float32 and take the operands in their own dtype.
  void AddWeightGradient(const at::Tensor& dweight, const at::Tensor& dy, const at::Tensor& x) const override {
    at::Tensor out = dweight;
    if (dy.scalar_type() == at::kFloat) {
      out.addmm_(dy.t(), x);
    } else {
      at::addmm_out(out, out, dy.t(), x, at::kFloat);
    }
  }

  void AddBiasGradient(const at::Tensor& dbias, const at::Tensor& dy) const override {
    const c10::cuda::CUDAGuard guard(dy.device());
    at::Tensor partial = Rows32(dy, {kernels::ColumnPartialRows(dy.size(0)), dy.size(1)});
    C10_CUDA_CHECK(kernels::ColumnSums(GetNumber(dy), dy.const_data_ptr(), dy.size(0), dy.size(1),
                                       partial.mutable_data_ptr<float>(), dbias.mutable_data_ptr<float>(),
                                       GetStream(dy)));
  }

  void AddEmbeddingGradient(const at::Tensor& dtable, const at::Tensor& ids, const at::Tensor& dx) const override {
    const c10::cuda::CUDAGuard guard(dx.device());
    if (deterministic_) {
      const auto [sorted, order] = at::sort(ids, /*stable=*/std::optional<bool>(true), /*dim=*/0, /*descending=*/false);
      C10_CUDA_CHECK(kernels::EmbeddingGradientInOrder(
          GetNumber(dx), dx.const_data_ptr(), sorted.const_data_ptr<int64_t>(), order.const_data_ptr<int64_t>(),
          dx.size(0), dx.size(1), dtable.mutable_data_ptr<float>(), GetStream(dx)));
      return;
    }
    C10_CUDA_CHECK(kernels::EmbeddingGradient(GetNumber(dx), dx.const_data_ptr(), ids.const_data_ptr<int64_t>(),
                                              dx.size(0), dx.size(1), dtable.mutable_data_ptr<float>(), GetStream(dx)));
  }

  at::Tensor UpdateByAdamW(const AdamW& update, const at::Tensor& factor, const AdamWTensors& tensors) const override {
    const c10::cuda::CUDAGuard guard(tensors.parameters.device());
    kernels::AdamWArguments arguments;
    arguments.learning_rate = static_cast<float>(update.learning_rate);
    arguments.beta1 = static_cast<float>(update.beta1);
    arguments.beta2 = static_cast<float>(update.beta2);
    arguments.eps = static_cast<float>(update.eps);
    arguments.decay = static_cast<float>(1 - update.learning_rate * update.weight_decay);
    arguments.correction1 = static_cast<float>(update.correction1);
    arguments.correction2 = static_cast<float>(update.correction2);
    arguments.factor = factor.const_data_ptr<float>();
    const at::Tensor squares = Rows32(tensors.parameters, {kernels::AdamWBlocks(tensors.parameters.numel())});
    C10_CUDA_CHECK(kernels::AdamW(arguments, tensors.parameters.numel(), tensors.parameters.mutable_data_ptr<float>(),
                                  tensors.first_moment.mutable_data_ptr<float>(),
                                  tensors.second_moment.mutable_data_ptr<float>(),
                                  tensors.gradients.const_data_ptr<float>(), PlaceOrNull(tensors.copy),
                                  squares.mutable_data_ptr<float>(), GetStream(tensors.parameters)));
    return squares.sum(at::kDouble);
  }

  void AddDigestSums(const at::Tensor& words, const std::vector<DigestRun>& runs,
                     const at::Tensor& sums) const override {
    if (runs.empty()) return;
    const c10::cuda::CUDAGuard guard(words.device());
    at::Tensor there = at::empty({static_cast<int64_t>(runs.size()), 4}, at::kLong);
    static_assert(sizeof(DigestRun) == 4 * sizeof(int64_t) && sizeof(kernels::DigestRun) == sizeof(DigestRun));
    std::memcpy(there.mutable_data_ptr(), runs.data(), runs.size() * sizeof(DigestRun));
    there = there.to(words.device());
    C10_CUDA_CHECK(
        kernels::AddDigestSums(words.scalar_type() == at::kBFloat16 ? Number::kBFloat16 : Number::kFloat32,
                               words.const_data_ptr(), static_cast<const kernels::DigestRun*>(there.const_data_ptr()),
                               static_cast<int64_t>(runs.size()), sums.mutable_data_ptr(), GetStream(words)));
  }

 private:
  struct Heads {
    at::Tensor q, k, v;  // [T, heads, d]
    double scale = 1;
  };

  // Whether each row begins on 16 bytes; rows may have any length.
  static bool RowsAreAligned(const at::Tensor& logits) {
    return logits.stride(1) == 1 && logits.stride(0) % MakeVector(logits) == 0;
  }

  static kernels::LowRankGradient ToGradient(const at::Tensor& sum, const LowRank& term, bool is_transposed) {
    if (!sum.defined()) return {};
    TORCH_CHECK(sum.is_contiguous() && sum.scalar_type() == at::kFloat);
    return {sum.mutable_data_ptr<float>(), is_transposed, static_cast<int32_t>(term.inner.size(1)),
            static_cast<float>(term.scale)};
  }

  // Whether our kernels take the terms, of which at least one adds something.
  static bool FitsLowRank(const at::Tensor& gate_up, std::initializer_list<const LowRank*> terms) {
    if (gate_up.scalar_type() != at::kBFloat16 || gate_up.size(1) / 2 % MakeVector(gate_up) != 0) return false;
    bool any = false;
    for (const LowRank* term : terms) {
      if (!term->inner.defined()) continue;
      any = true;
      if (term->inner.size(1) % MakeVector(gate_up) != 0 || !RowsAreAligned(term->inner)) return false;
    }
    return any;
  }

  static bool FitsNorm(const at::Tensor& x) {
    return x.size(1) % MakeVector(x) == 0 && x.size(1) <= kernels::kMaxNormElements && x.is_contiguous();
  }
  // nullopt if cuDNN refuses.
  std::optional<Attended> AttendByCudnn(const at::Tensor& qkv, int64_t heads, int64_t kv_heads,
                                        const PackedSequences& sequences) const {
    const c10::cuda::CUDAGuard guard(qkv.device());
    const AttentionInputs inputs = MakeInputs(qkv, heads, kv_heads, sequences);
    at::Tensor y = at::empty({inputs.rows, heads * inputs.head_dim}, qkv.options());
    at::Tensor stats = Rows32(qkv, {inputs.rows, heads});
    at::Tensor scratch;
    for (const SequenceGroup& group : MakeGroups(sequences.lengths(), heads, deterministic_)) {
      const absl::Status status =
          CudnnAttention::On(qkv.device().index())
              .Forward(Narrow(inputs, group), {y.mutable_data_ptr(), stats.mutable_data_ptr<float>()},
                       LendFrom(scratch, qkv), GetStream(qkv));
      if (CudnnAttention::IsRefusal(status)) return std::nullopt;
      TORCH_CHECK(status.ok(), std::string(status.message()));
    }
    return Attended{std::move(y), {std::move(stats)}};
  }

  at::Tensor AttendBackwardByCudnn(const at::Tensor& dy, const at::Tensor& qkv, const Attended& forward, int64_t heads,
                                   int64_t kv_heads, const PackedSequences& sequences) const {
    const c10::cuda::CUDAGuard guard(qkv.device());
    const AttentionInputs inputs = MakeInputs(qkv, heads, kv_heads, sequences);
    const int64_t key_width = kv_heads * inputs.head_dim;
    at::Tensor dqkv = at::empty_like(qkv);
    at::Tensor dkeys_values = at::empty({2, inputs.rows, key_width}, qkv.options());
    const at::Tensor gradient = dy.contiguous();
    at::Tensor scratch;
    for (const SequenceGroup& group : MakeGroups(sequences.lengths(), heads, deterministic_)) {
      const absl::Status status =
          CudnnAttention::On(qkv.device().index())
              .Backward(Narrow(inputs, group),
                        {forward.y.mutable_data_ptr(), forward.stats[0].mutable_data_ptr<float>()},
                        {gradient.const_data_ptr(), dqkv.mutable_data_ptr(), dkeys_values[0].mutable_data_ptr(),
                         dkeys_values[1].mutable_data_ptr()},
                        LendFrom(scratch, qkv), GetStream(qkv));
      TORCH_CHECK(status.ok(), std::string(status.message()));
    }
    dqkv.narrow(1, heads * inputs.head_dim, 2 * key_width)
        .unflatten(1, {2, key_width})
        .copy_(dkeys_values.transpose(0, 1));
    return dqkv;
  }

  // Returns `inputs` limited to the sequences of `group`: a call reads and writes their rows alone.
  AttentionInputs Narrow(AttentionInputs inputs, const SequenceGroup& group) const {
    inputs.starts += group.begin;
    inputs.sequences = static_cast<int32_t>(group.count);
    inputs.longest = group.longest;
    inputs.deterministic = deterministic_;
    return inputs;
  }

  static AttentionInputs MakeInputs(const at::Tensor& qkv, int64_t heads, int64_t kv_heads,
                                    const PackedSequences& sequences) {
    const int64_t head_dim = qkv.size(1) / (heads + 2 * kv_heads);
    const auto* data = static_cast<const at::BFloat16*>(qkv.const_data_ptr());
    return {.heads = static_cast<int32_t>(heads),
            .kv_heads = static_cast<int32_t>(kv_heads),
            .head_dim = static_cast<int32_t>(head_dim),
            .sequences = static_cast<int32_t>(sequences.lengths().size()),
            .starts = sequences.starts().const_data_ptr<int32_t>(),
            .rows = sequences.rows(),
            .longest = sequences.longest(),
            .queries = data,
            .keys = data + heads * head_dim,
            .values = data + (heads + kv_heads) * head_dim,
            .query_stride = qkv.stride(0),
            .key_stride = qkv.stride(0)};
  }
  // Lends memory of libtorch's allocator, owned by `scratch`. After `scratch` is destroyed, the allocator reuses the
  // memory on the same stream only.
  static CudnnAttention::Lend LendFrom(at::Tensor& scratch, const at::Tensor& like) {
    return [&scratch, options = like.options().dtype(at::kByte)](int64_t bytes) {
      scratch = at::empty({bytes}, options);
      return scratch.mutable_data_ptr();
    };
  }
  // False for layers with a window, which are supported on the CPU only.
  static bool FitsFlash(const at::Tensor& qkv, const AttentionShape& shape) {
    const int64_t head_dim = qkv.size(1) / (shape.heads + 2 * shape.kv_heads);
    return qkv.scalar_type() == at::kBFloat16 && head_dim % 8 == 0 && shape.window == 0;
  }
  static Heads Split(const at::Tensor& qkv, int64_t heads, int64_t kv_heads) {
    at::Tensor all = qkv.unflatten(1, {heads + 2 * kv_heads, qkv.size(1) / (heads + 2 * kv_heads)});
    return {all.narrow(1, 0, heads), all.narrow(1, heads, kv_heads), all.narrow(1, heads + kv_heads, kv_heads),
            1 / std::sqrt(static_cast<double>(all.size(2)))};
  }

  const bool deterministic_;
};

}  // namespace

const Ops& OpsFor(at::Device device, bool deterministic) {
  static const OpsByKernels fastest(/*deterministic=*/false), ordered(/*deterministic=*/true);
  if (!device.is_cuda()) return HostOps();
  return deterministic ? ordered : fastest;
}

}  // namespace syncopate::model
