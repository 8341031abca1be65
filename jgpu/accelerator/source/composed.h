// Composites on their way at the backend's autograd key: `jgpu.device.composed`, where it comes to
// torch's own composite or to a few ops in a row.
//
// Whatever is not plain (a mode, a tensor of another kind, arguments that torch has to look at, an
// executor that is CUDA) goes on to the kernel in Python, as if this library were not there.

#pragma once

#include "wrappers.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/GradMode.h>

#include <optional>
#include <string>

namespace jgpu {

using Stack = torch::jit::Stack;

// Whether these are all tensors of the device's own class.
inline bool all_plain(at::ArrayRef<at::Tensor> tensors) {
  for (const at::Tensor& each : tensors) {
    if (!device_tensor(each)) {
      return false;
    }
  }
  return true;
}

inline std::optional<at::Tensor> if_any(const c10::IValue& value) {
  return value.isTensor() ? std::optional(value.toTensor()) : std::nullopt;
}

// What an LSTM's or GRU's cell is given. It fits where all is on the device and sizes go together:
// then torch's own code has nothing to complain of.
struct Cell {
  at::Tensor x, hidden, w_ih, w_hh;
  std::optional<at::Tensor> cell, b_ih, b_hh;

  bool fits(int64_t gates) const {
    c10::SmallVector<at::Tensor, 7> given{x, hidden, w_ih, w_hh};
    for (const at::Tensor& each : given) {
      if (!is_ours(each) || each.dim() != 2) {
        return false;
      }
    }
    const int64_t rows = x.size(0), width = w_hh.size(1);
    const auto is_state = [&](const at::Tensor& each) {
      return is_ours(each) && each.sizes() == at::IntArrayRef({rows, width});
    };
    if (!is_state(hidden) || (cell && !is_state(*cell)) ||
        w_ih.sizes() != at::IntArrayRef({gates * width, x.size(1)}) ||
        w_hh.sizes() != at::IntArrayRef({gates * width, width})) {
      return false;
    }
    for (const auto* each : {&cell, &b_ih, &b_hh}) {
      if (*each) {
        given.push_back(**each);
      }
    }
    for (const auto* each : {&b_ih, &b_hh}) {
      if (*each && (!is_ours(**each) || (*each)->sizes() != at::IntArrayRef({gates * width}))) {
        return false;
      }
    }
    return all_plain(given);
  }
};

inline bool do_lstm_cell(Stack* stack) {
  const auto given = torch::jit::last(*stack, 6);
  if (!given[1].isTensorList() || given[1].toListRef().size() != 2) {
    return false;
  }
  const auto state = given[1].toListRef();
  const Cell of{given[0].toTensor(), state[0].toTensor(), given[2].toTensor(), given[3].toTensor(),
                state[1].toTensor(), if_any(given[4]), if_any(given[5])};
  if (!of.fits(4)) {
    return false;
  }
  const at::Tensor gates =
      at::linear(of.hidden, of.w_hh, of.b_hh).add_(at::linear(of.x, of.w_ih, of.b_ih));
  const auto chunks = gates.unsafe_chunk(4, 1);
  const at::Tensor taken = chunks[0].sigmoid_(), kept = chunks[1].sigmoid_();
  const at::Tensor fresh = chunks[2].tanh_(), shown = chunks[3].sigmoid_();
  const at::Tensor cell = (kept * *of.cell).add_(taken * fresh);
  const at::Tensor hidden = shown * cell.tanh();
  torch::jit::drop(*stack, 6);
  torch::jit::push(*stack, hidden, cell);
  return true;
}

inline bool do_gru_cell(Stack* stack) {
  const auto given = torch::jit::last(*stack, 6);
  const Cell of{given[0].toTensor(), given[1].toTensor(), given[2].toTensor(), given[3].toTensor(),
                std::nullopt, if_any(given[4]), if_any(given[5])};
  if (!of.fits(3)) {
    return false;
  }
  const auto of_x = at::linear(of.x, of.w_ih, of.b_ih).unsafe_chunk(3, 1);
  const auto of_h = at::linear(of.hidden, of.w_hh, of.b_hh).unsafe_chunk(3, 1);
  const at::Tensor reset = of_h[0].add_(of_x[0]).sigmoid_();
  const at::Tensor kept = of_h[1].add_(of_x[1]).sigmoid_();
  const at::Tensor fresh = of_x[2].add(of_h[2].mul_(reset)).tanh_();
  const at::Tensor hidden = (of.hidden - fresh).mul_(kept).add_(fresh);
  torch::jit::drop(*stack, 6);
  torch::jit::push(*stack, hidden);
  return true;
}

inline bool do_dropout(Stack* stack) {
  const auto given = torch::jit::last(*stack, 3);
  const at::Tensor x = given[0].toTensor();
  const double p = given[1].toDouble();
  if (!(p >= 0 && p < 1) || !device_tensor(x)) {
    return false;
  }
  at::Tensor made = x;
  if (given[2].toBool() && p != 0 && x.numel() != 0) {
    if (!at::isFloatingType(x.scalar_type())) {
      return false;
    }
    // as Python gives it, a number to an op between tensors
    const at::Tensor kept = at::native::wrapped_scalar_tensor(1 - p);
    made = x * at::empty_like(x).bernoulli_(1 - p).div_(kept);
  }
  torch::jit::drop(*stack, 3);
  torch::jit::push(*stack, made);
  return true;
}

// What `jgpu.device.composed.attention` asks of the host's torch, as it keeps the answer; none where
// it asks nothing of these, or where there is more to do than to call the kernel.
inline Owned asked_of_host(at::ArrayRef<at::Tensor> tensors, bool is_causal) {
  const bool is_masked = tensors.size() > 3;
  if (is_masked &&
      (is_causal || tensors[3].requires_grad() ||
       tensors[3].scalar_type() != tensors[0].scalar_type())) {
    return Owned();
  }
  const bool is_graded = c10::GradMode::is_enabled();
  const auto count = static_cast<Py_ssize_t>(tensors.size());
  Owned question = checked(PyTuple_New(count + 2));
  Owned wanted = checked(PyTuple_New(is_graded ? count : 0));
  for (Py_ssize_t i = 0; i < count; ++i) {
    const Owned object = device_tensor(tensors[i]);
    if (!object || tensors[i].numel() == 0) {
      return Owned();
    }
    Place of = place_of(tensors[i], object.get());
    PyTuple_SET_ITEM(question.get(), i, of.geometry.release());
    if (is_graded) {
      PyTuple_SET_ITEM(wanted.get(), i, PyBool_FromLong(tensors[i].requires_grad() ? 1 : 0));
    }
  }
  PyTuple_SET_ITEM(question.get(), count, PyBool_FromLong(is_causal ? 1 : 0));
  PyTuple_SET_ITEM(question.get(), count + 1, wanted.release());
  return question;
}

// Flash attention of the host, where its torch is known to take it.
inline bool do_attention(Stack* stack) {
  const auto given = torch::jit::last(*stack, 8);
  const auto mask = if_any(given[3]);
  const bool is_causal = given[5].toBool();
  const auto& switches = at::globalContext();
  if (given[4].toDouble() != 0 || given[7].toBool() || !switches.userEnabledFlashSDP() ||
      !switches.userEnabledMathSDP()) {
    return false;
  }
  c10::SmallVector<at::Tensor, 4> tensors{
      given[0].toTensor(), given[1].toTensor(), given[2].toTensor()};
  if (mask) {
    tensors.push_back(*mask);
  }
  const Owned question = asked_of_host(tensors, is_causal);
  const Owned answer = question ? found(connected.on_host, question.get()) : Owned();
  if (answer.get() != Py_True) {
    return false;
  }
  const at::Tensor made = std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
      tensors[0], tensors[1], tensors[2], 0.0, is_causal, mask, given[6].toOptional<double>()));
  torch::jit::drop(*stack, 8);
  torch::jit::push(*stack, made);
  return true;
}

// A composite's kernel at the backend's autograd key.
class Composed final : public c10::OperatorKernel {
 public:
  enum class Rule {
    lstm_cell,
    gru_cell,
    dropout,
    attention,
    softmax, // torch's own but for halves that become float32 on CUDA
    group_norm, // torch's own where it is in rows, or nothing is differentiated
    cross_entropy, // torch's own but for a mean over weighted and smoothed targets
    off_cuda, // torch's own unless the executor is CUDA
  };

  Composed(Rule rule, c10::DispatchKey composite, c10::SafeKernelFunction in_python)
      : rule_(rule), composite_(composite), in_python_(std::move(in_python)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const bool is_plain = !c10::impl::TorchDispatchModeTLS::any_modes_set();
    if (is_plain && is_torchs_own(*stack)) {
      op.callBoxedForDispatchKey(composite_, *stack);
    } else if (!is_plain || !is_written_out(stack)) {
      in_python_.callBoxed(op, keys, stack);
    }
  }

  static std::optional<Rule> rule_of(const std::string& name) {
    static const std::pair<const char*, Rule> all[] = {
        {"lstm_cell", Rule::lstm_cell},
        {"gru_cell", Rule::gru_cell},
        {"dropout", Rule::dropout},
        {"scaled_dot_product_attention", Rule::attention},
        {"softmax.int", Rule::softmax},
        {"log_softmax.int", Rule::softmax},
        {"group_norm", Rule::group_norm},
        {"cross_entropy_loss", Rule::cross_entropy},
        {"_batch_norm_impl_index", Rule::off_cuda},
        {"_fused_rms_norm", Rule::off_cuda},
        {"grid_sampler", Rule::off_cuda},
    };
    for (const auto& [known, rule] : all) {
      if (name == known) {
        return rule;
      }
    }
    return std::nullopt;
  }

 private:
  bool is_torchs_own(const Stack& stack) const {
    switch (rule_) {
      case Rule::softmax: {
        const auto given = torch::jit::last(stack, 3);
        return given[2].isNone() || given[2].toScalarType() != at::kFloat ||
            given[0].toTensor().scalar_type() != at::kHalf || !is_cuda();
      }
      case Rule::group_norm: {
        const at::Tensor& given = torch::jit::last(stack, 6)[0].toTensor();
        return !c10::GradMode::is_enabled() || given.is_contiguous();
      }
      case Rule::cross_entropy: { // input, target, weight, reduction, what is left out, smoothing
        const auto given = torch::jit::last(stack, 6);
        return !given[2].isTensor() || !given[2].toTensor().defined() ||
            given[3].toInt() != at::Reduction::Mean || !(given[5].toDouble() > 0);
      }
      case Rule::off_cuda:
        return !is_cuda();
      default:
        return false;
    }
  }

  using Form = bool (*)(Stack*);

  Form form() const {
    switch (rule_) {
      case Rule::lstm_cell:
        return do_lstm_cell;
      case Rule::gru_cell:
        return do_gru_cell;
      case Rule::dropout:
        return do_dropout;
      case Rule::attention:
        return do_attention;
      default:
        return nullptr;
    }
  }

  // The interpreter's lock is held for all of its ops, which would each take it.
  bool is_written_out(Stack* stack) const {
    const Form carry_out = form();
    if (carry_out == nullptr) {
      return false;
    }
    const Interpreter held;
    return !is_cuda() && carry_out(stack);
  }

  // As `jgpu.device.composed.composites` says of the session's executor, which is asked again where
  // the connection is another one, or in another phase.
  static bool is_cuda() {
    const Interpreter held;
    struct Said {
      Owned phase, ready;
      bool is_cuda = false;
    };
    static auto& last = *new Said; // outlives Python
    const Owned session = attribute(connected.current, names.session);
    if (session.get() != Py_None && last.ready) {
      const Owned connection = attribute(session.get(), names.connection);
      if (attribute(connection.get(), names.phase).get() == last.phase.get() &&
          attribute(connection.get(), names.ready).get() == last.ready.get()) {
        return last.is_cuda;
      }
    }
    const Owned said = checked(PyObject_CallNoArgs(connected.is_cuda));
    const Owned connection =
        attribute(attribute(connected.current, names.session).get(), names.connection);
    last = Said{
        attribute(connection.get(), names.phase), attribute(connection.get(), names.ready),
        said.get() != Py_False};
    return last.is_cuda;
  }

  Rule rule_;
  c10::DispatchKey composite_;
  c10::SafeKernelFunction in_python_;
};

} // namespace jgpu
