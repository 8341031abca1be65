"""Internal by name only: ops whose kernels look at all they are given.

Three reasons: they are built on TensorIterator, which broadcasts or raises; they are structured,
so that their meta function (which inference runs) checks the shapes; or they are composed of
public ops. A name belongs here only after its kernel was read.
"""

from jgpu.broker.executor.programs.contracts.language import selfchecked

__all__: list[str] = []

# copies and reinterpretations: sizes are compared with the storage or the number of elements
selfchecked(
    *("_to_copy", "_conj", "_conj_copy", "_conj_physical", "_neg_view", "_neg_view_copy"),
    *("_reshape_copy", "_unsafe_view", "_cast_Byte", "_cast_Char"),
    *("_cast_Double", "_cast_Float", "_cast_Half", "_cast_Int", "_cast_Long", "_cast_Short"),
    *("_stack", "_dim_arange", "_pad_circular", "_pad_enum", "native_channel_shuffle"),
)
# structured, or checks of their own before the kernel
selfchecked(
    *("_softmax", "_log_softmax", "_safe_softmax", "_aminmax", "_addmm_activation", "_int_mm"),
    *("_logcumsumexp", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "native_layer_norm"),
    *("_fused_rms_norm", "nll_loss_forward", "nll_loss2d_forward", "_cdist_forward"),
    *("_euclidean_dist",),
    *("_linalg_det", "_linalg_eigh", "_linalg_slogdet", "_linalg_solve_ex", "_linalg_svd"),
    *("_linalg_eigvals", "_lu_with_info", "_convolution", "_convolution_mode"),
)
# data-dependent results: the run compares them with what the program expects
selfchecked(
    *("_unique", "_unique2", "multilabel_margin_loss_forward", "_pack_padded_sequence"),
    without_meta=True,
)
# random numbers over a whole tensor
selfchecked(
    *("native_dropout", "_fused_dropout", "_masked_scale", "_standard_gamma"),
)
selfchecked("_standard_gamma_grad", "_sample_dirichlet", "_dirichlet_grad", without_meta=True)
# composed of public ops: zeros, then a copy into a checked view, or index ops that look
selfchecked(
    *("select_backward", "slice_backward", "diagonal_backward", "trace_backward"),
    *("index_select_backward", "gather_backward", "masked_select_backward"),
    *("masked_scatter_backward", "value_selecting_reduction_backward", "cumprod_backward"),
    *("cummaxmin_backward", "matrix_exp_backward", "infinitely_differentiable_gelu_backward"),
    *("_unsafe_index", "_unsafe_index_put", "_unsafe_masked_index"),
    *("_unsafe_masked_index_put_accumulate", "_trilinear", "_is_all_true", "_is_any_true"),
    *("_chunk_cat", "_scaled_dot_product_attention_math", "log_sigmoid_forward"),
)
