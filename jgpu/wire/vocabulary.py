"""Which names of ops a program may use: what both ends know, and a kernel can say at once.

The executor decides (`broker.executor.programs.ops`); the device in the kernel reads the same
words, so that what cannot run is refused on the notebook's own line. Four things are said by name,
each for a reason that no schema of an op tells: what is refused, which ops are internal (autograd
normally calls them, and they take shapes on trust), which of the internal ones have a shape
contract, and what some of them write. Invariant: an internal op without a contract does not run.
"""

import re
from functools import lru_cache
from typing import Final

__all__ = ["CONTRACTED", "WRITTEN_UNSAID", "is_internal", "refusal"]

#: Base names (without a trailing underscore) that no program may call: pattern and reason.
_REFUSED: Final = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        (
            r".*sparse.*|_?coalesce(d)?|_?indices(_copy)?|_?values(_copy)?|c?(col|row)_indices.*|"
            r"crow_indices.*|_convert_indices.*|_spdiags|to_dense.*|_to_dense|smm|sspaddmm",
            "sparse tensors cannot be used on the shared device; convert with .to_dense() first",
        ),
        (
            r".*quantize.*|q_.*|int_repr|dequantize|.*qparams.*|fbgemm.*|.*_fake_quant|"
            r"_fused_moving_avg.*|.*pack_gemm.*|.*int4pack.*|.*int8pack.*|_dyn_quant.*|"
            r"_saturate_weight.*|_rowwise_prune",
            "quantised tensors cannot be used on the shared device",
        ),
        (
            r".*nested.*|.*jagged.*|to_padded_tensor",
            "of nested tensors the shared device knows the jagged layout alone, and not this op",
        ),
        (
            r"to_mkldnn.*|_?mkldnn_(?!rnn_layer).*",
            "these make or take tensors of an opaque layout",
        ),
        (
            r"miopen.*|_?mps_.*|.*_mps|xnnpack.*|vulkan.*|.*_overrideable.*|_propagate_xla.*|"
            r"_?cudnn_(?!rnn$|rnn_backward$|init_dropout_state$|(batch_norm|grid_sampler)(_backward)?$).*",
            "these belong to other backends",
        ),
        (r"from_file|from_blob", "programs do not touch files"),
        (
            r"_efficientzerotensor|_zerotensor|_is_zerotensor",
            "such a tensor has no storage; use zeros",
        ),
        (
            r"set|set_data|shallow_copy_data|data|_lazy_clone|_resize_output|_reshape_from_tensor|_version|"
            r"_has_compatible.*|_new_zeros_with_same_feature_meta",
            "these rebind storages, which only the executor does",
        ),
        (
            r"_make_dual.*|_unpack_dual|_fw_primal.*|_?(add|remove)_batch_dim|_backward|"
            r"requires_grad|retains?_grad|_make_dep_token|_autocast.*|is_.*|get_device",
            "these concern autograd and dispatch, which stay in the kernel",
        ),
        (
            r"_test_.*|_debug_.*|_foobar|_print|_assert.*|_functional_assert.*|.*sym_constrain.*|"
            r"sym_.*|_functional_sym.*|_cufft.*|can_cast|.*promote_types|result_type",
            "these compute no tensor",
        ),
        (
            r"record_stream|_?pin_memory|_copy_from.*|_to_cpu|_local_scalar_dense|item",
            "copies between host and device are messages of their own",
        ),
        (
            r"_?slow_conv.*|thnn_conv.*|_?nnpack.*|.*_nnpack_.*|conv_depthwise3d",
            "these kernels trust shapes; call convolution",
        ),
        (r"_?philox.*|_sobol.*", "these keep their random state in tensors that they trust"),
        (r"_triton.*|.*scaled_grouped_mm.*|_grouped_mm|_scaled_mm.*", "these trust their sizes"),
    )
)

_INTERNAL: Final = re.compile(r"_(?!_).*|.*_backward(_.*)?|native_.*|.*_forward|mkldnn_.*")

#: Base names of internal ops that have a contract in the executor, or need none there.
CONTRACTED: Final = frozenset(  # a test holds it to the contracts themselves
    """
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d
    _adaptive_avg_pool3d_backward _addmm_activation _aminmax
    _amp_foreach_non_finite_check_and_unscale _amp_update_scale _batch_norm_no_update
    _batch_norm_with_update _batch_norm_with_update_functional _cast_Byte _cast_Char
    _cast_Double _cast_Float _cast_Half _cast_Int _cast_Long _cast_Short _cdist_backward
    _cdist_forward _chunk_cat _conj _conj_copy _conj_physical _convolution _convolution_mode
    _ctc_loss _ctc_loss_backward _cudnn_init_dropout_state _cudnn_rnn _cudnn_rnn_backward
    _dim_arange _dirichlet_grad _embedding_bag
    _embedding_bag_backward _embedding_bag_dense_backward _embedding_bag_forward_only
    _embedding_bag_per_sample_weights_backward _euclidean_dist _fft_c2c _fft_c2r _fft_r2c
    _foreach_abs _foreach_acos _foreach_add _foreach_addcdiv _foreach_addcmul _foreach_asin
    _foreach_atan _foreach_ceil _foreach_clamp_max _foreach_clamp_min _foreach_clone
    _foreach_copy _foreach_cos _foreach_cosh _foreach_div _foreach_erf _foreach_erfc
    _foreach_exp _foreach_expm1 _foreach_floor _foreach_frac _foreach_lerp _foreach_lgamma
    _foreach_log _foreach_log10 _foreach_log1p _foreach_log2 _foreach_max _foreach_maximum
    _foreach_minimum _foreach_mm _foreach_mul _foreach_neg _foreach_norm _foreach_pow
    _foreach_powsum _foreach_reciprocal _foreach_round _foreach_rsqrt _foreach_sigmoid
    _foreach_sign _foreach_sin _foreach_sinh _foreach_sqrt _foreach_sub _foreach_tan
    _foreach_tanh _foreach_trunc _foreach_zero _fused_adagrad _fused_adam _fused_adamw
    _fused_dropout _fused_rms_norm _fused_rms_norm_backward _fused_sgd _histogramdd_bin_edges
    _histogramdd_from_bin_cts _histogramdd_from_bin_tensors _index_put_impl _int_mm
    _is_all_true _is_any_true _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet
    _linalg_solve_ex _linalg_svd _log_softmax _log_softmax_backward_data _logcumsumexp
    _lu_with_info _masked_scale _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training _native_multi_head_attention _neg_view
    _neg_view_copy _pack_padded_sequence _pack_padded_sequence_backward _pad_circular
    _pad_enum _pdist_backward _pdist_forward _prelu_kernel _prelu_kernel_backward
    _reshape_alias _reshape_copy _safe_softmax _sample_dirichlet
    _scaled_dot_product_attention_math _scaled_dot_product_cudnn_attention
    _scaled_dot_product_cudnn_attention_backward _scaled_dot_product_efficient_attention
    _scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention
    _scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward _segment_reduce_backward _softmax
    _softmax_backward_data _stack _standard_gamma _standard_gamma_grad _thnn_fused_gru_cell
    _thnn_fused_gru_cell_backward _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl
    _to_copy _transformer_encoder_layer_fwd _trilinear _unique _unique2 _unsafe_index
    _unsafe_index_put _unsafe_masked_index _unsafe_masked_index_put_accumulate _unsafe_view
    _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa
    _upsample_bilinear2d_aa_backward _upsample_lanczos2d_aa _upsample_lanczos2d_aa_backward
    _upsample_nearest_exact1d _upsample_nearest_exact1d_backward _upsample_nearest_exact2d
    _upsample_nearest_exact2d_backward _upsample_nearest_exact3d
    _upsample_nearest_exact3d_backward _weight_norm _weight_norm_interface
    _weight_norm_interface_backward adaptive_avg_pool3d_backward
    adaptive_max_pool2d_backward adaptive_max_pool3d_backward avg_pool2d_backward
    avg_pool3d_backward batch_norm_backward binary_cross_entropy_backward
    convolution_backward cudnn_batch_norm cudnn_batch_norm_backward cudnn_grid_sampler
    cudnn_grid_sampler_backward
    cummaxmin_backward cumprod_backward diagonal_backward elu_backward
    embedding_dense_backward fractional_max_pool2d_backward fractional_max_pool3d_backward
    gather_backward gelu_backward glu_backward grid_sampler_2d_backward
    grid_sampler_3d_backward hardshrink_backward hardsigmoid_backward hardswish_backward
    hardtanh_backward huber_loss_backward index_select_backward
    infinitely_differentiable_gelu_backward leaky_relu_backward log_sigmoid_backward
    linalg_ldl_solve log_sigmoid_forward logit_backward masked_scatter_backward
    masked_select_backward matrix_exp_backward max_pool2d_with_indices_backward
    max_pool3d_with_indices_backward mish_backward mkldnn_rnn_layer
    mkldnn_rnn_layer_backward mse_loss_backward multi_margin_loss_backward
    multilabel_margin_loss_backward multilabel_margin_loss_forward native_batch_norm
    native_batch_norm_backward native_channel_shuffle native_dropout native_dropout_backward
    native_group_norm native_group_norm_backward native_layer_norm
    native_layer_norm_backward nll_loss2d_backward nll_loss2d_forward nll_loss_backward
    nll_loss_forward reflection_pad1d_backward reflection_pad2d_backward
    reflection_pad3d_backward replication_pad1d_backward replication_pad2d_backward
    replication_pad3d_backward rrelu_with_noise_backward segment_reduce select_backward
    sigmoid_backward silu_backward slice_backward smooth_l1_loss_backward
    soft_margin_loss_backward softplus_backward softshrink_backward tanh_backward
    threshold_backward trace_backward unfold_backward upsample_bicubic2d
    upsample_bicubic2d_backward upsample_bilinear2d upsample_bilinear2d_backward
    upsample_linear1d upsample_linear1d_backward upsample_nearest1d
    upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward
    upsample_nearest3d upsample_nearest3d_backward upsample_trilinear3d
    upsample_trilinear3d_backward value_selecting_reduction_backward
    """.split()  # noqa: SIM905 - a name a line would fill six pages
)

#: Tensors that kernels write though their schema does not say so: base name and argument.
WRITTEN_UNSAID: Final = frozenset(
    {
        ("_cudnn_rnn", "dropout_state"),
        ("_cudnn_rnn_backward", "reserve"),
        ("cudnn_batch_norm", "running_mean"),
        ("cudnn_batch_norm", "running_var"),
        ("cudnn_batch_norm_backward", "reserveSpace"),
        ("native_batch_norm", "running_mean"),
        ("native_batch_norm", "running_var"),
    }
)


@lru_cache(maxsize=4096)
def refusal(base: str) -> str | None:
    """Why no program may call an op of this base name, and what to do instead; None if it may."""
    plain = base.removesuffix("_") if base != "__" else base
    for pattern, reason in _REFUSED:
        if pattern.fullmatch(plain):
            return reason
    if is_internal(base) and plain not in CONTRACTED:
        return "it trusts its arguments, and nobody has written down what it trusts in"
    return None


def is_internal(base: str) -> bool:
    """Whether an op of this base name trusts its inputs, so that it needs a contract."""
    return _INTERNAL.fullmatch(base) is not None
