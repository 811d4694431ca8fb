#include "model/cuda/matmul.h"

#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "model/cuda/cuda_graph.h"
#include "model/cuda/matmul_trial.h"

namespace syncopate::model {
namespace {

// Algorithms requested from the library's heuristic, best first; timing more finds hardly anything faster.
constexpr int kMostAlgorithms = 16;
constexpr int kTriedAlgorithms = 3;  // algorithms that CreateBitIdentical tries
constexpr int kTimedRounds = 3;      // the fastest round counts

absl::Status BlasStatus(cublasStatus_t status, const std::string& what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return Error(absl::StatusCode::kInternal, "CUBLAS_ERROR", absl::StrCat(what, ": ", cublasLtGetStatusString(status)));
}

std::string GetName(const MatmulShape& shape) {
  return absl::StrFormat("a product of [%d, %d] and [%d, %d]", shape.rows, shape.k, shape.k, shape.n);
}

// Owns one of the library's descriptors.
template <typename Handle, cublasStatus_t (*kDestroy)(Handle)>
class Description {
 public:
  Description() = default;
  ~Description() {
    if (handle_ != nullptr) kDestroy(handle_);
  }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  Handle get() const { return handle_; }
  Handle* place() { return &handle_; }

 private:
  Handle handle_ = nullptr;
};
using Operation = Description<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Description<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Description<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

}  // namespace

struct MatmulLibrary::State {
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  ~State() {
    if (handle != nullptr) cublasLtDestroy(handle);
  }
};

MatmulLibrary::MatmulLibrary(std::unique_ptr<State> state) : state_(std::move(state)) {}
MatmulLibrary::~MatmulLibrary() = default;
MatmulLibrary::MatmulLibrary(MatmulLibrary&&) noexcept = default;
MatmulLibrary& MatmulLibrary::operator=(MatmulLibrary&&) noexcept = default;

absl::StatusOr<MatmulLibrary> MatmulLibrary::Create(void* workspace) {
  auto state = std::make_unique<State>();
  state->workspace = workspace;
  SYNCOPATE_RETURN_IF_ERROR(BlasStatus(cublasLtCreate(&state->handle), "opening cuBLASLt"));
  return MatmulLibrary(std::move(state));
}

// The library is column-major: it computes y^T [n, rows] = w x^T, where w is given as [k, n] and transposed.
struct Matmul::State {
  MatmulShape shape;
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  Operation operation;
  Layout w, x, y;
  std::vector<cublasLtMatmulHeuristicResult_t> algorithms;
  size_t chosen = 0;

  absl::Status Describe();
  absl::Status FindAlgorithms();
  absl::Status TakeAlgorithm(const cublasLtMatmulAlgo_t& algorithm);
  absl::Status Queue(const MatmulOperands& operands, const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream);
  absl::StatusOr<double> Time(const std::vector<MatmulOperands>& operands, const cublasLtMatmulAlgo_t& algorithm,
                              cudaStream_t stream);
};

Matmul::Matmul(std::unique_ptr<State> state) : state_(std::move(state)) {}
Matmul::~Matmul() = default;
Matmul::Matmul(Matmul&&) noexcept = default;
Matmul& Matmul::operator=(Matmul&&) noexcept = default;
const MatmulShape& Matmul::shape() const { return state_->shape; }

absl::StatusOr<std::unique_ptr<Matmul::State>> Matmul::Described(const MatmulLibrary& library,
                                                                 const MatmulShape& shape) {
  auto state = std::make_unique<State>();
  state->shape = shape;
  state->handle = library.state_->handle;
  state->workspace = library.state_->workspace;
  SYNCOPATE_RETURN_IF_ERROR(state->Describe());
  return state;
}

absl::StatusOr<Matmul> Matmul::Create(const MatmulLibrary& library, const MatmulShape& shape) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<State> state, Described(library, shape));
  SYNCOPATE_RETURN_IF_ERROR(state->FindAlgorithms());
  return Matmul(std::move(state));
}

absl::StatusOr<Matmul> Matmul::CreateWithReference(const MatmulLibrary& library, const MatmulShape& shape,
                                                   const Matmul& reference) {
  MatmulShape same = reference.shape();
  same.rows = shape.rows;
  SYNCOPATE_CHECK(same == shape);
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<State> state, Described(library, shape));
  SYNCOPATE_RETURN_IF_ERROR(state->TakeAlgorithm(reference.state_->algorithms[reference.state_->chosen].algo));
  return Matmul(std::move(state));
}

absl::StatusOr<Matmul> Matmul::CreateBitIdentical(const MatmulLibrary& library, const MatmulShape& shape,
                                                  const Matmul& reference, const MatmulTrial& trial) {
  SYNCOPATE_CHECK(shape.bit_identical_rows && shape.k % 2 == 0 && shape.x_stride == 0);
  SYNCOPATE_ASSIGN_OR_RETURN(Matmul other, CreateWithReference(library, shape, reference));
  SYNCOPATE_ASSIGN_OR_RETURN(Matmul own, Create(library, shape));
  SYNCOPATE_ASSIGN_OR_RETURN(const MatmulOperands operands, trial.MakeUp(shape));
  auto digest_of = [&](const cublasLtMatmulAlgo_t& algorithm) -> absl::StatusOr<uint64_t> {
    SYNCOPATE_RETURN_IF_ERROR(trial.ClearResult(shape));
    SYNCOPATE_RETURN_IF_ERROR(own.state_->Queue(operands, algorithm, trial.stream()));
    return trial.DigestResult(shape);
  };
  SYNCOPATE_ASSIGN_OR_RETURN(const uint64_t expected, digest_of(other.state_->algorithms[0].algo));
  const size_t tried = std::min<size_t>(kTriedAlgorithms, own.state_->algorithms.size());
  for (size_t i = 0; i < tried; ++i) {
    const absl::StatusOr<uint64_t> digest = digest_of(own.state_->algorithms[i].algo);
    if (!digest.ok() || *digest != expected) continue;
    own.state_->chosen = i;
    return own;
  }
  return other;
}

absl::Status Matmul::State::Describe() {
  const std::string what = absl::StrCat("describing ", GetName(shape));
  SYNCOPATE_RETURN_IF_ERROR(
      BlasStatus(cublasLtMatmulDescCreate(operation.place(), CUBLAS_COMPUTE_32F, CUDA_R_32F), what));
  auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    return BlasStatus(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof(value)), what);
  };
  SYNCOPATE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
  if (shape.bias) {
    SYNCOPATE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
    SYNCOPATE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF));
  }
  const uint64_t n = static_cast<uint64_t>(shape.n), k = static_cast<uint64_t>(shape.k);
  const uint64_t rows = static_cast<uint64_t>(shape.rows);
  const int64_t stride = shape.result_stride > 0 ? shape.result_stride : shape.n;
  const int64_t x_stride = shape.x_stride > 0 ? shape.x_stride : shape.k;
  SYNCOPATE_RETURN_IF_ERROR(BlasStatus(cublasLtMatrixLayoutCreate(w.place(), CUDA_R_16BF, k, n, shape.k), what));
  SYNCOPATE_RETURN_IF_ERROR(BlasStatus(cublasLtMatrixLayoutCreate(x.place(), CUDA_R_16BF, k, rows, x_stride), what));
  return BlasStatus(
      cublasLtMatrixLayoutCreate(y.place(), shape.float32_result ? CUDA_R_32F : CUDA_R_16BF, n, rows, stride), what);
}

absl::Status Matmul::State::FindAlgorithms() {
  const std::string what = absl::StrCat("finding an algorithm for ", GetName(shape));
  Preference preference;
  SYNCOPATE_RETURN_IF_ERROR(BlasStatus(cublasLtMatmulPreferenceCreate(preference.place()), what));
  // Excludes algorithms that split the sum over k: they need a reduction, or workspace for partial sums.
  const size_t workspace_bytes = shape.bit_identical_rows ? 0 : MatmulLibrary::kWorkspaceBytes;
  if (shape.bit_identical_rows) {
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE;
    SYNCOPATE_RETURN_IF_ERROR(
        BlasStatus(cublasLtMatmulPreferenceSetAttribute(preference.get(), CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                        &reductions, sizeof(reductions)),
                   what));
  }
  SYNCOPATE_RETURN_IF_ERROR(
      BlasStatus(cublasLtMatmulPreferenceSetAttribute(preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                      &workspace_bytes, sizeof(workspace_bytes)),
                 what));
  for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    const uint32_t alignment = static_cast<uint32_t>(shape.alignment);
    SYNCOPATE_RETURN_IF_ERROR(BlasStatus(
        cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &alignment, sizeof(alignment)), what));
  }
  algorithms.resize(kMostAlgorithms);
  int found = 0;
  SYNCOPATE_RETURN_IF_ERROR(
      BlasStatus(cublasLtMatmulAlgoGetHeuristic(handle, operation.get(), w.get(), x.get(), y.get(), y.get(),
                                                preference.get(), kMostAlgorithms, algorithms.data(), &found),
                 what));
  algorithms.resize(static_cast<size_t>(found));
  if (algorithms.empty()) return BlasStatus(CUBLAS_STATUS_NOT_SUPPORTED, what);
  return absl::OkStatus();
}

absl::Status Matmul::State::TakeAlgorithm(const cublasLtMatmulAlgo_t& algorithm) {
  const std::string what = absl::StrCat("taking another product's algorithm for ", GetName(shape));
  cublasLtMatmulHeuristicResult_t checked = {};
  SYNCOPATE_RETURN_IF_ERROR(BlasStatus(
      cublasLtMatmulAlgoCheck(handle, operation.get(), w.get(), x.get(), y.get(), y.get(), &algorithm, &checked),
      what));
  if (checked.workspaceSize > MatmulLibrary::kWorkspaceBytes) return BlasStatus(CUBLAS_STATUS_NOT_SUPPORTED, what);
  checked.algo = algorithm;
  algorithms = {checked};
  return absl::OkStatus();
}

absl::Status Matmul::State::Queue(const MatmulOperands& operands, const cublasLtMatmulAlgo_t& algorithm,
                                  cudaStream_t stream) {
  if (shape.bias) {
    SYNCOPATE_RETURN_IF_ERROR(
        BlasStatus(cublasLtMatmulDescSetAttribute(operation.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &operands.bias,
                                                  sizeof(operands.bias)),
                   GetName(shape)));
  }
  const float beta = shape.accumulate ? 1 : 0;
  return BlasStatus(
      cublasLtMatmul(handle, operation.get(), &shape.scale, operands.w, w.get(), operands.x, x.get(), &beta, operands.y,
                     y.get(), operands.y, y.get(), &algorithm, workspace, MatmulLibrary::kWorkspaceBytes, stream),
      GetName(shape));
}

absl::Status Matmul::Queue(const MatmulOperands& operands, cudaStream_t stream) {
  return state_->Queue(operands, state_->algorithms[state_->chosen].algo, stream);
}

// Seconds for all operands in one CUDA graph: if queued one by one, small products would wait for the host.
absl::StatusOr<double> Matmul::State::Time(const std::vector<MatmulOperands>& operands,
                                           const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream) {
  SYNCOPATE_RETURN_IF_ERROR(Queue(operands[0], algorithm, stream));  // loads the kernels, which a capture should not do
  SYNCOPATE_ASSIGN_OR_RETURN(const CudaGraph graph, CudaGraph::Capture(stream, [&]() -> absl::Status {
                               for (const MatmulOperands& set : operands) {
                                 SYNCOPATE_RETURN_IF_ERROR(Queue(set, algorithm, stream));
                               }
                               return absl::OkStatus();
                             }));
  SYNCOPATE_RETURN_IF_ERROR(graph.Launch(stream));
  double fastest = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kTimedRounds; ++round) {
    SYNCOPATE_ASSIGN_OR_RETURN(const double seconds, graph.TimeLaunch(stream));
    fastest = std::min(fastest, seconds);
  }
  return fastest;
}

absl::Status Matmul::ChooseFastest(const std::vector<MatmulOperands>& operands, cudaStream_t stream) {
  // Skips an algorithm that the library refuses after all.
  absl::Status failed;
  double fastest = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < state_->algorithms.size(); ++i) {
    const absl::StatusOr<double> seconds = state_->Time(operands, state_->algorithms[i].algo, stream);
    if (!seconds.ok()) {
      failed = seconds.status();
    } else if (*seconds < fastest) {
      fastest = *seconds;
      state_->chosen = i;
    }
  }
  return std::isinf(fastest) ? failed : absl::OkStatus();
}

}  // namespace syncopate::model
