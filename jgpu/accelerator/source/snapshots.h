// Torch's note of its state at an op's entry (`PythonTLSSnapshot`), made without boxing the call.
//
// What a mode or a subclass may go back to from within its call (`enable_reentrant_dispatch`) is
// the state in which the op was called. Torch's own kernel notes it for every op on tensors that
// Python deals with, and boxes the arguments for it, composites' as well. The ops named here have
// one with their own arguments, which notes the same; all others keep torch's. To fall through
// would be shorter, but behind autograd the state is not that of the entry any more.

#pragma once

#include <ATen/Operators.h>
#include <ATen/core/PythonFallbackKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>
#include <utility>

namespace jgpu {

constexpr auto snapshot_key = c10::DispatchKey::PythonTLSSnapshot;

template <class Signature>
class Snapshot;

template <class Made, class... Given>
class Snapshot<Made(Given...)> final {
 public:
  explicit Snapshot(const c10::TypedOperatorHandle<Made(Given...)>& op) : op_(op) {}

  Made operator()(c10::DispatchKeySet keys, Given... given) const {
    const at::impl::MaybeSetTLSOnEntryGuard entered;
    constexpr c10::DispatchKeySet behind(c10::DispatchKeySet::FULL_AFTER, snapshot_key);
    return op_.redispatch(keys & behind, std::forward<Given>(given)...);
  }

 private:
  c10::TypedOperatorHandle<Made(Given...)> op_;
};

template <class Op>
void note_entry(torch::Library& library) {
  const std::string name = Op::name, overload = Op::overload_name;
  const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
  if (op.has_value()) {
    library.impl(
        (overload.empty() ? name : name + "." + overload).c_str(),
        Snapshot<typename Op::schema>(op->typed<typename Op::schema>()));
  }
}

template <class... Ops>
void note_entries(torch::Library& library) {
  (note_entry<Ops>(library), ...);
}

// The ops that training and inference consist of. Whatever is missing is right, and slower.
inline void note_entries_of_common_ops(torch::Library& library) {
  namespace ops = at::_ops; // named each time: `exp` and its like are functions of C's, too
  // composites
  note_entries<
      ops::linear, ops::matmul, ops::chunk, ops::unsafe_chunk, ops::reshape,
      ops::flatten_using_ints, ops::layer_norm, ops::group_norm, ops::batch_norm,
      ops::dropout, ops::softmax_int, ops::log_softmax_int, ops::lstm_cell, ops::gru_cell,
      ops::scaled_dot_product_attention, ops::cross_entropy_loss, ops::nll_loss_nd,
      ops::embedding, ops::einsum, ops::square, ops::to_dtype, ops::to_dtype_layout,
      ops::to_device, ops::to_other, ops::contiguous, ops::expand_as, ops::view_as,
      ops::type_as, ops::split_sizes, ops::narrow, ops::conv1d, ops::conv2d,
      ops::max_pool2d, ops::avg_pool1d, ops::adaptive_avg_pool2d, ops::broadcast_tensors,
      ops::broadcast_to, ops::outer, ops::pad, ops::numpy_T, ops::mT, ops::mH,
      ops::__and___Tensor, ops::__or___Tensor, ops::movedim_intlist, ops::unflatten_int,
      ops::where_ScalarSelf, ops::where_ScalarOther, ops::binary_cross_entropy_with_logits,
      ops::item, ops::is_nonzero, ops::resolve_conj, ops::resolve_neg, ops::max_other,
      ops::rms_norm, ops::log_sigmoid, ops::cosine_similarity>(library);
  // arithmetic
  note_entries<
      ops::add_Tensor, ops::add__Tensor, ops::sub_Tensor, ops::sub__Tensor, ops::mul_Tensor,
      ops::mul__Tensor, ops::div_Tensor, ops::div__Tensor, ops::add_Scalar,
      ops::add__Scalar, ops::sub_Scalar, ops::mul_Scalar, ops::mul__Scalar, ops::div_Scalar,
      ops::div__Scalar, ops::rsub_Scalar, ops::remainder_Scalar, ops::addcmul,
      ops::addcmul_, ops::addcdiv, ops::addcdiv_, ops::lerp_Scalar, ops::lerp__Scalar,
      ops::pow_Tensor_Scalar, ops::pow_Tensor_Tensor, ops::maximum, ops::minimum, ops::neg,
      ops::neg_, ops::abs, ops::sign, ops::exp, ops::exp_, ops::log, ops::log_, ops::log1p,
      ops::sqrt, ops::sqrt_, ops::rsqrt, ops::sin, ops::cos, ops::tanh, ops::tanh_,
      ops::sigmoid, ops::sigmoid_, ops::relu, ops::relu_, ops::gelu, ops::silu, ops::elu,
      ops::leaky_relu, ops::softplus, ops::reciprocal, ops::clamp, ops::clamp_,
      ops::clamp_min, ops::clamp_max, ops::floor, ops::round, ops::erf>(library);
  // products
  note_entries<
      ops::mm, ops::bmm, ops::addmm, ops::baddbmm, ops::mv, ops::addmv, ops::addmv_,
      ops::dot, ops::convolution>(library);
  // comparisons and choices
  note_entries<
      ops::eq_Tensor, ops::eq_Scalar, ops::ne_Tensor, ops::ne_Scalar, ops::lt_Tensor,
      ops::lt_Scalar, ops::le_Tensor, ops::le_Scalar, ops::gt_Tensor, ops::gt_Scalar,
      ops::ge_Tensor, ops::ge_Scalar, ops::logical_not, ops::logical_and,
      ops::bitwise_and_Tensor, ops::bitwise_or_Tensor, ops::bitwise_not, ops::where_self,
      ops::masked_fill_Scalar, ops::masked_fill__Scalar, ops::index_select, ops::gather,
      ops::scatter_add_, ops::index_Tensor, ops::tril, ops::triu,
      ops::multinomial>(library);
  // sums
  note_entries<
      ops::sum, ops::sum_dim_IntList, ops::mean, ops::mean_dim, ops::max, ops::max_dim,
      ops::min, ops::amax, ops::argmax, ops::any, ops::any_dim, ops::all, ops::all_dim,
      ops::logsumexp, ops::cumsum, ops::var_correction, ops::std_correction,
      ops::linalg_vector_norm>(library);
  // normalised, and losses
  note_entries<
      ops::native_layer_norm, ops::native_batch_norm, ops::_softmax, ops::_log_softmax,
      ops::nll_loss_forward, ops::mse_loss, ops::smooth_l1_loss,
      ops::native_layer_norm_backward, ops::native_batch_norm_backward,
      ops::_softmax_backward_data, ops::_log_softmax_backward_data, ops::nll_loss_backward,
      ops::mse_loss_backward, ops::embedding_dense_backward, ops::threshold_backward,
      ops::tanh_backward, ops::sigmoid_backward, ops::gelu_backward,
      ops::leaky_relu_backward, ops::softplus_backward, ops::select_backward,
      ops::slice_backward>(library);
  // views
  note_entries<
      ops::view, ops::_unsafe_view, ops::t, ops::transpose_int, ops::permute, ops::expand,
      ops::select_int, ops::slice_Tensor, ops::squeeze, ops::squeeze_dim, ops::unsqueeze,
      ops::split_Tensor, ops::unsafe_split_Tensor, ops::unbind_int, ops::detach, ops::alias,
      ops::diagonal, ops::as_strided, ops::_reshape_alias, ops::detach_>(library);
  // made and filled
  note_entries<
      ops::copy_, ops::clone, ops::_to_copy, ops::cat, ops::stack, ops::fill__Scalar,
      ops::fill__Tensor, ops::zero_, ops::zeros_like, ops::ones_like, ops::empty_like,
      ops::full_like, ops::new_zeros, ops::new_empty, ops::normal_, ops::uniform_,
      ops::bernoulli__float, ops::random__from, ops::exponential_>(library);
}

} // namespace jgpu
